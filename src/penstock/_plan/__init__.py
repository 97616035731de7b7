"""Planning: steps as frozen data, the planner and `explain`. Does not import Spark."""
