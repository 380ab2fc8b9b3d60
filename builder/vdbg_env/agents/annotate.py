"""Turn cores and logs that tests left into annotations: for GitHub Actions here, for pytest in `pytest_plugin`.

    python -m vdbg_env.agents.annotate PATH...

prints one `::error` command for each crash, adds a table to GITHUB_STEP_SUMMARY and `crashes`, `class`, `kernel`,
`file` and `line` of the first to GITHUB_OUTPUT. The exit status is 0, also where nothing was found: the step before
has failed already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vdbg_env.common.console import note, printable
from vdbg_env.common.errors import ANY_ERROR
from vdbg_env.crash.core import Core, read_cores
from vdbg_env.crash.files import SourceFiles, is_dump
from vdbg_env.crash.triage import log_files, triage_logs
from vdbg_env.evidence.finding import NO_FAILURE
from vdbg_env.evidence.gpu_findings import gpu_core_findings


@dataclass(frozen=True, kw_only=True)
class Crash:
    """One crash: its class, a sentence, why its address was bad, and its kernel and source line where those are known.

    `file` is the source as the line table has it, or the log whose line says so. `origin` is the file that was read.
    """

    kind: str
    message: str
    origin: str
    why: tuple[str, ...] = ()
    kernel: str | None = None
    file: str | None = None
    line: int | None = None


def crashes(paths: Sequence[str], sources: Sequence[str] = ()) -> Iterator[Crash]:
    """Yield the crashes of cores and logs, or of those below folders, cores first.

    A core without an exception is none, and neither is a log that leaves a guess. Raises BadInput for what cannot be
    read.
    """
    cores = [core for path in paths for core in _cores(path)]
    if cores:
        for core in read_cores(cores, SourceFiles(list(sources))).readings:
            yield from of_core(core)
    for path in paths:
        if path not in cores:
            yield from of_logs([str(log) for log in log_files(Path(path)) if not is_dump(log)])


def of_core(core: Core) -> Iterator[Crash]:
    """Yield a crash for each exception of a core."""
    whys = (*core.addresses, *(None for _ in core.faults[len(core.addresses) :]))
    for fault, why in zip(core.faults, whys, strict=True):
        (finding,) = gpu_core_findings([fault], (), core.file)
        yield Crash(
            kind=finding.rule,
            message=finding.message,
            origin=core.file,
            why=why.lines if why else (),
            kernel=finding.kernel,
            file=finding.location.file if finding.location else None,
            line=finding.location.line if finding.location else None,
        )


def of_logs(logs: Sequence[str]) -> Iterator[Crash]:
    """Yield what the logs of one run tell of, if that is more than a guess."""
    verdict = triage_logs(logs) if logs else None
    if verdict and verdict.root_cause and verdict.failed and verdict.failure.name != NO_FAILURE:
        root = verdict.root_cause
        yield Crash(
            kind=verdict.failure.name,
            message=f"{verdict.said}: {root.text.strip()}",
            origin=root.file,
            kernel=verdict.kernel,
            file=root.file,
            line=root.line,
        )


def _cores(path: str) -> tuple[str, ...]:
    """Return the cores that a path names; none for a log, and none where a folder has none."""
    if not Path(path).is_dir():
        return (path,) if is_dump(Path(path)) else ()
    return tuple(str(file) for file in sorted(Path(path).rglob("*")) if is_dump(file))


def command(crash: Crash, workspace: Path, otherwise: tuple[str, int] | None = None) -> str:
    """Return the workflow command of a crash, at its source if that is in the workspace, else at `otherwise`."""
    inside = _inside(crash.file, workspace) if crash.file else None
    at = (inside, crash.line) if inside else otherwise
    place = {**({"file": at[0], "line": str(at[1])} if at else {}), "title": crash.kind}
    text = "\n".join((crash.message, *crash.why))
    properties = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in place.items())
    return f"::error {properties}::{_escaped(text)}"


def summary(found: Sequence[Crash]) -> str:
    """Return the crashes as a table of Markdown."""
    rows = [f"| {_cell(crash.message)} | {_cell(crash.kernel or '')} | {_cell(_at(crash))} |" for crash in found]
    return "\n".join(["### GPU crashes", "", "| what | kernel | where |", "| --- | --- | --- |", *rows, ""])


def outputs(found: Sequence[Crash]) -> Mapping[str, str]:
    """Return the outputs of the step: how many crashes, and what is known of the first."""
    first = found[0] if found else Crash(kind="", message="", origin="")
    return {
        "crashes": str(len(found)), "class": first.kind, "kernel": first.kernel or "", "file": first.file or "",
        "line": str(first.line or ""),
    }  # fmt: skip


def main(paths: Sequence[str], environment: Mapping[str, str]) -> int:
    """Annotate what the paths hold; what cannot be read is a note on stderr."""
    workspace = Path(environment.get("GITHUB_WORKSPACE") or Path.cwd())
    found: list[Crash] = []
    for path in paths:
        try:
            found += crashes([path], [str(workspace)])
        except ANY_ERROR as error:
            note(printable(f"{path}: {error.what}"))
    for crash in found:
        print(command(crash, workspace))
    if found and (page := environment.get("GITHUB_STEP_SUMMARY")):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(summary(found))
    if variables := environment.get("GITHUB_OUTPUT"):
        with Path(variables).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={printable(value)}\n" for name, value in outputs(found).items())
    return 0


def _inside(file: str, workspace: Path) -> str | None:
    """Return the path of a source in the workspace, also where it was built below another folder."""
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(workspace):
        return str(path.relative_to(workspace))
    parts = [part for part in path.parts if part not in {"/", ".", ".."}]
    ends = (Path(*parts[start:]) for start in range(len(parts)))
    return next((str(end) for end in ends if (workspace / end).is_file()), None)


def _at(crash: Crash) -> str:
    return f"{crash.file}:{crash.line}" if crash.file else crash.origin


def _escaped(text: str, more: str = "") -> str:
    """Escape what ends a workflow command or a property of it, and what a terminal would act on."""
    shown = printable(text, keep="\n").replace("%", "%25").replace("\n", "%0A")
    for mark in more:
        shown = shown.replace(mark, f"%{ord(mark):02X}")
    return shown


def _cell(text: str) -> str:
    """Return text in a cell as code, so that Markdown and HTML in it stay text."""
    return f"`` {printable(text).replace('`', 'ˋ').replace('|', chr(92) + '|')} ``" if text else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
