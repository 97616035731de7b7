"""`cluster`: a standalone Spark cluster on this machine, for development."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock._cli import exit_codes, options

if TYPE_CHECKING:
    from penstock._local.cluster import Cluster

_cluster = typer.Typer(help="Manage a standalone Spark cluster on this machine for development.")

Directory = Annotated[
    Path, typer.Option("--dir", help="Folder of logs and executors.", metavar="DIR")
]
_DIRECTORY = Path(".penstock/cluster")

app = typer.Typer()
app.add_typer(_cluster, name="cluster", no_args_is_help=True)


@_cluster.command(
    "start", epilog="Examples: penstock cluster start | penstock cluster start --workers 3"
)
def start(
    directory: Directory = _DIRECTORY,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Number of workers.")
    ] = 2,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Concurrent tasks per worker.")] = 1,
    memory: Annotated[
        str, typer.Option("--memory", help="Memory for executors, per worker.", metavar="SIZE")
    ] = "1g",
    output: options.Output = "text",
) -> None:
    """Start a master and its workers unless they are running, and print the master's URL."""
    from penstock._local.cluster import start_cluster

    _print(start_cluster(directory, workers=workers, cores=cores, memory=memory), output)


@_cluster.command("stop", epilog="Example: penstock cluster stop")
def stop(directory: Directory = _DIRECTORY, output: options.Output = "text") -> None:
    """Stop master, workers and executors."""
    from penstock._local.cluster import stop_cluster

    stopped = stop_cluster(directory)
    line = "cluster stopped" if stopped else "no cluster is running"
    options.show(output, {"stopped": stopped}, [line])


@_cluster.command("status", epilog="Example: penstock cluster status --output json")
def status(directory: Directory = _DIRECTORY, output: options.Output = "text") -> int:
    """Print the state of the cluster; exit code 3 if it is not running."""
    from penstock._local.cluster import cluster_status

    cluster = cluster_status(directory)
    if cluster is None:
        if output == "json":
            options.print_json({"running": False}, indent=None)
        else:
            print(f"not running ({directory}): penstock cluster start", file=sys.stderr)
        return exit_codes.ENVIRONMENT
    _print(cluster, output)
    return exit_codes.OK


def _print(cluster: "Cluster", output: options.OutputFormat) -> None:
    body = {
        "running": True,
        "master": cluster.master,
        "workers": cluster.workers,
        "directory": str(cluster.directory),
    }
    lines = [
        f"cluster ready at {cluster.master} ({cluster.workers} workers, {cluster.directory})",
        f"run on it: penstock run --conf spark.master={cluster.master}",
    ]
    options.show(output, body, lines)
