"""Repairs a pipeline that does not run: commands that change its tables between updates."""
