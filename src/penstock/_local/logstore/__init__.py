"""The log store for Delta tables on a local disk: a Java class, with the jar built from it."""

from pathlib import Path

SOURCE = Path(__file__).with_name("LinkLogStore.java")
JAR = Path(__file__).with_name("penstock-logstore.jar")
"""Built by `.ci/build-logstore`; committed, so that no JDK is needed."""
CLASS = "penstock.delta.LinkLogStore"
