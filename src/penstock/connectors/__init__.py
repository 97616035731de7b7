"""Deprecated: use `penstock.sources` and `penstock.sinks`."""
