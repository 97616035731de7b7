"""Systems that flows read streams from: one folder each, with the contract in `base`."""
