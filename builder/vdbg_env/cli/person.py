"""The person at the terminal, who answers a runbook's questions."""

from __future__ import annotations

import select
import sys

from vdbg_env.runbook.state import AskPerson


class AtTerminal:
    """Asks on the error stream and reads one line; no answer in time is none."""

    def ask(self, question: AskPerson) -> str | None:
        """Return the choice made, or None after the question's time."""
        choices = ", ".join(f"[{c}]" if c == question.default else c for c in question.choices)
        while True:
            print(f"\n{question.prompt}\n  {choices} ({question.timeout_s:g} s): ", end="", file=sys.stderr, flush=True)
            if not select.select([sys.stdin], [], [], question.timeout_s)[0]:
                print(f"no answer, taking {question.default}", file=sys.stderr)
                return None
            line = sys.stdin.readline()
            answer = line.strip()
            if answer in question.choices:
                return answer
            if not answer:
                return None
            print(f"{answer!r} is none of them", file=sys.stderr)


class Nobody:
    """Answers nothing: each question takes its default at once."""

    def ask(self, question: AskPerson) -> str | None:
        """Return None."""
        return None
