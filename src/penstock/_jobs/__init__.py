"""Jobs: programs that start their streaming queries themselves, run and observed unchanged."""
