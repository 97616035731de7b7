from pathlib import Path

import pytest

from penstock._jobs.tables import table_hint
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._model.pipeline import PipelineSettings
from penstock._project.loader import run_job_file
from penstock._spark.failures import flow_error
from penstock.errors import UserCodeError

EXISTS = (
    "[LOCATION_ALREADY_EXISTS] Cannot name the managed table as `spark_catalog`.`default`.`t`, as "
    "its associated location 'file:/w/t' already exists."
)
BATCH = f"""Python Proxy: Traceback (most recent call last):
  File "/project/job.py", line 9, in append
pyspark.errors.exceptions.captured.SparkRuntimeException: {EXISTS}

"""


def test_program_gets_a_hint_when_its_table_is_not_registered_again(tmp_path: Path):
    job = tmp_path / "job.py"
    job.write_text(f"raise RuntimeError({EXISTS!r})\n", encoding="utf-8")
    settings = PipelineSettings(
        name="p", storage="file:///x", root=str(tmp_path), source_patterns=("job.py",)
    )
    with pytest.raises(UserCodeError) as failed:
        run_job_file(settings, job, namespace={})
    assert '.format("delta")' in (table_hint(failed.value.message) or "")


def test_query_gets_a_hint_when_its_function_writes_a_table_that_is_not_registered_again():
    flow = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("job.py", 1))
    assert table_hint(flow_error(BATCH, flow).message)
    assert table_hint(flow_error(BATCH.replace("LOCATION", "TABLE_OR_VIEW"), flow).message) is None
