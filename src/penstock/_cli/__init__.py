"""Commands of the command line, and exit codes for exceptions; only this package prints."""
