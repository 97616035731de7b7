"""Writes tables: exactly-once writers, auto CDC, preparation of tables."""
