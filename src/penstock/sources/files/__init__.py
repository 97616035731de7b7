"""Auto Loader: streams of files with an inferred schema that grows, and nothing lost.

`opening.open_source` opens one. The files of a stream are read by Spark's own file source, as text
where rows must be compared with what they were made from. Option rules are in
`penstock.sources.files.options`.
"""
