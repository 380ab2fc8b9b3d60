"""What Python programs may call, as `vdbg_env.NAME`: logs, cores, proofs and recorded runs as typed values.

Below 150 lines: alone, because programs rely on these names. All of them raise `VdbgError` or `GpucoreError` with
cause and next step for what the caller gave, and none of them asks a container engine or the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vdbg_env.crash.files import BinaryFiles, Scratch, SourceFiles

if TYPE_CHECKING:
    from gpucore.lineinfo import LineinfoReport
    from vdbg_env.crash.core import CoresRead
    from vdbg_env.evidence.triage_verdict import Triage
    from vdbg_env.run.history import RecordedRun


def triage_logs(logs: Sequence[str | Path]) -> Triage:
    """Name the failure of one run from its logs, as `vdbg-env triage` does.

    `failure.name` is the class, `root_cause` the line that says so, `confidence` is from 0 to 1. Raises BadInput where
    no log can be read.
    """
    from vdbg_env.crash import triage

    return triage.triage_logs([str(log) for log in logs])


def read_cores(paths: Sequence[str | Path], sources: Sequence[str | Path] = ()) -> CoresRead:
    """Read GPU cores, or all below folders, as `vdbg-env core` does; source lines are looked for below `sources`.

    `readings` are the cores in order of time, with `faults` and `warp_groups`; `addresses` has for each fault why its
    address was bad, or None. Raises BadInput where no core can be read.
    """
    from vdbg_env.crash import core

    return core.read_cores([str(path) for path in paths], SourceFiles([str(root) for root in sources]))


def verify_files(files: Sequence[str | Path], *, threads: int = 1) -> LineinfoReport:
    """Prove that each cubin with code in libraries, wheels or folders carries line info, as `vdbg-env verify` does.

    `verdict` is that of all of them together, `files` has each with its `missing` cubins. cuobjdump is not asked.
    Raises BadInput for a file that does not exist.
    """
    from vdbg_env.build.prove import VerifyRequest, verify_binaries
    from vdbg_env.common.programs import Programs

    request = VerifyRequest(targets=tuple(map(str, files)), witness="none", threads=threads)
    return verify_binaries(request, source=BinaryFiles(), programs=Programs(), scratch=Scratch())


def recorded_run(folder: str | Path) -> RecordedRun:
    """Return what was recorded of a run, even of one that was cut off; raises BadInput for what is no run's folder."""
    from vdbg_env.record.run_directory import RunDirectory
    from vdbg_env.run import history

    return history.recorded(RunDirectory(Path(folder)))


def run_report(folder: str | Path) -> Mapping[str, Any]:
    """Return the report of a run by the schema `vdbg-env/run/v1`; raises BadInput where none was written."""
    from vdbg_env.record.run_directory import RunDirectory

    return RunDirectory(Path(folder)).read_report()
