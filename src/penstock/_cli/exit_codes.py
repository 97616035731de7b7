"""Exit codes of `penstock`, which are part of its documented interface."""

OK = 0
UPDATE_FAILED = 1
USAGE = 2
ENVIRONMENT = 3
BUG = 70
INTERRUPTED = 130
