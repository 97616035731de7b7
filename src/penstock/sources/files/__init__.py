"""Auto Loader: streams of files with an inferred schema that grows, and nothing lost."""
