"""What the user's folder says: spec files and source files."""
