"""Sinks that send rows as messages, to a webhook or by mail."""
