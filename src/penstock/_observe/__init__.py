"""What happened: frozen events, the bus, the event log."""
