"""Delta tables as streams."""
