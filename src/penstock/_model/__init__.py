"""What a pipeline is: frozen dataclasses. No I/O, no Spark."""
