"""How SQL says it: statements become the same declarations as Python's."""
