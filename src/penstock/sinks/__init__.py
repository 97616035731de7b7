"""Sinks: systems outside of the pipeline's tables that flows write to."""
