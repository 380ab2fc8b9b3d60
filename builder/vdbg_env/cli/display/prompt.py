"""The person at the terminal, who answers a runbook's questions."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable

from vdbg_env.common.printable import printable
from vdbg_env.runbook.state import AskPerson

_LOOK_S = 0.25  # how long a Ctrl-C may wait to be seen


class AtTerminal:
    """Asks on the error stream and reads one line; no answer in time is none, nor is one that was `interrupted`."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted

    def ask(self, question: AskPerson) -> str | None:
        """Return the choice made, or None after the question's time."""
        choices = ", ".join(f"[{c}]" if c == question.default else c for c in question.choices)
        while True:
            prompt = f"\n{question.prompt}\n  {choices} ({question.timeout_s:g} s): "
            print(printable(prompt, keep="\n"), end="", file=sys.stderr, flush=True)
            if not self._has_answer(question.timeout_s):
                if not self._interrupted():
                    print(f"no answer, taking {question.default}", file=sys.stderr)
                return None
            line = sys.stdin.readline()
            answer = line.strip()
            if answer in question.choices:
                return answer
            if not answer:
                return None
            print(f"{answer!r} is none of them", file=sys.stderr)

    def _has_answer(self, timeout_s: float) -> bool:
        """Wait for a line; signals are only noted, and would not end one long wait."""
        until = time.monotonic() + timeout_s
        while not self._interrupted() and (left := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], min(left, _LOOK_S))[0]:
                return not self._interrupted()
        return False


class Nobody:
    """Answers nothing: each question takes its default at once."""

    def ask(self, question: AskPerson) -> str | None:
        """Return None."""
        return None
