import re
import sys
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql.types import StructType

from penstock import _launch
from penstock._analysis.boundary import first_line, user_code
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._observe.masking import shown
from penstock._spark.failures import flow_error, traced_text
from penstock.errors import DefinitionError, FlowError, PenstockError, UserCodeError
from penstock.sinks.base import Write
from penstock.sinks.function import FunctionSinkWriter

FLOW = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("a.py", 1))
WORKER = """[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
penstock.errors.ConnectorError: [{condition}] the schema registry http://r:1 cannot be used
  hint: look"""


@pytest.mark.parametrize(
    ("condition", "retryable"),
    [("SCHEMA_REGISTRY_UNREACHABLE", True), ("SCHEMA_REGISTRY_REFUSED", False)],
)
def test_registry_error_is_recognized_in_the_message_of_a_worker(condition, retryable):
    error = flow_error(WORKER.format(condition=condition), FLOW, batch_id=3)
    assert isinstance(error, FlowError)
    assert (error.condition, error.retryable) == (condition, retryable)
    assert "in batch 3: the schema registry http://r:1 cannot be used" in error.message
    assert error.hint is not None


def test_row_that_a_constraint_of_the_table_refuses_is_not_retried():
    name = "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException"
    error = flow_error(f"{name}: [DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK", FLOW)
    assert (error.condition, error.retryable) == ("FLOW_FAILED", False)


def test_event_time_out_of_range_is_not_retried_and_has_a_hint():
    error = flow_error("Caused by: java.lang.ArithmeticException: long overflow", FLOW)
    assert (error.condition, error.retryable) == ("FLOW_FAILED", False)
    assert "cap_future" in error.hint


def test_exception_of_another_function_in_a_worker_is_not_retried():
    error = flow_error(WORKER.format(condition="SOMETHING"), FLOW)
    assert isinstance(error, FlowError)
    assert (error.condition, error.retryable) == ("FLOW_FAILED", False)


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        ("errors.SaslAuthenticationException: failed", "`kafka.sasl.jaas.config`"),
        ("errors.SslAuthenticationException: handshake failed", "`kafka.ssl.truststore.*`"),
        ("errors.TopicAuthorizationException: Not authorized: [t]", "Describe and Read"),
        ("config.ConfigException: Invalid value seven for configuration acks", ""),
    ],
)
def test_wrong_password_or_option_of_a_broker_is_not_retried(cause, hint):
    error = flow_error(f"Caused by: org.apache.kafka.common.{cause}", FLOW)
    assert isinstance(error, FlowError)
    assert not error.retryable
    assert hint in (error.hint or "")


@pytest.mark.parametrize("status", [400, 403])
def test_refused_s3_request_names_the_path_and_has_a_hint_at_the_credentials(status):
    aws = f"software.amazon.awssdk.S3Exception: No (Service: S3, Status Code: {status})"
    text = (
        "An error occurred while calling o1.run.\n"
        f"Caused by: java.nio.file.AccessDeniedException: s3a://lake/t: getFileStatus: {aws}\n"
        f"Caused by: {aws}"
    )
    error = flow_error(text, FLOW)
    assert "the query failed: s3a://lake/t: getFileStatus" in error.message
    assert "credentials" in (error.hint or "")
    assert shown(error.hint or "") == error.hint
    written = f"[TASK_WRITE_FAILED] Task failed while writing rows to s3a://lake/t. X\n{text}"
    assert "credentials for s3a://lake/t: they" in (flow_error(written, FLOW).hint or "")
    with pytest.raises(DefinitionError) as failed, user_code(FLOW, lambda _name: None):
        raise OSError(text)
    assert failed.value.condition == "PERMISSION_DENIED"
    assert "credentials" in (failed.value.hint or "")


def test_unsupported_operator_of_real_time_mode_is_not_retried():
    text = (
        "org.apache.spark.SparkIllegalArgumentException: [STREAMING_REAL_TIME_MODE."
        "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST] Streaming real-time mode has the following limitation: "
        "The operator(s): BatchEvalPythonExec not in the operator allowlist for Real-Time Mode."
    )
    error = flow_error(text, FLOW)
    assert isinstance(error, FlowError)
    assert (error.condition, error.retryable) == ("REAL_TIME_NOT_SUPPORTED", False)
    assert "BatchEvalPythonExec" in error.message
    assert "processingTime=0" in (error.hint or "")


def test_cause_is_reported_when_only_py4j_names_the_object():
    text = (
        "Py4JJavaError: An error occurred while calling o330.update.\n: io.delta.exceptions."
        "DeltaUnsupportedOperationException: row tracking needs a catalog\n\tat a.b.C.d(C.scala:1)"
    )
    error = flow_error(text, FLOW)
    assert error.message == "flow 'f': the query failed: row tracking needs a catalog"
    assert first_line(Exception(text.removeprefix("Py4JJavaError: "))) == (
        "row tracking needs a catalog"
    )
    assert first_line(Exception("[X] `a`, `__penstock_28`.`b`\n more;")) == "[X] `a`, `b`"
    wrapped = text.replace("Py4JJavaError:", "[CANNOT_PARSE_DATATYPE] Unable to parse datatype.")
    assert first_line(Exception(wrapped)).endswith("datatype. row tracking needs a catalog")


def test_hint_names_the_session_of_a_batch_when_its_view_is_not_found():
    text = "AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `rows` cannot be found."
    error = flow_error(text, FLOW)
    assert not error.retryable
    assert "df.sparkSession.sql" in (error.hint or "")


def test_hint_names_the_memory_settings_when_memory_is_exhausted():
    text = "Job aborted\n\tat a.b\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat c.d"
    error = flow_error(text, FLOW)
    assert "spark.driver.memory" in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("java.io.IOException: No space left on device", "no space left on device"),
        (
            "java.io.FileNotFoundException: /nowhere/offsets/.3.tmp (Read-only file system)",
            "read-only file system for /nowhere/offsets/.3.tmp, on the file system of /",
        ),
        (
            "OSError: [Errno 28] No space left on device: '/nowhere/state/flows/f.json'",
            "no space left on device for /nowhere/state/flows/f.json, on the file system of /",
        ),
        ("Caused by: java.io.IOException: Disk quota exceeded", "disk quota exceeded in batch 3"),
    ],
)
def test_a_full_disk_is_one_line_that_names_the_file_system(text, shown):
    error = flow_error(f"Job aborted\n\tat org.apache.x\n{text}\n\tat y", FLOW, batch_id=3)
    assert isinstance(error, FlowError)
    assert (error.condition, error.retryable) == ("DISK_FULL", True)
    assert shown in error.message
    assert "\n" not in error.message
    assert "spark.local.dir" in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "condition", "message"),
    [
        ("No space left on device", "DISK_FULL", "no space left on device while running replay"),
        (
            "Mkdirs failed to create file:/s/state",
            "PERMISSION_DENIED",
            "the replay failed: Mkdirs failed to create file:/s/state",
        ),
        ("Stream closed", "UNEXPECTED_ERROR", "the replay failed: Stream closed"),
        (
            'AbfsRestOperationException: Operation failed: "The server is busy.", 503, PUT',
            "STORAGE_NOT_READABLE",
            'the replay failed: Operation failed: "The server is busy.", 503, PUT',
        ),
        (
            'AbfsRestOperationException: Operation failed: "Not found.", 404, HEAD',
            "UNEXPECTED_ERROR",
            'the replay failed: Operation failed: "Not found.", 404, HEAD',
        ),
        (
            "Reduce your rate (Service: S3, Status Code: 503, Request ID: null)",
            "STORAGE_NOT_READABLE",
            "the replay failed: Reduce your rate (Service: S3, Status Code: 503, Request ID: null)",
        ),
        (
            'LEASE_LOST {"pid": 7, "host": "b", "since": "12:00"}',
            "LEASE_LOST",
            "another update has taken over during the replay: process 7 on b, since 12:00",
        ),
    ],
)
def test_error_of_the_jvm_in_a_command_is_read_before_the_jvm_ends(
    monkeypatch, text, condition, message
):
    pipeline = _launch.OpenPipeline(**{each.name: None for each in fields(_launch.OpenPipeline)})
    monkeypatch.setattr(_launch, "open_pipeline", lambda *_, **__: nullcontext(pipeline))
    monkeypatch.setattr(_launch, "PipelineLeases", MagicMock())
    error = OSError("An error occurred while calling o1.parquet")
    error.java_exception = MagicMock()
    error.java_exception.toString.return_value = f"Caused by: java.io.IOException: {text}"
    with pytest.raises(PenstockError) as caught, _launch.open_for_command(MagicMock(), "replay"):
        raise error
    assert (caught.value.condition, caught.value.message) == (condition, message)


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (
            "Caused by: org.apache.hadoop.fs.ChecksumException: Checksum error: "
            "file:/s/checkpoints/f/e/offsets/1 at 0 exp: 1 got: 2",
            "CHECKPOINT_UNUSABLE",
        ),
        ("IllegalStateException: Log file was malformed: failed to read", "CHECKPOINT_UNUSABLE"),
        ("[DELTA_INVALID_SOURCE_VERSION] sourceVersion(0) is invalid", "CHECKPOINT_UNUSABLE"),
        ("Wrong basePath /b for the root path: file:/a/1.json", "CHECKPOINT_UNUSABLE"),
        ("ChecksumException: Checksum error: file:/data/offsets.json at 0", "FLOW_FAILED"),
    ],
)
def test_incompatible_checkpoint_is_not_retried(text, condition):
    error = flow_error(text, FLOW)
    assert isinstance(error, FlowError)
    assert error.condition == condition
    assert error.retryable is (condition == "FLOW_FAILED")


@pytest.mark.parametrize(
    "condition",
    [
        "CAST_INVALID_INPUT",
        "CAST_OVERFLOW",
        "DIVIDE_BY_ZERO",
        "REMAINDER_BY_ZERO",
        "ARITHMETIC_OVERFLOW",
        "BINARY_ARITHMETIC_OVERFLOW",
        "INVALID_ARRAY_INDEX",
        "INVALID_ARRAY_INDEX_IN_ELEMENT_AT",
        "DATETIME_FIELD_OUT_OF_BOUNDS.WITH_SUGGESTION",
    ],
)
def test_failure_of_ansi_mode_names_the_setting_and_the_flow(condition):
    text = f"Caused by: org.apache.spark.SparkArithmeticException: [{condition}] 'n/a' is no number"
    error = flow_error(text, FLOW, batch_id=3)
    assert not error.retryable
    assert "flow 'f': the query failed in batch 3" in error.message
    assert "invalid in the query of t" in error.hint
    assert "spark.sql.ansi.enabled" in error.hint


@pytest.mark.parametrize(
    ("context", "place"),
    [
        (
            "== SQL (line 3, position 3) ==\n  5/amount AS r FROM `__penstock_3`\n  ^^^^^^^^\n",
            "(in `5/amount`)",
        ),
        ('== DataFrame ==\n"__truediv__" was called from\n/my etl/shop.py:13\n', "(shop.py:13)"),
    ],
)
def test_failure_of_ansi_mode_names_the_expression(context, place):
    name = "org.apache.spark.SparkArithmeticException"
    error = flow_error(f"Caused by: {name}: [DIVIDE_BY_ZERO] Division by zero.\n{context}", FLOW)
    assert error.message.endswith(f"Division by zero. {place}")


@pytest.mark.parametrize(
    "reason",
    [
        "Bad value for type BigDecimal : NaN",
        "[NUMERIC_VALUE_OUT_OF_RANGE] 1e30",
        "[COLUMN_ARRAY_ELEMENT_TYPE_MISMATCH] Some values in field 1",
    ],
)
def test_value_refused_by_the_jdbc_reader_needs_another_type(reason):
    getter = "org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils$.$anonfun$makeGetter$3"
    error = flow_error(f"Caused by: java.sql.SQLException: {reason}\n\tat {getter}(x)", FLOW)
    assert not error.retryable
    assert "customSchema" in error.hint
    assert "try_cast" not in error.hint


@pytest.mark.parametrize(
    ("driver", "place"),
    [
        ("org.postgresql.util.PSQLException", "JDBCRDD.compute(JDBCRDD.scala:332)"),
        (
            "java.sql.SQLNonTransientConnectionException",
            "JdbcUtils$$anon$1.getNext(JdbcUtils.scala:1)",
        ),
    ],
)
def test_failure_of_a_database_in_the_jdbc_reader_is_retryable_with_its_message(driver, place):
    text = (
        f"SparkException: aborted\n{driver}: Connection to db:5432 refused\n"
        f"\tat org.apache.spark.sql.execution.datasources.jdbc.{place}\n"
        "Caused by: java.net.ConnectException: Connection refused"
    )
    error = flow_error(text, FLOW, batch_id=3)
    assert error.condition == "JDBC_SOURCE_UNAVAILABLE"
    assert error.retryable
    assert "Connection to db:5432 refused" in error.message


@pytest.mark.parametrize("condition", ["CAST_OVERFLOW_IN_TABLE_INSERT", "STREAM_FAILED"])
def test_failure_independent_of_ansi_mode_has_no_hint(condition):
    assert flow_error(f"[{condition}] x", FLOW).hint is None


def test_exception_of_a_batch_function_has_the_line_of_the_user():
    text = (
        "py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: "
        "Traceback (most recent call last):\n"
        '  File "/lib/site-packages/py4j/clientserver.py", line 647, in _call_proxy\n'
        '  File "/home/me/job.py", line 9, in save\n    spark.createDataFrame(rows)\n'
        '  File "/lib/site-packages/pyspark/sql/types.py", line 2856, in infer\n'
        "pyspark.errors.exceptions.base.PySparkTypeError: no type\n\n\tat py4j.Protocol.get(P.java)"
    )
    assert "PySparkTypeError: no type (job.py:9)" in flow_error(text, FLOW).message


@pytest.mark.parametrize(
    "worker", ["", "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "]
)
def test_exception_of_a_python_function_of_a_query_has_the_line_of_the_user(worker):
    text = (
        "Py4JJavaError: An error occurred while calling o1063.writeFiles.\n"
        ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows\n"
        "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n"
        f"Caused by: org.apache.spark.api.python.PythonException: {worker}"
        "Traceback (most recent call last):\n"
        '  File "/home/me/orders.py", line 14, in parse\n    return frame[["nope"]]\n'
        '  File "/lib/site-packages/pandas/core/frame.py", line 4119, in __getitem__\n'
        '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n'
        "orders.parse.<locals>.OddError: no 'nope': in the columns\n SQLSTATE: 38000\n"
        "\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:665)\n"
    )
    message = flow_error(text, FLOW, batch_id=3).message
    assert message.endswith("in batch 3: OddError: no 'nope': in the columns (orders.py:14)")


def test_exception_of_the_function_of_a_sink_has_its_class_and_line():
    def failed(error: Exception) -> str:
        try:
            raise error
        except Exception as raised:
            return flow_error(traced_text(raised), FLOW).message

    name = Path(__file__).name
    assert re.search(rf"failed: KeyError: 'missing' \({name}:\d+\)$", failed(KeyError("missing")))
    java = Exception("An error occurred while calling o330.update.\n: a.BException: a reason")
    assert failed(type("Py4JJavaError", (Exception,), {})(*java.args)).endswith("failed: a reason")


def test_exception_within_a_library_has_no_line():
    text = (
        "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):"
        '\n  File "/lib/pyspark.zip/pyspark/worker.py", line 398, in verify\n'
        "pyspark.errors.PySparkRuntimeError: [SCHEMA_MISMATCH] expected 6, got 1.\n"
    )
    message = flow_error(text, FLOW).message
    assert message.endswith("failed: PySparkRuntimeError: [SCHEMA_MISMATCH] expected 6, got 1.")


def test_file_that_cannot_be_read_is_named():
    text = (
        "Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error "
        "while reading file file:///in/a.json.  SQLSTATE: KD001\n\tat a.B.c(B.scala:1)\n"
        "Caused by: com.fasterxml.jackson.JsonEOFException: {}\n"
    )
    message = flow_error(text.format("Unexpected end-of-input"), FLOW).message
    assert message.startswith("flow 'f': the query failed: file:///in/a.json: ")
    assert message.endswith("Unexpected end-of-input")
    assert flow_error(text.format("file:/in/a.json is no JSON"), FLOW).message.count("a.json") == 1


def test_exception_is_named_if_its_message_is_only_a_path():
    error = flow_error("Job aborted\nCaused by: java.io.FileNotFoundException: /in/a.parquet", FLOW)
    assert error.message.endswith("failed: java.io.FileNotFoundException: /in/a.parquet")


def test_cause_without_a_message_follows_the_reason():
    text = (
        "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows\n"
        "\tat a.B.c(B.scala:1)\n"
        "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n"
        "\tat a.B.c(B.scala:1)\nCaused by: java.io.EOFException\n\tat a.B.c(B.scala:1)\n"
    )
    message = flow_error(text, FLOW).message
    assert message.endswith("unexpectedly (crashed) (caused by java.io.EOFException)")
    text = text.partition("Caused by")[0] + "Caused by: java.lang.StackOverflowError\n\tat a.B.c\n"
    message = flow_error(text, FLOW).message
    assert message.endswith("while writing rows (caused by java.lang.StackOverflowError)")


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_exception_of_a_sink_function_has_its_type_and_the_line_of_the_user(kind):
    def save(_df, _batch_id):
        raise kind("no luck")

    write = Write(
        spark=None,
        pipeline="p",
        flow=FLOW,
        epoch="e",
        checkpoint="c",
        schema=StructType(),
        format="foreach_batch",
        options={},
    )
    with pytest.raises(FlowError) as failed:
        FunctionSinkWriter(write, save).write(None, 3)
    place = f"{Path(__file__).name}:{save.__code__.co_firstlineno + 1}"
    assert f"in batch 3: {kind.__name__}: no luck ({place})" in failed.value.message


@pytest.mark.parametrize(
    "text",
    [
        "java.io.FileNotFoundException: /s/offsets/.3.tmp (Permission denied)",
        "java.nio.file.AccessDeniedException: /data",
        "PermissionError: [Errno 13] Permission denied: '/data'",
    ],
)
def test_hint_of_a_denied_permission_names_the_user_that_needs_it(text):
    assert "the user that runs the command" in (flow_error(text, FLOW).hint or "")
    with pytest.raises(DefinitionError) as failed, user_code(FLOW, lambda _name: None):
        raise OSError(text)
    assert failed.value.condition == "PERMISSION_DENIED"
    assert text in failed.value.message


def test_path_in_a_bucket_that_does_not_exist_is_not_found():
    text = "getFileStatus on s3a://gone/in: NoSuchBucketException: The bucket does not exist"
    with pytest.raises(DefinitionError) as failed, user_code(FLOW, lambda _name: None):
        raise OSError(text)
    assert failed.value.condition == "PATH_NOT_FOUND"
    assert f"reads a bucket that does not exist: {text}" in failed.value.message
    with pytest.raises(DefinitionError) as failed, user_code(FLOW, lambda _name: None):
        raise IllegalArgumentException("bucket is null/empty")
    assert failed.value.condition == "PATH_NOT_FOUND"
    assert "underscore" in (failed.value.hint or "")


@pytest.mark.parametrize(
    ("name", "hint"), [("to_dat", "did you mean `to_date`?"), ("mask_pii", "")]
)
def test_hint_for_a_misspelled_function_is_the_nearest_function_of_spark(name, hint):
    error = AnalysisException("[UNRESOLVED_ROUTINE] Cannot resolve the routine")
    error.getCondition = lambda: "UNRESOLVED_ROUTINE"
    error.getMessageParameters = lambda: {"routineName": f"`{name}`"}
    with pytest.raises(DefinitionError) as failed, user_code(FLOW, lambda _name: None):
        raise error
    assert failed.value.condition == "FUNCTION_NOT_FOUND"
    assert failed.value.hint == hint if hint else "spark.udf.register" in (failed.value.hint or "")


def test_missing_file_of_a_table_has_a_hint():
    text = "java.io.FileNotFoundException: File file:/t/deletion_vector_1.bin does not exist"
    assert "put it back" in (flow_error(text, FLOW).hint or "")


def test_query_function_that_ends_the_program_is_an_error():
    with pytest.raises(UserCodeError) as failed, user_code(FLOW, lambda _name: None):
        sys.exit(0)
    assert failed.value.condition == "QUERY_FUNCTION_RAISED"
    assert "raised SystemExit: 0" in failed.value.message


def test_two_writers_that_create_a_delta_table_do_not_damage_a_checkpoint():
    text = "ProtocolChangedException: the table has been changed by a concurrent update. See more"
    assert flow_error(text, FLOW).condition == "FLOW_FAILED"
    text = "Concurrent update to the log. Multiple streaming jobs detected for 3"
    error = flow_error(text, FLOW)
    assert error.condition == "CHECKPOINT_IN_USE"
    assert "--full-refresh" not in (error.hint or "")


def test_error_names_the_reason_of_lost_rows():
    text = (
        "KafkaIllegalStateException: Some data may have been lost because they are not available "
        "in Kafka any more;\neither ...\nIf you don't want your streaming query to fail on such "
        "cases, set the source option failOnDataLoss to false.\nReason: Partitions t-0 have been "
        "deleted.\nat x"
    )
    error = flow_error(text, FLOW)
    assert error.condition == "SOURCE_ROWS_LOST"
    assert error.message.endswith("were not read yet: Partitions t-0 have been deleted.")


@pytest.mark.parametrize(
    "text", ["There are [2] sources in the checkpoint offsets", "[KAFKA_DATA_LOSS] gone"]
)
def test_hint_about_a_full_refresh_mentions_sinks_unless_the_target_is_a_table(text):
    hint = flow_error(text, FLOW).hint or ""
    assert "--full-refresh t" in hint
    assert "sink" not in (flow_error(text, replace(FLOW, implicit=True)).hint or "")
    assert "penstock checkpoint reset f --from POSITION`: `earliest` writes all rows" in hint
