"""A database table as a stream: rows in the order of a key that only grows."""
