"""`python -m penstock`, and the command `penstock`."""

import sys


def main() -> int:
    """Run a command and return its exit code; an interrupted import prints no traceback."""
    try:
        from penstock._cli.main import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
