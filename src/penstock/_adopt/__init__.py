"""Rewrites a job, which starts its queries itself, as a pipeline, without executing it."""
