"""Runs the command line as `python -m vdbg_env`."""

import sys

from vdbg_env.cli import main

if __name__ == "__main__":
    sys.exit(main())
