#!/usr/bin/env python3
"""Fails as a recorded log says: prints the file SAYS_LOG and ends as SAYS_END tells, `STATUS` or `signal NUMBER`.

With SAYS_GONE_WITH in a word of its command line, or the name of a variable that is set, it runs well instead.
"""

import os
import signal
import sys


def main() -> int:
    overlay = os.environ.get("VDBG_VLLM_ENGINE_ARGS", "")
    if overlay:
        print(f"vdbg-env: engine arguments applied: {overlay}", file=sys.stderr, flush=True)
    cure = os.environ.get("SAYS_GONE_WITH", "")
    if cure and (cure in os.environ or any(cure in word for word in sys.argv)):
        print("(APIServer pid=1) INFO:     Application startup complete.", flush=True)
        return 0
    with open(os.environ["SAYS_LOG"], "rb") as file:  # noqa: PTH123
        sys.stderr.buffer.write(file.read())
    sys.stderr.flush()
    how, _, number = os.environ.get("SAYS_END", "1").rpartition(" ")
    if how == "signal":
        signal.signal(int(number), signal.SIG_DFL)
        os.kill(os.getpid(), int(number))
    return int(number)


if __name__ == "__main__":
    raise SystemExit(main())
