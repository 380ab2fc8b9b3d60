"""Write which processes of a tree wrote a GPU core dump on request: as text and as JSON."""

from __future__ import annotations

from typing import Literal

from vdbg_env.application.host.trigger_dumps import DumpReport, DumpStatus, ProcessDump, line
from vdbg_env.common.printable import printable
from vdbg_env.report.codec.document import Document, field


class Process(Document, of=ProcessDump):
    """One process that was armed, or that may not be looked at."""

    pid: int = field("target.pid", doc="Its number where the command runs.")
    name: str = field("target.name")
    namespace_pid: int = field("target.namespace_pid", doc="Its number in its container; pid outside of one.")
    status: DumpStatus = field(
        doc="written: the dump is whole. incomplete: time was up or the process ended first. fired: asked for and not "
        "waited for. no-file: asked for, but no dump appeared. failed: the pipe could not be written. stale: no one "
        "reads its pipe. no-pipe: armed, but CUDA has not started in it. forbidden: it may not be looked at."
    )
    pipe: str | None = field("target.pipe", doc="As the process sees it.")
    bytes_written: int = field("written", doc="How many bytes went into the pipe.")
    file: str | None = field(lambda of, _: of.file and of.file.path, doc="The dump as the process sees it.")
    reachable: str | None = field(
        lambda of, _: of.file and of.file.reachable,
        doc="The dump as the command reaches it: through /proc where the process is in a container.",
    )
    size: int | None = field(lambda of, _: of.file and of.file.size, doc="In bytes.")
    complete: bool | None = field(lambda of, _: of.file and of.file.complete)
    why: str | None = field(doc="What did not work; null for written and fired.")


class Triggered(Document, of=DumpReport):
    """GPU core dumps asked for, the root of the tree first. Fields are only ever added.

    A tree without an armed process prints no document: the exit status is 2 and the reason is on stderr.
    """

    schema: Literal["vdbg-env/dump/v1"]
    pid: int = field(doc="The root of the tree, as it was asked for.")
    not_armed: int = field(doc="How many other processes of the tree are not armed.")
    processes: list[Process]


def as_text(report: DumpReport) -> str:
    """Return a line for each process, and the command that reads the dumps."""
    lines = [line(process) for process in report.processes]
    files = [p.file.reachable for p in report.processes if p.file and p.file.complete]
    if report.not_armed:
        lines.append(f"({report.not_armed} other process(es) of the tree are not armed)")
    if files:
        lines.append(f"read with: vdbg-env core {' '.join(files)}")
    return "".join(printable(line) + "\n" for line in lines)
