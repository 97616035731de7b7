"""Deprecated: `penstock.sources` and `penstock.sinks` take its place."""
