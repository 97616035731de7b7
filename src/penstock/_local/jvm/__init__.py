"""Java classes of Penstock, with the jar built from them.

`LinkLogStore` and `ObjectLogStore` publish versions of Delta tables on a disk and on S3,
`ObjectCheckpointFiles` those of Spark's logs; `StorageLease` is the lease of an object store;
`WriteTransaction` keeps what writes have in common, and `SplitTransaction` writes the files of two
tables in one job; `KeptStatistics` computes the statistics of files. `BatchFiles` lists the files
of a batch, or returns their `SharedRows`, and lists those of tables with few files;
`BatchAdmission` lets streaming queries take turns.
`LiveFiles` keeps the files of a table between batches; `KeyedRows` finds and deletes the rows of
`BatchKeys` among them, by a `KeySearch`. `PackedRows` are many rows of the driver, for one task,
which reads them by a `PackedRdd`.
`QueryChanges` computes how the result of a query changes with its tables, by a `NormalPlan`:
`TableChanges` of each table, `LinearChanges` as `ChangedRows`, `PartialAggregates`, and
`AffectedKeys` of `KeyColumns`. `Checkpoints` writes checkpoints of tables beside the batches, and
`Restore` restores an earlier version. `JsonRecords` and `CsvRecords` parse lines of files, each a
`RowFunction`, and know whether the columns hold all of a line; what is missing is found by an
`Interpreted` expression. `PlanText` makes the text of a query comparable.
"""

from pathlib import Path

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.java")))
JAR = Path(__file__).with_name("penstock.jar")
"""Built by `.ci/build-jvm-classes`; committed, so that no JDK is needed."""
