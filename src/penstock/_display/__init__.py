"""How a running update is shown: a live table, lines of text or JSON."""
