"""The evidence a GPU leaves: a folder of small files, a table of what was measured, each planted line judged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import table
from tests.gpu.machine import MARK, Machine
from tests.gpu.samples import Sample

SKIP_ALL = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,skip_constbank_memory"
LARGEST_KEPT = 12 << 20  # bytes: a core with the five skip flags is a few MiB


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One start of a program on the GPU; `status` is negative for a signal, None when it had to be killed."""

    status: int | None
    output: str
    seconds: float
    core: Path | None


@dataclass
class Evidence:
    """The folder, and what goes into its tables, in the order of measuring."""

    folder: Path
    machine: Machine
    rows: list[tuple[str, str]] = field(default_factory=list)
    judged: dict[str, table.Judged] = field(default_factory=dict)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def heading(self) -> str:
        """One line that says where all of this was seen."""
        if self.machine.rehearsal:
            return f"{MARK}: stand-ins answered and no GPU ran anything; this proves nothing about a GPU"
        return f"seen on {self.machine}"

    def tell(self, what: str, result: str) -> None:
        """Add a row, and write the table anew so that a suite cut short still leaves one."""
        self.rows.append((what, " ".join(result.split())))
        self.write_tables()

    def measure(self, topic: str, name: str, value: object) -> None:
        """Keep a figure or text for the answer sheet, in `measured.json`."""
        self.measured.setdefault(topic, {})[name] = value
        self.keep_json("measured.json", self.measured)

    def keep(self, name: str, text: str) -> None:
        """Keep a transcript as it is, but for a rehearsal's, whose first line says what it is."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{self.heading}\n{text}" if self.machine.rehearsal else text, errors="replace")

    def keep_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep a document, with where it was seen as one more field."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"where": self.heading, **document}, indent=1) + "\n")

    @contextmanager
    def judging(self, sample: Sample) -> Iterator[None]:
        """Note whether what is asserted inside holds: that a sample's planted fault was found."""
        by = sample.shown_by
        try:
            yield
        except pytest.skip.Exception as reason:
            self.judged[sample.name] = table.Judged(by=by, verdict=f"not judged: {reason.msg}")
            raise
        except Exception as error:
            self.judged[sample.name] = table.Judged(by=by, verdict=f"NOT FOUND: {_first_line(error)}")
            raise
        else:
            self.judged[sample.name] = table.Judged(by=by, verdict="found")
        finally:
            self.write_tables()

    def run(self, name: str, command: Sequence[str], env: Mapping[str, str], *, limit_s: float = 30) -> Ran:
        """Start a program and keep what it printed, and its core where that is small; `env` arms it, or is empty.

        Driver 580 writes a core for a program that has CUDA_COREDUMP_FILE and CUDA_COREDUMP_SHOW_PROGRESS alone.
        """
        core, transcript = self.folder / "cores" / f"{name}.nvcudmp", self.folder / "text" / f"{name}.txt"
        for path in (core, transcript):
            path.parent.mkdir(parents=True, exist_ok=True)
        armed = {"CUDA_COREDUMP_FILE": str(core), "CUDA_COREDUMP_SHOW_PROGRESS": "1", **env} if env else {}
        environment = {**os.environ, **armed}
        began = time.monotonic()
        # Into a file: a pipe stays open as long as any child of a program that was killed.
        with transcript.open("wb") as output, tempfile.TemporaryDirectory() as work:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=work
            )
            try:
                status: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = None
                end_session(process)
        seconds = time.monotonic() - began
        text = transcript.read_text(errors="replace")
        self.keep(f"text/{name}.txt", text)
        written = [path for path in (core, core.with_name(core.name + ".gz")) if path.is_file()]
        return Ran(status=status, output=text, seconds=seconds, core=written[0] if written else None)

    def keep_run(self, name: str, report: Mapping[str, Any], folder: Path) -> None:
        """Keep what a runbook left that is worth carrying: its report, its cores, the texts of driver and debugger."""
        self.keep_json(f"runs/{name}.json", report)
        for core in sorted(folder.rglob("core.cuda.*")):
            (self.folder / "cores").mkdir(exist_ok=True)
            shutil.copyfile(core, self.folder / "cores" / f"run-{name}.nvcudmp")
        for step in ("coredump", "hang_coredump"):
            for stream in sorted(folder.glob(f"steps/{step}/*/*/stderr")):
                self.keep(f"text/progress-{name}.txt", stream.read_text(errors="replace"))
        for transcript in sorted(folder.rglob("cuda-gdb.txt")):
            self.keep(f"text/cuda-gdb-{name}.txt", transcript.read_text(errors="replace"))

    def keep_recording(self, recording: Path) -> None:
        """Keep a recording of a runbook, labelled by where it was made; see scripts/import-gpu-evidence."""
        target = self.folder / (f"recording-{MARK}" if self.machine.rehearsal else "recording")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(recording, target)
        head = json.loads((target / "recording.json").read_text())
        where = f"{MARK} without a GPU" if self.machine.rehearsal else self.heading
        head |= {"recorded_on": where, "synthetic": self.machine.rehearsal}
        (target / "recording.json").write_text(json.dumps(head, indent=1) + "\n")

    def write_tables(self) -> None:
        """Write `table.md` from what is known so far."""
        (self.folder / "table.md").write_text(table.render(self.heading, self.rows, self.judged, self.seconds))

    def tidy(self) -> None:
        """Leave out cores too large to be carried away; their sizes stand in the table."""
        for core in (self.folder / "cores").rglob("*"):
            if core.is_file() and core.stat().st_size > LARGEST_KEPT:
                core.unlink()


def set_aside(folder: Path) -> None:
    """Rename what an earlier run left, by when it was written: it must not pass for this run's."""
    if folder.exists():
        written = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        folder.rename(folder.with_name(f"{folder.name}-{written:%Y%m%d-%H%M%S}"))


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all it started in its session, and wait for it."""
    with suppress(ProcessLookupError):  # it ended in between
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]
