"""What will be done: frozen steps, the planner and its explanation. No Spark."""
