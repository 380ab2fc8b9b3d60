"""Start a rank: `python -I path/to/rank/__main__.py`; its orders arrive on standard input."""

import os
import sys

_HERE = os.path.abspath(__file__)  # noqa: PTH100
for _ in range(5):
    _HERE = os.path.dirname(_HERE)  # noqa: PTH120
sys.path.insert(0, _HERE)

from vdbg_env.adapters.placement.rank.rank import main  # noqa: E402

# All is on disk by now.
os._exit(main())
