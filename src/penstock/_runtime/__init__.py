"""Execution of an update: state machine, restart policy, leases. Does not import Spark."""
