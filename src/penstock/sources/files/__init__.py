"""Auto Loader: streams of files with an inferred schema that evolves without loss of data."""
