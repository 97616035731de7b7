"""`python -m penstock`."""

import sys

from penstock._cli.main import main

if __name__ == "__main__":
    sys.exit(main())
