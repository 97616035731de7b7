"""Who watches over an update: state machine, restart policy, leases. No Spark."""
