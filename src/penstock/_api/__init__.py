"""The Python API, which is available under three module names, and its registry."""
