"""What Spark is and says: sessions, facts of plans, failures."""
