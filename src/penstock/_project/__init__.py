"""The files of a project: spec files and source files."""
