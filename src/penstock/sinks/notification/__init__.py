"""Rows in messages to a webhook or by mail."""
