"""Tools to test pipelines, and contract tests for packages with a source or sink."""

from penstock.testing.pipeline import Counts, PipelineTest, assert_rows
from penstock.testing.sinks import SinkSuite
from penstock.testing.sources import SourceSuite

__all__ = ["Counts", "PipelineTest", "SinkSuite", "SourceSuite", "assert_rows"]
