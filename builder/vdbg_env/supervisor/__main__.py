"""Starts the supervisor: `python -I -S path/to/scribe/__main__.py`, told what to do on its standard input."""

import os
import sys

# -I and -S keep the user's site-packages and PYTHON* variables out; the package itself must then be pointed at.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))  # noqa: PTH100, PTH120

from vdbg_env.engines.scribe.supervisor import main

# All is on disk by now. To take the interpreter down piece by piece would have the engine wait for nothing.
os._exit(main())
