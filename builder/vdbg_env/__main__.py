"""Runs the command line, as `python -m vdbg_env` and as the installed program."""

import sys
from signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal

# Ctrl-C while Python imports ends it as it ends any program, without a traceback; `main` answers it in words. What was
# started with Ctrl-C ignored (nohup) still ignores it.
if getsignal(SIGINT) is default_int_handler:
    signal(SIGINT, SIG_DFL)

from vdbg_env.cli import main

if getsignal(SIGINT) is SIG_DFL:
    signal(SIGINT, default_int_handler)

if __name__ == "__main__":
    sys.exit(main())
