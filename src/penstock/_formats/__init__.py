"""Rows of files as typed columns: formats, rescued data, merged and widened schemas."""
