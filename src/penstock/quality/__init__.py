"""Expectations as pure functions from a row to a Column."""
