"""Writes to databases, in updates of a project and with a writer only."""

import json
import tempfile
from pathlib import Path

from database_server import PASSWORD, USER, CuttingProxy, DatabaseServer
from pyspark.sql.types import StructType
from update_project import Project

from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock.sinks.base import Write
from penstock.sinks.jdbc.writer import JdbcSinkWriter

SINK = """
dp.create_sink("out", "jdbc", {{
    "url": "{url}", "dbtable": "{table}", "user": "writer",
    "password": "${{secret:DB_PASSWORD}}", {more}
}})
"""


def sink(url: str, table: str, **more: str) -> str:
    pairs = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in more.items())
    return SINK.format(url=url, table=table, more=pairs)


PLAIN = """
@dp.append_flow(target="out")
def to_db():
    return rows().select("id", "amount")
"""


def forget_last_commit(project: Project, flow: str) -> None:
    newest = max(
        (f for f in project.commits_folder(flow).iterdir() if f.name.isdigit()),
        key=lambda f: int(f.name),
    )
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def sink_rows(project: Project) -> list[int]:
    return [
        event["details"]["flow_progress"]["metrics"]["num_output_rows"]
        for event in project.log("flow_progress")
        if event["origin"].get("sink_name") == "out"
        and "num_output_rows" in event["details"]["flow_progress"].get("metrics", {})
    ]


CHECKPOINT = Path(tempfile.mkdtemp(prefix="penstock-sink-"))
(CHECKPOINT / "offsets").mkdir()
(CHECKPOINT / "offsets" / "99").touch()


def writer(
    spark,
    server: DatabaseServer | CuttingProxy,
    table: str,
    *,
    epoch: str = "e",
    flow: str = "f",
    checkpoint: Path = CHECKPOINT,
    **more: str,
) -> JdbcSinkWriter:
    options = {"url": server.url, "dbtable": table, "user": USER, "password": PASSWORD, **more}
    origin = SourceLocation(file="p.py", line=1)
    declared = Flow(name=flow, target="out", function=lambda: None, origin=origin)
    return JdbcSinkWriter(
        Write(
            spark=spark,
            pipeline="p",
            flow=declared,
            epoch=epoch,
            checkpoint=str(checkpoint),
            schema=StructType(),
            format="jdbc",
            options=options,
        )
    )
