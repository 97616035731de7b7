"""Start of Spark's JVM: options, signals that it ignores, and the reason of a failed start."""

import locale
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._spark.jvm import (
    _ignore_stop_signals,
    _java_command,
    _locale,
    reason_of,
    starts_directly,
)
from penstock._spark.plans import is_changing
from penstock._spark.session import (
    SessionOptions,
    effective_configuration,
    jvm_exit_code,
    spark_defaults,
)
from penstock._spark.session_defaults import is_local, session_defaults
from penstock.errors import DefinitionErrors, UserCodeError


def _options(**options: Any) -> SessionOptions:
    return SessionOptions(app_name="p", storage_root="file:/s", log_file="spark.log", **options)


CAUSED = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.reflect.InvocationTargetException: null
\tat java.base/java.net.X.y(Unknown Source)
Caused by: java.net.BindException: Address already in use: Service 'sparkDriver' failed"""
MEMORY = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkIllegalArgumentException: [INVALID_DRIVER_MEMORY] System memory 8126464
\tat org.apache.spark.memory.X.y(Unknown Source)"""


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*, 3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://master:7077", False),
    ],
)
def test_local_cluster_is_a_cluster(master: str, expected: bool) -> None:
    assert is_local(master) is expected
    options = _options(master=master, jars=("a.jar",), store_jars=("b.jar",))
    conf = effective_configuration(options)
    assert (conf.get("spark.jars") == "a.jar,b.jar") is not expected
    assert conf["spark.driver.extraClassPath"] == "a.jar"
    defaults = session_defaults(master, {}, "file:/s")
    assert ("spark.driver.host" in defaults) is expected
    assert ("spark.hadoop.fs.file.impl" in defaults) is expected


def test_java_decodes_file_names_like_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for of_locale, of_python, expected in (
        ("UTF-8", "utf-8", {}),
        ("ANSI_X3.4-1968", "utf-8", {"LC_ALL": "C.UTF-8"}),
        ("ISO-8859-1", "iso8859-1", {}),
    ):
        monkeypatch.setattr(locale, "getencoding", lambda name=of_locale: name)
        monkeypatch.setattr(sys, "getfilesystemencoding", lambda name=of_python: name)
        assert _locale() == expected


def test_spark_defaults_are_parsed_as_java_properties(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.a 1\n! spark.b 1\n\nspark.driver.extraJavaOptions  -Dkey=value -Dx=y\n"
        "spark.hadoop.key=abc==\nspark.app.name : shop \nspark.empty\nspark.e =\nspark.f : \n"
        "spark.path=C:/x\n"
    )
    assert spark_defaults() == {
        "spark.driver.extraJavaOptions": "-Dkey=value -Dx=y",
        "spark.hadoop.key": "abc==",
        "spark.app.name": "shop",
        "spark.path": "C:/x",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cast(today as date)", True),
        ("CAST(NOW AS TIMESTAMP)", True),
        ("current_time(6)", True),
        ("try_cast(now CET as timestamp)", True),
        ("cast(todays_sales as date)", False),
        ("current_times", False),
        ("current_user() AS #0", True),
        ("find_user(#0)", False),
        ("Sample 0.0, 0.5, false, Bernoulli", True),
        ("Sample 0.0, 0.5, false, -7, Bernoulli", False),
    ],
)
def test_some_functions_make_a_query_depend_on_the_time_or_the_run(
    text: str, expected: bool
) -> None:
    assert is_changing(text) is expected


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, True),
        ({"spark.master": "spark://a:7077,b:7077", "spark.driver.memory": "4g"}, True),
        ({"spark.master": "local-cluster[2,1,1024]"}, False),
        ({"spark.master": "yarn"}, False),
        ({"spark.master": "k8s://https://api:6443"}, False),
        ({"spark.jars": "own.jar"}, False),
        ({"spark.jars.packages": "org:own:1.0"}, False),
        ({"spark.files": "rates.csv"}, False),
        ({"spark.submit.pyFiles": "own.zip"}, False),
        ({"spark.kerberos.keytab": "own.keytab"}, False),
    ],
)
def test_spark_submit_is_skipped_where_possible(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, conf: dict[str, str], expected: bool
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    assert starts_directly(conf) is expected
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars own.jar pyspark-shell")
    assert not starts_directly(conf)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    (tmp_path / "spark-env.sh").touch()
    assert not starts_directly(conf)


@pytest.mark.parametrize("master", ["local[2]", "spark://master:7077", "k8s://https://api:6443"])
def test_writers_on_one_disk_are_safe_on_every_master(master: str) -> None:
    defaults = session_defaults(master, {}, "file:/s")
    assert defaults["spark.delta.logStore.file.impl"] == "penstock.delta.LinkLogStore"
    remote = session_defaults(master, {}, "s3a://b/s")
    assert "spark.delta.logStore.file.impl" not in remote


def test_driver_of_a_cluster_on_loopback_listens_on_loopback() -> None:
    here = session_defaults("spark://127.0.0.1:7077", {}, "file:/s")
    assert here["spark.driver.bindAddress"] == "127.0.0.1"
    there = session_defaults("spark://master:7077", {}, "file:/s")
    assert "spark.driver.bindAddress" not in there


def test_only_an_executor_of_a_cluster_can_miss_heartbeats() -> None:
    key = "spark.storage.blockManagerHeartbeatTimeoutMs"
    here = session_defaults("local[2]", {}, "file:/s")
    assert here[key] == "3650d"
    assert key not in session_defaults("local-cluster[1,1,1]", {}, "file:/s")


def test_an_analysis_needs_no_cluster() -> None:
    conf = effective_configuration(_options(master="spark://master:7077", analysis_only=True))
    assert conf["spark.master"] == "local[*]"


@pytest.mark.parametrize(
    "option", ["-XX:-DontCompileHugeMethods", "-XX:Tier4InvocationThreshold=50000"]
)
def test_driver_and_executors_compile_large_methods_and_optimize_late(option: str) -> None:
    conf = effective_configuration(_options(master="spark://master:7077"))
    assert option in _java_command(conf, (), "")
    assert option in conf["spark.executor.defaultJavaOptions"].split()


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("org.example.Extension", "{batch_files},{delta},org.example.Extension"),
        ("{delta}, org.example.Extension", "{batch_files},{delta},org.example.Extension"),
        ("{delta},{batch_files}", "{delta},{batch_files}"),
    ],
)
def test_session_extensions_of_the_user_are_added_to_those_of_penstock(
    own: str, expected: str
) -> None:
    names = {
        "batch_files": "penstock.delta.BatchFiles",
        "delta": "io.delta.sql.DeltaSparkSessionExtension",
    }
    configuration = {"spark.sql.extensions": own.format(**names)}
    conf = effective_configuration(_options(configuration=configuration))
    assert conf["spark.sql.extensions"] == expected.format(**names)


def test_jars_of_stores_follow_the_class_path_of_the_archive() -> None:
    conf = effective_configuration(_options(master="local[2]", jars=("a.jar",)))
    plain = _java_command(conf, (), "")
    with_stores = _java_command(conf, (), "s3.jar:b.jar")
    assert plain[2].split(":")[0] == "a.jar"
    assert with_stores == [*plain[:2], f"{plain[2]}:s3.jar:b.jar", *plain[3:]]


def test_jvm_ignores_signals_to_the_process_group() -> None:
    script = "kill -TERM $$; kill -INT $$; kill -HUP $$; exit 7"
    code = subprocess.run(["sh", "-c", script], preexec_fn=_ignore_stop_signals, check=False)
    assert code.returncode == 7
    assert subprocess.run(["sh", "-c", script], check=False).returncode == -15


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (MEMORY, "SparkIllegalArgumentException: [INVALID_DRIVER_MEMORY] System memory 8126464"),
        (
            CAUSED,
            "InvocationTargetException: null; caused by BindException: Address already in use: "
            "Service 'sparkDriver' failed",
        ),
        ("java ended with exit code 1", "java ended with exit code 1"),
        ("", "RuntimeError"),
    ],
)
def test_reason_names_the_cause_in_java(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason


def test_exit_of_the_jvm_is_awaited_when_a_query_function_lost_its_connection() -> None:
    raised = UserCodeError("QUERY_FUNCTION_RAISED", "the query function of 'a' raised")
    raised.__cause__ = ConnectionRefusedError(111, "Connection refused")
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(9)"], stdin=subprocess.PIPE
    ) as process:
        spark: Any = SimpleNamespace(_sc=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))
        assert jvm_exit_code(spark, ValueError("not of the JVM")) is None
        assert process.stdin is not None
        process.stdin.close()
        assert jvm_exit_code(spark, DefinitionErrors([raised])) == 9
