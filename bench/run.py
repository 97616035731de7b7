"""All benchmarks, one after the other; each prints both sides and their ratios.

python bench/run.py [--quick | --smoke]
"""

import argparse
import subprocess
import sys
from pathlib import Path

FULL: dict[str, list[str]] = {
    "writer.py": [],
    "writer.py --s3": [],
    "upserts.py": ["--rounds", "9", "--batches", "300"],
    "views.py": [],
    "update.py": [],
    "watching.py": [],
    "tables.py": [],
    "files.py": [],
}
QUICK = {
    "writer.py": ["--blocks", "3", "--rounds", "3"],
    "writer.py --s3": ["--blocks", "3", "--rounds", "3"],
    "upserts.py": ["--rounds", "5"],
    "views.py": ["--rounds", "3", "--rows", "1000000"],
    "update.py": ["--rounds", "1"],
    "watching.py": ["--seconds", "60"],
    "tables.py": ["--seconds", "60", "--warm-up", "40"],
    "files.py": ["--rounds", "3"],
}
SMOKE = {
    "writer.py": ["--blocks", "1", "--rounds", "1"],
    "writer.py --s3": ["--blocks", "1", "--rounds", "1"],
    "upserts.py": ["--rounds", "1", "--rows", "20000", "--batches", "2"],
    "views.py": ["--rounds", "1", "--rows", "2000", "--only", "filter,10k groups,window"],
    "update.py": ["--rounds", "1", "--rows", "200"],
    "watching.py": ["--seconds", "5", "--warm-up", "5", "--rows", "20"],
    "tables.py": ["--tables", "6", "--seconds", "20", "--warm-up", "20"],
    "files.py": ["--rounds", "1", "--rows", "4000"],
}


def main() -> None:
    """Run them in processes of their own, so that none warms up another."""
    parser = argparse.ArgumentParser(description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="fewer repetitions")
    size.add_argument("--smoke", action="store_true", help="whether they run; figures mean nothing")
    arguments = parser.parse_args()
    sizes = SMOKE if arguments.smoke else QUICK if arguments.quick else FULL
    for command, options in sizes.items():
        print(f"== bench/{command}", flush=True)
        script, *mode = command.split()
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name(script)), *mode, *options], check=True
        )


if __name__ == "__main__":
    main()
