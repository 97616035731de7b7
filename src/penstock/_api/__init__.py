"""How Python says it: one surface under three names, and the registry behind it."""
