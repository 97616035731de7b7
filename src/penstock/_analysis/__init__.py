"""What queries mean, before any runs: schemas, reads, output modes, lineage."""
