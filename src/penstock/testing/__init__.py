"""What users need to test a pipeline."""
