"""SQL sources: statements become the same declarations as in Python.

The modules in order: `source` maps text to lines, `tokens` and `statements` split it,
`substitution` fills in values, `parse`, `create` and `flow` parse statements with a `cursor`, and
`declare` turns the result into declarations. Queries stay as the user wrote them; Spark parses them
when they run.
"""
