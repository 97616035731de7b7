"""Reading sources from another place than the one where a flow has stopped."""
