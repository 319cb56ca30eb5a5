"""`python -m atoll`: the command line, where the command `atoll` is not on PATH."""

import sys

from atoll.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
