"""Starts the supervisor: `python -I -S path/to/scribe/__main__.py DIRECTORY`, orders as JSON on standard input."""

import os
import sys

# -I and -S keep the user's site-packages and PYTHON* variables out; the package itself must then be pointed at.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))  # noqa: PTH100, PTH120

from vdbg_env.engines.scribe.supervisor import main

raise SystemExit(main(sys.argv[1]))
