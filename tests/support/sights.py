"""What one attempt of one step saw, as scenarios write it down: `[texts..., how it ended, files...]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.builders.core_builder import hang_core, idle_core, illegal_address_core
from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.runbook.model import Watch
from vdbg_env.runbook.state import Invocation

LOGS = Path(__file__).parents[1] / "data" / "logs"
UNREACHED = "unreached"
CORES: Mapping[str, Callable[[], bytes]] = {
    "fault": illegal_address_core,
    "assert": lambda: illegal_address_core(exception=12),
    "misaligned": lambda: illegal_address_core(exception=6),
    "fault-no-lines": lambda: illegal_address_core(lines=False),
    "standing": hang_core,
    "standing-no-lines": lambda: hang_core(lines=False),
    "standing-in-nccl": lambda: hang_core(kernel="nccl"),
    "idle": idle_core,
    "broken": lambda: b"\x7fELF and no more",
}
_ENDED = re.compile(r"(exit|signal) (\d+)|watch|timeout|match|stopped|cancel|not started|disk")


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One attempt: what was printed, how it ended, the files it left, by name; `unreached`: no plug-in was loaded."""

    text: str
    ended: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    unreached: bool = False

    def check(self, invocation: Invocation) -> None:
        """Refuse an end that this step cannot come to: no watch, no limit on its time, no server that is driven."""
        by, step = self.ended["by"], invocation.step
        assert by != "watch" or invocation.watch != Watch(), f"{step} has no watch that could end it"
        assert by != "timeout" or invocation.timeout_s is not None, f"{step} has no timeout that could end it"
        assert by != "stopped" or invocation.driver is not None, f"{step} drives no server that would be stopped"
        for name in self.files:
            used = name in {"hang.txt", "kernel.log"} or any(
                Path(name).match(r.glob.removeprefix("**/")) for r in invocation.artifacts
            )
            assert used, f"{step} collects no {name}"

    def check_stop(self, invocation: Invocation, seen: Observation) -> None:
        """Refuse an end by a matcher where none stops the step, and another end where one would have."""
        stops = {m.name for m in invocation.matchers if m.stop} & seen.matched.keys()
        assert (seen.ended.by is EndedBy.MATCH) == bool(stops), f"{invocation.step}: {stops or 'nothing'} stops it"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The names that scenarios may use: texts, and sets of files (name on disk -> `core:NAME` or a text)."""

    texts: Mapping[str, str]
    files: Mapping[str, Mapping[str, str]]

    def sights(self, written: Sequence[Any]) -> tuple[Sight, ...]:
        """Read one sight, or a list of them for one attempt after the other."""
        many = written if isinstance(written[0], list) else [written]
        return tuple(self._sight(one) for one in many)

    def _sight(self, words: Sequence[str]) -> Sight:
        texts: list[str] = []
        files: dict[str, bytes] = {}
        unreached = False
        ended: dict[str, Any] | None = None
        for word in words:
            if found := _ENDED.fullmatch(word):
                assert ended is None, f"two ends in {words}"
                ended = _ended(found)
            elif word == UNREACHED:
                unreached = True
            elif word in self.texts:
                texts.append(self.texts[word])
            else:
                assert word in self.files, f"{word!r} is no text, no set of files and no way to end"
                files |= {name: self._data(source) for name, source in self.files[word].items()}
        assert ended is not None, f"how did it end? {words}"
        return Sight(text="".join(texts), ended=ended, files=files, unreached=unreached)

    def _data(self, source: str) -> bytes:
        kind, _, name = source.partition(":")
        return core(name) if kind == "core" else self.texts[source].encode()


@cache
def core(name: str) -> bytes:
    """Build a GPU core once: many scenarios leave the same."""
    return CORES[name]()


def _ended(found: re.Match[str]) -> dict[str, Any]:
    match found[0].split():
        case ["exit", code]:
            return {"by": "exit", "code": int(code)}
        case ["signal", number]:
            return {"by": "signal", "signal": int(number)}
        case ["watch" | "timeout" | "match" | "cancel" as by]:
            return {"by": by, "signal": 15}
        case ["stopped"]:
            return {"by": "stopped", "code": 0}
        case _:
            return {"by": found[0].replace(" ", "_"), "message": "seen by the scenario"}


def read_text(written: str | Mapping[str, str]) -> str:
    """Return a text: as it stands, or `log:` a file of the labelled corpus."""
    if isinstance(written, str):
        return written if written.endswith("\n") else written + "\n"
    return (LOGS / written["log"]).read_bytes().decode("utf-8", "surrogateescape")
