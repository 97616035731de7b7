"""All benchmarks, one after the other; each prints both sides and their ratios.

python bench/run.py [--quick]
"""

import argparse
import subprocess
import sys
from pathlib import Path

QUICK = {
    "writer.py": ["--blocks", "3", "--rounds", "3"],
    "update.py": ["--rounds", "1"],
    "watching.py": ["--seconds", "60"],
}


def main() -> None:
    """Run them in processes of their own, so that none warms up another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    arguments = parser.parse_args()
    for script, quick in QUICK.items():
        command = [sys.executable, str(Path(__file__).with_name(script))]
        print(f"== bench/{script}", flush=True)
        subprocess.run(command + (quick if arguments.quick else []), check=True)


if __name__ == "__main__":
    main()
