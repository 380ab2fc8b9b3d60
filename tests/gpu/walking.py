"""Walks a runbook over a sample, on a GPU or over a stand-in, and holds its report against what was planted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucore.mangling import short_name
from tests.gpu.samples import Sample

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_LIMIT_S = 240


def vdbg_env(
    *argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the tool in a process of its own, as a user would."""
    command = [sys.executable, "-m", "vdbg_env", *argv]
    environment = {**os.environ, **(env or {}), "PYTHONPATH": python_path()}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, cwd=cwd, env=environment)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"no end within {_LIMIT_S} s: vdbg-env {' '.join(argv)}\n{error.stderr!r}") from error


def python_path() -> str:
    """Return what a process needs to import vdbg-env in whatever folder it is started.

    Packages beside the source are named by a relative path (docs/lab/gpu-proof.md), which holds in one folder only.
    """
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([str(ROOT / "builder"), *(str(Path(part).absolute()) for part in given)]))


def walk(sample: Sample, program: Sequence[str], folder: Path, *options: str, runbook: str | None = None) -> Any:
    """Run the ladder that fits a sample and return its report; everything of the run stays in `folder`.

    Another runbook may be named; without one, a hang gets the shipped step with a test's patience, and all else the
    short way of `illegal-memory-access`, straight to the core. PyTorch's samples get the two steps that matter alone:
    it takes seconds to start, and minutes under the sanitizer, which a core without lines would lead to.
    """
    if runbook:
        chosen = [runbook]
    elif sample.ends == "hang":
        chosen = ["quick-hang", "-f", str(HERE / "quick-hang.yaml")]
    elif sample.python:
        chosen = ["quick-core", "-f", str(HERE / "quick-core.yaml")]
    else:
        chosen = ["illegal-memory-access", "-i", "quick=true"]
    kept = ["--batch", "--json", "--run-dir", str(folder / "run")]
    done = vdbg_env("runbook", *chosen, *options, *kept, "--", *program, cwd=folder)
    (folder / "runbook.stderr").write_text(done.stderr)
    assert done.stdout, f"exit status {done.returncode}\n{done.stderr}"
    report = json.loads(done.stdout)
    assert report["schema"] == "vdbg-env/run/v1" and done.returncode == report["exit_status"]
    return report


def leading(report: Any) -> str:
    """Return the message of the finding that the report itself leads with."""
    return next((f["message"] for f in report["findings"] if f["id"] == report["lead"]), "nothing found")


# A store that nothing of its kernel waits for: driver 580 on an H100 tells an armed program of no fault, and it ends
# well. memcheck has thread and line.
LOST_WHEN_ARMED = {"two-streams", "exited-warp"}


def lead(report: Any, *, among: Collection[str] = ("gpu-core",)) -> Any:
    """Return the report's first finding of a core; fails with all that was found instead."""
    found = [f for f in report["findings"] if f["how_known"] in among and f["level"] == "error"]
    ways = "; ".join(f"{step['id']} {step['outcome'] or step['status']}" for step in report["steps"])
    seen = json.dumps({"findings": report["findings"], "steps": report["steps"]}, indent=1)
    assert found, f"no core gave a finding ({ways})\n{seen}"
    return found[0]


def assert_planted(report: Any, sample: Sample, *, lines: bool = True) -> None:
    """Fail unless the report names the kernel and, with line info, the planted line of a sample."""
    finding = lead(report, among={"gpu-core", *(("sanitizer",) if sample.name in LOST_WHEN_ARMED else ())})
    if sample.kernel:
        assert sample.kernel in short_name(finding["kernel"]), finding["kernel"]
    if not lines:
        assert finding["location"] is None and "no line info" in finding["message"]
    elif sample.has_lines:
        place = finding["location"]
        assert place, finding["message"]
        assert (Path(place["file"]).name, place["line"]) == (sample.planted_in.name, sample.planted), finding["chain"]


def exception_of(report: Any) -> str:
    """Return the name of the exception in the report's finding of a core: the words before the place."""
    return re.split(r" (?:at|near|in) ", lead(report)["message"], maxsplit=1)[0]


def notes(report: Any, start: str) -> list[str]:
    """Return the notes of all steps that begin with a word: what cuda-gdb said, what nvdisasm said."""
    return [note for step in report["steps"] for note in step["notes"] if note.startswith(start)]


def first_fault(said: str) -> Any:
    """Return the first fault of what `core --json` printed; fails with all of it where there is none."""
    document = json.loads(said or "{}")
    assert document.get("faults"), f"no fault in the core: {said[:2000]}"
    return document["faults"][0]


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    """Return whether a condition came true in time."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False
