"""Runs the command line, as `python -m vdbg_env` and as the installed program."""

import gc
import sys
from signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal

# Ctrl-C while Python imports ends it as it ends any program, without a traceback; `main` answers it in words. What was
# started with Ctrl-C ignored (nohup) still ignores it.
if getsignal(SIGINT) is default_int_handler:
    signal(SIGINT, SIG_DFL)

# What imports make stays. To look through it again and again takes 6 % of a start; a command has it enabled.
gc.disable()

from vdbg_env.cli import main  # noqa: E402

if getsignal(SIGINT) is SIG_DFL:
    signal(SIGINT, default_int_handler)

if __name__ == "__main__":
    sys.exit(main())
