"""The entry point of a file written by `penstock package`.

`spark-submit shop.py --continuous` is `penstock run --continuous` on the master of spark-submit. A
first argument that is not an option is another command: `spark-submit shop.py dry-run`.
"""

import os
import sys
from importlib.util import find_spec
from typing import Any

import typer

from penstock._cli import exit_codes
from penstock._cli.main import app
from penstock._cli.main import main as command_line

_OF_PENSTOCK = ("--version", "--help", "-h")


def main() -> int:
    """Run a command on the packed project; returns the exit code."""
    arguments = sys.argv[1:]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in _OF_PENSTOCK):
        arguments = ["run", *arguments]
    if find_spec("pyspark") is None:
        text = "Spark is not part of the file: run it with spark-submit, or add Spark to PYTHONPATH"
        print(f"Error: {text}", file=sys.stderr)
        return exit_codes.ENVIRONMENT
    # Python functions need the packages of the file, so the Python of spark-submit is not used.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from penstock._spark.submit import is_submitted, join_submit

    if is_submitted():
        conf = join_submit(os.environ.get("PEX", sys.argv[0]))
        command: Any = typer.main.get_command(app)
        words = 0  # number of words in the command's name, such as `checkpoint reset`
        for word in arguments:
            if word not in getattr(command, "commands", {}):
                break
            command, words = command.commands[word], words + 1
        if any(option.name == "conf" for option in command.params):
            options = [word for item in conf.items() for word in ("--conf", "=".join(item))]
            arguments[words:words] = options
    return command_line(arguments)
