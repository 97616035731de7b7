"""Rewrites a job, which starts its queries itself, as a pipeline: from the text alone."""
