"""What a reviewer would say about a pipeline before its first run. Rules are pure: no Spark."""
