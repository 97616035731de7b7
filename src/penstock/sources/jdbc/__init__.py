"""A database's table as a stream: rows by a key that only grows."""
