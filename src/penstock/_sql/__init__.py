"""How SQL says it: statements become the same declarations as Python's.

A file walks through the modules in this order: `source` keeps text and lines together, `tokens` and
`statements` cut it, `substitution` fills in values, `create`, `flow` and `session` parse the heads
with a `cursor`, and `declare` turns the result into declarations. Queries stay as the user wrote
them; Spark parses them when they run.
"""
