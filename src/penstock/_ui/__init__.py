"""The web dashboard. It only reads event logs; actions are passed in."""
