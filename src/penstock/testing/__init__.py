"""What users need to test a pipeline, and what packages with a source or sink need to test it."""

from penstock.testing.pipeline import Counts, PipelineTest, assert_rows
from penstock.testing.sinks import SinkSuite
from penstock.testing.sources import SourceSuite

__all__ = ["Counts", "PipelineTest", "SinkSuite", "SourceSuite", "assert_rows"]
