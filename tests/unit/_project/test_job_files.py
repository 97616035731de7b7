"""Which files are jobs, and how several of them run in one process."""

import threading
from pathlib import Path

import pytest

from penstock._model.pipeline import PipelineSettings
from penstock._project.job_files import job_files, refuse_modules_of_one_name
from penstock._project.loader import job_programs, run_job_file
from penstock.errors import DefinitionError

STARTS = "q = spark.readStream.table('t').writeStream.start()\n"
NOTEBOOK = "# Databricks notebook source\n{}\n# COMMAND ----------\n# MAGIC %sql\n# MAGIC {}\n"


def _settings(project) -> PipelineSettings:
    return PipelineSettings(
        name="p", storage="file:///x", root=str(project.root), source_patterns=("**",)
    )


def _jobs(project) -> list[str]:
    return [str(path.relative_to(project.root)) for path in job_files(_settings(project))]


@pytest.mark.parametrize(
    ("sql", "jobs"),
    [
        ("CREATE VIEW IF NOT EXISTS v AS SELECT 1", ["job.py"]),
        ("CREATE TEMPORARY VIEW v AS SELECT 1", ["job.py"]),
        ("SELECT 1 -- CREATE STREAMING TABLE later", ["job.py"]),
        ("CREATE STREAMING TABLE t AS SELECT 1", []),
    ],
)
def test_notebook_that_starts_queries_is_a_job_unless_its_sql_declares(project, sql, jobs):
    project.write("job.py", NOTEBOOK.format(STARTS, sql))
    assert _jobs(project) == jobs


def test_file_with_a_syntax_error_is_not_a_job(project):
    project.write("deep.py", STARTS + "x = " + "-" * 5000 + "1\n")
    assert _jobs(project) == []


def test_create_view_is_not_a_job(project):
    project.write("v.sql", "CREATE VIEW v AS SELECT 1")
    assert _jobs(project) == []


def test_file_that_is_imported_or_run_by_another_is_not_a_job(project):
    project.write("bronze/main.py", "from . import orders\nimport queue\n" + STARTS)
    project.write("bronze/orders.py", STARTS)
    project.write("silver/orders.py", STARTS)
    project.write("gold/queue.py", STARTS)
    project.write("gold/notes.py", "# Databricks notebook source\n# MAGIC %run ./shared/run\n")
    project.write("gold/shared/run.py", STARTS)
    project.write("silver/run.py", STARTS)
    assert _jobs(project) == ["bronze/main.py", "gold/queue.py", "silver/orders.py",
                              "silver/run.py"]  # fmt: skip


def test_jobs_are_refused_when_they_import_different_modules_of_one_name(project):
    for name in ("a", "b"):
        project.write(f"{name}/job.py", "import json\nfrom .same import x\nimport config\n")
        project.write(f"{name}/same.py", "x = 1\n")
    jobs = [Path(project.root, name, "job.py") for name in ("a", "b")]
    project.write("config.py")
    project.write("a/helpers.py", "import deeper\n")
    project.write("a/job.py", "import helpers\nfrom .same import x\nimport config\n")
    refuse_modules_of_one_name(_settings(project), jobs)
    project.write("b/config.py")
    refuse_modules_of_one_name(_settings(project), jobs[1:])
    with pytest.raises(DefinitionError, match="their module `config` is not the same") as caught:
        refuse_modules_of_one_name(_settings(project), jobs)
    assert caught.value.condition == "JOB_MODULES_CONFLICT"
    # Modules that a module of a job imports are compared as well.
    (Path(project.root) / "b" / "config.py").unlink()
    project.write("a/deeper.py")
    project.write("b/job.py", "import deeper\n")
    project.write("b/deeper.py")
    with pytest.raises(DefinitionError, match="their module `deeper` is not the same"):
        refuse_modules_of_one_name(_settings(project), jobs)


JOB = """
from databricks.sdk.runtime import spark as of_runtime
import databricks.sdk.runtime
import helper
barrier.wait()
results[name] = (of_runtime, databricks.sdk.runtime.spark, helper.session(), spark)
dbutils.notebook.exit(name)
results[name] = "not ended"
"""


def test_each_job_gets_its_own_session_when_several_run(project):
    settings, results = _settings(project), {}
    project.write("helper.py", "def session():\n    from databricks.sdk.runtime import spark\n"
                               "    return spark\n")  # fmt: skip
    names = [f"job{number}" for number in range(4)]
    jobs = [project.write(f"{name}.py", JOB) for name in names]
    barrier = threading.Barrier(len(jobs))
    with job_programs(settings, jobs, None, on_configure=lambda _: None, on_stop=lambda: None):

        def run(job: Path) -> None:
            from penstock._project.databricks.dbutils_notebook import Notebook

            dbutils = type("DBUtils", (), {"notebook": Notebook("p")})()
            names = {"name": job.stem, "spark": f"session of {job.stem}", "dbutils": dbutils}
            namespace = {**names, "barrier": barrier, "results": results}
            run_job_file(settings, job, namespace=namespace)

        threads = [threading.Thread(target=run, args=[job]) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert results == {name: (f"session of {name}",) * 4 for name in names}
