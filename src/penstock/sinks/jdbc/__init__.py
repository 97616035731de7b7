"""Databases as sinks: exactly once, through a staging table and a fence."""
