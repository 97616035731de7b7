"""Analysis of queries before they run: schemas, reads, output modes, lineage."""
