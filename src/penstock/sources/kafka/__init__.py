"""Kafka and Event Hubs: options, reading, offsets, lag."""
