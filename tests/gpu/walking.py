"""Walks a runbook over a sample, on a GPU or over a stand-in, and holds its report against what was planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.samples import FOLDER, Sample
from vdbg_env.cuda.demangle import short_name

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_LIMIT_S = 240


def vdbg_env(
    *argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the tool in a process of its own, as a user would."""
    path = os.pathsep.join(filter(None, (str(ROOT / "builder"), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-m", "vdbg_env", *argv]
    environment = {**os.environ, **(env or {}), "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, cwd=cwd, env=environment)


def walk(sample: Sample, program: Sequence[str], folder: Path) -> Any:
    """Run the ladder that fits a sample and return its report; everything of the run stays in `folder`."""
    runbook = (
        ["quick-hang", "-f", str(HERE / "quick-hang.yaml")] if sample.ends == "hang" else ["illegal-memory-access"]
    )
    quick = [] if sample.ends == "hang" else ["-i", "quick=true"]
    done = vdbg_env(
        "runbook", *runbook, *quick, "--batch", "--json", "--run-dir", str(folder / "run"), "--", *program, cwd=folder
    )
    (folder / "runbook.stderr").write_text(done.stderr)
    assert done.stdout, f"exit status {done.returncode}\n{done.stderr}"
    report = json.loads(done.stdout)
    assert report["schema"] == "vdbg-env/run/v1" and done.returncode == report["exit_status"]
    return report


def lead(report: Any) -> Any:
    """Return the report's first finding of a core; fails with all that was found instead."""
    found = [f for f in report["findings"] if f["how_known"] == "gpu-core" and f["level"] == "error"]
    assert found, json.dumps({"findings": report["findings"], "steps": report["steps"]}, indent=1)
    return found[0]


def assert_planted(report: Any, sample: Sample, *, lines: bool = True) -> None:
    """Fail unless the report names exception, kernel and, with line info, the planted line of a sample."""
    finding = lead(report)
    if sample.exceptions:
        assert any(name in finding["message"] for name in sample.exceptions), finding["message"]
    if sample.kernel:
        assert sample.kernel in short_name(finding["kernel"]), finding["kernel"]
    if not lines:
        assert finding["location"] is None and "no line info" in finding["message"]
    elif not sample.python:  # PyTorch's own kernels have no line info in its wheels
        place = finding["location"]
        assert place, finding["message"]
        assert (Path(place["file"]).name, place["line"]) == (sample.source.name, sample.planted), finding["chain"]


def notes(report: Any, start: str) -> list[str]:
    """Return the notes of all steps that begin with a word: what cuda-gdb said, what nvdisasm said."""
    return [note for step in report["steps"] for note in step["notes"] if note.startswith(start)]


def source_of(sample: Sample) -> str:
    """Return a sample's path as the manifest's folder has it."""
    return str(sample.source.relative_to(FOLDER))
