"""The interface to Spark: sessions, facts from plans, failures."""
