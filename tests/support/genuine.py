"""Find the logs and transcripts that others published, which are outside the project, and score triage on them.

They are third-party data under their owners' terms, so nothing of them is in the repository. A checkout that has them
next to it (`../shared/genuine`), or names their folder in VDBG_GENUINE, runs these tests; any other skips them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.triage import triage_bytes

BENIGN = {"not-a-gpu-failure", "unknown"}
CONFIDENT = 0.7
WHY_SKIPPED = "the published logs are not next to this checkout; name their folder in VDBG_GENUINE"


@dataclass(frozen=True)
class GenuineLog:
    """A labelled log with its acceptable classes and root lines; it has no root line if nothing failed."""

    file: Path
    failure: str
    acceptable: frozenset[str]
    root: frozenset[int]
    benign: bool
    whole: bool
    project: str


@dataclass(frozen=True)
class Answer:
    """A classifier's answer for one log."""

    log: GenuineLog
    failure: str
    line: int | None
    confidence: float

    @property
    def right(self) -> bool:
        """Whether the class is an acceptable one; a log in which nothing failed may also be called unknown."""
        return self.failure in self.log.acceptable or (self.log.benign and self.failure in BENIGN)

    @property
    def right_line(self) -> bool:
        return self.line in self.log.root

    @property
    def false_alarm(self) -> bool:
        return self.log.benign and self.failure not in BENIGN


@dataclass(frozen=True)
class Score:
    """Shares from 0 to 1; `wrong_confident` is of the answers at or above CONFIDENT, `root` of logs that have one."""

    logs: int
    classes: float
    root: float
    false_alarms: int
    confident: int
    wrong_confident: float
    calibration_error: float


def genuine_folder() -> Path | None:
    """Return the folder with the published texts, None where there is none."""
    named = os.environ.get("VDBG_GENUINE")
    folder = Path(named) if named else Path(__file__).parents[2].parent / "shared" / "genuine"
    return folder if (folder / "logs" / "index.jsonl").is_file() else None


def require_genuine() -> Path:
    """Return the folder with the published texts, or skip the test that asks."""
    folder = genuine_folder()
    if folder is None:
        pytest.skip(WHY_SKIPPED)
    return folder


def genuine_logs(folder: Path) -> list[GenuineLog]:
    """Return every labelled log of the folder, of both sets, in the order of its index."""
    found = []
    for part in ("logs", "logs-2"):
        for entry in _entries(folder / part / "index.jsonl"):
            line = entry["root_cause_line"]
            found.append(
                GenuineLog(
                    file=folder / part / entry["file"],
                    failure=entry["class"],
                    acceptable=frozenset([entry["class"], *entry["also_acceptable"]]),
                    root=frozenset([*([line] if line else []), *entry["root_cause_alternatives"]]),
                    benign=entry["benign"],
                    whole=entry["origin"] == "committed-log",
                    project=_project(entry["source"]),
                )
            )
    return found


def _project(source: dict[str, str]) -> str:
    """Return the repository that a log is of, or whose issue it was posted to."""
    return source.get("repository") or "/".join(source["thread"].split("/")[3:5])


def genuine_transcripts(folder: Path) -> list[dict[str, Any]]:
    """Return every transcript's entry, with its text under `text`."""
    return [
        entry | {"text": (folder / "transcripts" / entry["file"]).read_text(errors="replace")}
        for entry in _entries(folder / "transcripts" / "index.jsonl")
    ]


def ask_triage(log: GenuineLog) -> Answer:
    """Triage one log."""
    verdict = triage_bytes(log.file.read_bytes())
    line = verdict.root_cause.line if verdict.root_cause else None
    return Answer(log, verdict.failure.name, line, verdict.confidence)


def ask_first_match(log: GenuineLog) -> Answer:
    """Answer as a list of greps does: the first line that holds a known phrase names the class."""
    for number, text in enumerate(log.file.read_bytes().decode(errors="replace").split("\n"), 1):
        for failure, pattern in _FIRST_MATCH:
            if pattern.search(text):
                return Answer(log, failure, number, 0.9)
    return Answer(log, "not-a-gpu-failure", None, 0.9)


def answers(ask: Callable[[GenuineLog], Answer], logs: Iterable[GenuineLog]) -> list[Answer]:
    """Ask about every log."""
    return [ask(log) for log in logs]


def score(found: Sequence[Answer]) -> Score:
    """Score answers; the calibration error is the expected one over ten bins of equal width."""
    rooted = [a for a in found if a.log.root]
    confident = [a for a in found if a.confidence >= CONFIDENT]
    bins: dict[int, list[Answer]] = {}
    for answer in found:
        bins.setdefault(min(9, int(answer.confidence * 10)), []).append(answer)
    return Score(
        logs=len(found),
        classes=_share(a.right for a in found),
        root=_share(a.right_line for a in rooted),
        false_alarms=sum(a.false_alarm for a in found),
        confident=len(confident),
        wrong_confident=_share(not a.right for a in confident),
        calibration_error=sum(
            abs(sum(a.confidence for a in some) - sum(a.right for a in some)) for some in bins.values()
        )
        / max(1, len(found)),
    )


def reliability(found: Sequence[Answer]) -> list[tuple[float, int, float, float]]:
    """Return the reliability curve: lower edge of each bin, answers in it, mean confidence, share right."""
    rows = []
    for edge in range(10):
        some = [a for a in found if min(9, int(a.confidence * 10)) == edge]
        if some:
            mean = sum(a.confidence for a in some) / len(some)
            rows.append((edge / 10, len(some), mean, _share(a.right for a in some)))
    return rows


def _entries(index: Path) -> Iterable[dict[str, Any]]:
    return (json.loads(line) for line in index.read_text().splitlines())


def _share(right: Iterable[bool]) -> float:
    values = list(right)
    return sum(values) / len(values) if values else 0.0


_FIRST_MATCH = tuple(
    (failure, re.compile(pattern))
    for failure, pattern in (
        ("illegal-memory-access", r"illegal memory access|Xid .*: 31,"),
        ("misaligned-address", r"misaligned address|illegal instruction was|unspecified launch failure"),
        ("device-side-assert", r"device-side assert|Assertion `.*failed"),
        ("cuda-graph-capture", r"stream is capturing|previous error during capture"),
        ("no-kernel-image", r"no kernel image|device kernel image is invalid"),
        ("launch-config", r"too many resources requested|invalid configuration argument|out of resource:"),
        ("cublas-or-cudnn-failure", r"CUBLAS_STATUS_|CUDNN_STATUS_|cuDNN error"),
        ("triton-compile", r"ptxas fatal|PassManager::run failed|CompilationError|InductorError|C compiler"),
        ("out-of-memory", r"out of memory|No available memory for the cache|OutOfMemoryError"),
        ("nccl-failure", r"NCCL error|NCCL WARN|collective operation timeout|DistBackendError"),
        ("kernel-hang", r"No available shared memory broadcast|RPC call to .* timed out"),
        ("driver-problem", r"NVIDIA driver|No CUDA GPUs|nvidia-smi has failed|Xid|CUDA unknown error"),
        ("version-mismatch", r"undefined symbol|cannot open shared object|GLIBC.* not found|unsupported toolchain"),
        ("model-load", r"SafetensorError|gated repo|not a valid model identifier|RepositoryNotFound|are not supported"),
        ("host-crash", r"Segmentation fault|Killed process|std::bad_alloc|Bus error|core dumped|Aborted"),
        ("wrong-output", r"contains either `inf`, `nan`|not close|NaN"),
    )
)
