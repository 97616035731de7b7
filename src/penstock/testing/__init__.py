"""What users need to test a pipeline."""

from penstock.testing.pipeline import Counts, PipelineTest, assert_rows

__all__ = ["Counts", "PipelineTest", "assert_rows"]
