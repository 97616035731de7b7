"""Events of an update, the event bus, the event log, and the exports built on them."""
