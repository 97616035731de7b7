from pathlib import Path

import pytest

from penstock._jobs.query import job_hint
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


def error_of_job(folder: Path, code: str) -> UserCodeError:
    job = folder / "job.py"
    job.write_text(code, encoding="utf-8")
    settings = PipelineSettings(
        name="p", storage="file:///x", root=str(folder), source_patterns=("job.py",)
    )
    with pytest.raises(UserCodeError) as caught:
        run_job_file(settings, job, namespace={})
    return caught.value


def test_program_gets_a_hint_when_its_table_is_not_registered_again(tmp_path: Path):
    error = error_of_job(tmp_path, f"raise RuntimeError({EXISTS!r})\n")
    assert '.format("delta")' in (job_hint(error.message) or "")


def test_query_gets_a_hint_when_its_function_writes_a_table_that_is_not_registered_again():
    flow = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("job.py", 1))
    assert job_hint(flow_error(BATCH, flow).message)
    assert job_hint(flow_error(BATCH.replace("LOCATION", "TABLE_OR_VIEW"), flow).message) is None


ANSI = (
    '[DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES] Cannot resolve "(is_open = 1)" due to data type '
    "mismatch: the left and right operands of the binary operator have incompatible types "
    '("BOOLEAN" and "INT"). SQLSTATE: 42K09'
)
CAST = (
    '[CAST_INVALID_INPUT] The value \'n/a\' of the type "STRING" cannot be cast to "INT" because '
    "it is malformed. SQLSTATE: 22018"
)


@pytest.mark.parametrize("text", [ANSI, BATCH.replace(EXISTS, CAST)])
def test_error_of_ansi_mode_names_the_setting(text: str):
    flow = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("job.py", 1))
    hint = job_hint(text) or ""
    assert "--conf spark.sql.ansi.enabled=false" in hint
    assert job_hint(flow_error(text, flow).message) == hint


def test_program_that_exits_gets_a_hint_about_its_arguments(tmp_path: Path):
    error = error_of_job(
        tmp_path,
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--topic', required=True)\nparser.parse_args([])\n",
    )
    assert error.condition == "JOB_EXITED"
    assert "`penstock run job.py -- ARGS`" in str(error)
