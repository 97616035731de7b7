"""PostgreSQL as a sink: exactly once, through a staging table and a fence."""
