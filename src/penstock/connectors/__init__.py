"""One file per system that rows come from or go to."""
