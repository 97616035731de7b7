"""Jobs: programs that start their streaming queries themselves, run and observed as they are."""
