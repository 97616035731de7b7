"""Penstock's Java classes, and the jar built from them.

- Storage: `LinkLogStore` and `ObjectLogStore` publish versions of Delta tables on disks and on
  object stores, `ObjectCheckpointFiles` publishes Spark's offset and commit logs, and
  `StorageLease` is the lease of an object store.
- Writes: `WriteTransaction` has the parts that all writes share; `SplitTransaction` writes the
  files of two tables in one job; `KeptStatistics` computes the statistics of files. `LiveFiles`
  caches the files of a table between batches; `KeyedRows` finds and deletes the rows with the keys
  of `BatchKeys`, by a `KeySearch`. `Checkpoints` writes Delta checkpoints on a separate thread, and
  `Restore` restores an earlier version.
- Batches: `BatchFiles` lists the files of a batch or of a small table, or returns their
  `SharedRows`; `BatchAdmission` limits how many queries run a batch at the same time. `PackedRows`
  are rows on the driver, which one task reads by a `PackedRdd`.
- Views: `QueryChanges` computes how the result of a query changes with its tables, from a
  `NormalPlan`, by the `TableChanges` of each table: `LinearChanges` as `ChangedRows`,
  `PartialAggregates`, and `AffectedKeys` of `KeyColumns`. `PlanText` makes the texts of queries
  comparable.
- Parsers: `JsonRecords` and `CsvRecords` parse lines, each as a `RowFunction`, and report whether
  the columns contain the whole line; if not, an `Interpreted` expression finds the rest.
"""

from pathlib import Path

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.java")))
JAR = Path(__file__).with_name("penstock.jar")
"""Built by `.ci/build-jvm-classes`; committed, so that no JDK is needed."""
