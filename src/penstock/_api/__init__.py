"""The Python API: one surface under three names, and its registry."""
