"""Start the supervisor: `python -I -S path/to/supervisor/__main__.py [FOLDER...]`; its job arrives on standard input.

A FOLDER has packages that make it faster: RE2, where it is made for this Python.
"""

import os
import sys

# -I and -S keep the user's site-packages and PYTHON* variables out; the package itself must then be pointed at.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
sys.path += sys.argv[1:]  # last: no package takes the place of a standard module

from vdbg_env.supervisor.loop import main

# All is on disk by now. To take the interpreter down piece by piece would have the engine wait for nothing.
os._exit(main())
