"""Repairs a pipeline that does not run: what commands do that change its tables between updates."""
