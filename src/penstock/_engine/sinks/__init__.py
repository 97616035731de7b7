"""What writes to places outside of the pipeline's tables, one file per kind of sink."""
