"""Formats of files that Spark reads and writes itself."""

from penstock.sources.files.source import FORMATS

FILE_FORMATS = frozenset(FORMATS)
