"""The evidence a GPU leaves: a folder of small files, and a table of what each measurement gave."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SKIP_ALL = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory,skip_constbank_memory"
LARGEST_KEPT = 12 << 20  # bytes: a core with the five skip flags is a few MiB


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One start of a program on the GPU; `status` is negative for a signal, None when it had to be killed."""

    status: int | None
    output: str
    seconds: float
    core: Path | None

    @property
    def identity(self) -> str:
        """The two bytes of the core's ELF identity that say which ABI it follows, as `33 07`."""
        return self.core.read_bytes()[7:9].hex(" ") if self.core else "no core"


@dataclass
class Evidence:
    """The folder, and the rows of its table in the order they were measured."""

    folder: Path
    rows: list[tuple[str, str]] = field(default_factory=list)

    def tell(self, what: str, result: str) -> None:
        """Add a row, and write the table anew so that a suite cut short still leaves one."""
        self.rows.append((what, result))
        lines = [f"| {name} | {text} |" for name, text in self.rows]
        (self.folder / "table.md").write_text("\n".join(["| what | result |", "| --- | --- |", *lines]) + "\n")

    def keep(self, name: str, text: str) -> None:
        """Keep a transcript."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, errors="replace")

    def run(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, limit_s: float = 30, gzip: bool = False
    ) -> Ran:
        """Start a program with a core file of its own and keep what it printed, and its core where that is small."""
        import os

        core = self.folder / "cores" / f"{name}.nvcudmp"
        core.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **env, "CUDA_COREDUMP_FILE": str(core), "CUDA_COREDUMP_SHOW_PROGRESS": "1"}
        began = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, _ = process.communicate(timeout=limit_s)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            status = None
        seconds = time.monotonic() - began
        text = output.decode("utf-8", "replace")
        self.keep(f"text/{name}.txt", text)
        written = core.with_name(core.name + ".gz") if gzip else core
        return Ran(status=status, output=text, seconds=seconds, core=written if written.is_file() else None)

    def tidy(self) -> None:
        """Leave out cores too large to be carried away; their sizes stand in the table."""
        for core in (self.folder / "cores").glob("*"):
            if core.stat().st_size > LARGEST_KEPT:
                core.unlink()


def versions() -> str:
    """Return what the tools say of themselves; a missing one is said to be."""
    asked = [["nvidia-smi"], ["nvcc", "--version"], ["cuda-gdb", "--version"], ["compute-sanitizer", "--version"],
             ["nvdisasm", "--version"], ["uname", "-a"]]  # fmt: skip
    parts = []
    for command in asked:
        if shutil.which(command[0]) is None:
            parts.append(f"$ {' '.join(command)}\nnot installed\n")
            continue
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        parts.append(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    return "\n".join(parts)
