"""Put what explains a run into one archive to give away: its report and the logs that decided, redacted once more."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from vdbg_env.common.errors import BadInput
from vdbg_env.common.tar import tarfile
from vdbg_env.record.masking import redact_run
from vdbg_env.record.redactor import Redactor
from vdbg_env.record.run_directory import RunDirectory, prepared

_REPORTS = ("report.md", "report.html", "report.json", "report.sarif", "run.json")
_LOGS = ("stdout", "stderr", "kernel.log", "hang.txt", "ended.json", "argv.json", "env.json", "srun.txt")
_MOST = 8 << 20  # bytes of one log: its first and last half of that
_LEFT_OUT = b"\n[... %d bytes are left out here: vdbg-env runs export keeps the beginning and the end ...]\n"
README = "README.md"


@dataclass(frozen=True, kw_only=True)
class Export:
    """An archive that was written: its path and bytes, the files in it with their bytes, and what is to be noted."""

    path: str
    size: int
    files: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]


def export_run(
    run: RunDirectory,
    target: Path,
    redactor: Redactor,
    literals: tuple[bytes, ...],
    *,
    steps: Collection[str],
    cores: Collection[str],
    readme: str,
) -> Export:
    """Write the archive, whole or not at all: reports, the logs of `steps`, and the files of the run named by `cores`.

    Only a copy is redacted. Raises BadInput where the target exists or cannot be written.
    """
    if os.path.lexists(target):
        raise BadInput(f"{target} exists already", next_step="name another with -o FILE, or remove it first")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".vdbg-") as ours:
            folder = Path(ours, run.path.name)
            folder.mkdir()
            for path in (*_wanted(run.path, steps), *_named(run.path, cores)):
                _copy(path, folder / path.relative_to(run.path), whole=str(path.relative_to(run.path)) in cores)
            redacted = redact_run(folder, redactor, literals)
            (folder / README).write_text(redactor.text(readme), encoding="utf-8", errors="replace")
            files = tuple(
                (str(path.relative_to(folder)), path.stat().st_size)
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            )
            with prepared(target) as made:
                _pack(folder, made)
    except OSError as error:
        raise BadInput(
            f"{target} cannot be written: {error.strerror}", next_step="name a folder that exists and has room: -o FILE"
        ) from error
    return Export(path=str(target), size=target.stat().st_size, files=files, notes=redacted.notes)


def _wanted(run: Path, steps: Collection[str]) -> Iterator[Path]:
    yield from (path for name in _REPORTS if _is_file(path := run / name))
    for folder in sorted(run.glob("steps/*/*/*")):
        inside = folder.relative_to(run).parts
        if inside[1] in steps and not _through_link(run, folder):
            yield from (path for name in _LOGS if _is_file(path := folder / name))
    for path in sorted(run.glob("steps/*/*/*.json")):  # of several ranks: one command, one environment
        if path.relative_to(run).parts[1] in steps and _is_file(path) and not _through_link(run, path.parent):
            yield path


def _named(run: Path, names: Collection[str]) -> Iterator[Path]:
    """Yield files by the names that records give them; what leads out of the run is passed over."""
    for name in names:
        path = run / name
        if (
            ".." not in path.parts
            and path.is_relative_to(run)
            and _is_file(path)
            and not _through_link(run, path.parent)
        ):
            yield path


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _through_link(run: Path, folder: Path) -> bool:
    return any(part.is_symlink() for part in (folder, *folder.parents) if part.is_relative_to(run) and part != run)


def _copy(source: Path, target: Path, *, whole: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file, target.open("wb") as out:
        size = os.fstat(file.fileno()).st_size
        if whole or size <= _MOST or source.suffix in {".json", ".html", ".md", ".sarif"}:
            shutil.copyfileobj(file, out)
            return
        out.write(file.read(_MOST // 2))
        out.write(_LEFT_OUT % (size - _MOST))
        file.seek(size - _MOST // 2)
        shutil.copyfileobj(file, out)


def _pack(folder: Path, target: Path) -> None:
    """Write a tar of a folder, without owners and times: they say nothing of the run."""
    with (
        target.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                header = tarfile.TarInfo(str(path.relative_to(folder.parent)))
                header.size, header.mode = path.stat().st_size, 0o644
                with path.open("rb") as file:
                    archive.addfile(header, file)
