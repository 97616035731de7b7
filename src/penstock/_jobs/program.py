"""A program of a job: one file and its session."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import PenstockError


@dataclass(eq=False)
class Program:
    """A file that is executed, its session, and the flows of the queries that it has started.

    `thread` is the identifier of the thread that executes the file, 0 before and after.
    """

    source: Path
    spark: SparkSession
    thread: int = 0
    flows: set[str] = field(default_factory=set)
    failure: PenstockError | None = None

    def activate(self, options: Mapping[str, Any]) -> SparkSession:
        """Set the options of a builder that apply at run time, and return the session."""
        for key, value in options.items():
            with suppress(PySparkException):
                self.spark.conf.set(key, value)
        return self.spark


def programs_of(sources: tuple[Path, ...], spark: SparkSession) -> tuple[Program, ...]:
    """A program for each file.

    Several programs have separate sessions: settings, temporary views and `spark.streams` are not
    shared.
    """
    if len(sources) == 1:
        return (Program(sources[0], spark),)
    java: Any = spark._jsparkSession
    context = spark.sparkContext
    return tuple(Program(file, SparkSession(context, java.cloneSession())) for file in sources)
