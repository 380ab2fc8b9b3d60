"""What the GPU tests share: which GPU is here, the samples built for it, the evidence and its tables at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import answers
from tests.gpu.core_facts import core_facts
from tests.gpu.evidence import Evidence, set_aside
from tests.gpu.machine import MARK, Machine, look
from tests.gpu.needs import missing_tools
from tests.gpu.programs import Programs
from tests.gpu.samples import Sample
from tests.gpu.table import summary
from vdbg_env.common.errors import VdbgError

__all__ = ["arch", "evidence", "machine", "programs", "pytest_terminal_summary", "timed"]

_EVIDENCE = pytest.StashKey[Evidence]()
_TOOLKIT = Path("/usr/local/cuda")
_FILTER = Path("/proc/self/coredump_filter")  # inherited by every program that is started


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """The GPUs here; skips, with the reason, where there is none."""
    found = look()
    if isinstance(found, str):
        pytest.skip(found)
    before = os.environ["PATH"]
    # vdbg-env looks for its tools on the PATH; a toolkit that is installed is often not on it.
    toolkits = [Path(os.environ.get("CUDA_HOME", _TOOLKIT)), _TOOLKIT]
    os.environ["PATH"] = os.pathsep.join([before, *(str(path / "bin") for path in dict.fromkeys(toolkits))])
    # The driver ends a program by abort() after a dump, and a host core of gigabytes each time is not wanted. Memory is
    # left out of it rather than the core itself: whether the driver looks at RLIMIT_CORE is written nowhere.
    filtered = _FILTER.read_text() if _FILTER.exists() else None
    if filtered:
        _FILTER.write_text("0")
    yield found
    if filtered:
        _FILTER.write_text(f"0x{filtered.strip()}")
    os.environ["PATH"] = before


@pytest.fixture(scope="session")
def arch(machine: Machine) -> str:
    """The architecture of the first GPU, as `sm_90`."""
    return machine.arch


@pytest.fixture(scope="session")
def evidence(machine: Machine, pytestconfig: pytest.Config) -> Iterator[Evidence]:
    """The folder of evidence: GPU_EVIDENCE, else `gpu-evidence` here; a rehearsal's name says that it is one."""
    folder = Path(os.environ.get("GPU_EVIDENCE", "gpu-evidence")).absolute()
    if machine.rehearsal and MARK not in folder.name:
        folder = folder.with_name(f"{folder.name}-{MARK}")
    set_aside(folder)
    kept = Evidence(folder, machine)
    pytestconfig.stash[_EVIDENCE] = kept
    kept.measure("machine", "gpus", machine.gpus)
    kept.measure("machine", "driver", machine.driver)
    kept.keep("versions.txt", versions())
    for sentence in missing_tools():
        kept.tell("missing", sentence)
    yield kept
    kept.tidy()
    for core in sorted(path for path in (folder / "cores").rglob("*") if path.is_file()):
        name = str(core.relative_to(folder / "cores"))
        try:
            kept.measure("cores", name, core_facts(core))
        except (VdbgError, OSError, EOFError) as error:
            kept.tell(f"core {name}", f"cannot be read: {error}")
    kept.keep("answers.md", answers.render(kept.heading, answers.answers(folder)))
    kept.write_tables()


@pytest.fixture(scope="session")
def programs(arch: str, request: pytest.FixtureRequest) -> Iterator[Programs]:
    """The samples, built for the GPU that is here; those that tests will ask for are begun at once."""
    made = Programs(arch)
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [call.params["sample"] for call in calls if call and "sample" in call.params]
    made.prepare(sample for sample in chosen if isinstance(sample, Sample))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def timed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Note how long each test takes, where there is evidence to note it in."""
    began = time.monotonic()
    yield
    kept = request.config.stash.get(_EVIDENCE, None)
    if kept:
        kept.seconds[request.node.name] = time.monotonic() - began


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the tables last, where they are looked for."""
    kept = config.stash.get(_EVIDENCE, None)
    if kept is None:
        return
    terminalreporter.section("evidence")
    for path in (kept.folder / "table.md", kept.folder / "answers.md"):
        terminalreporter.write_line(path.read_text() if path.exists() else f"{path} was not written")
    terminalreporter.write_line(f"{kept.heading}\n{summary(kept.heading, kept.judged)}\nevidence in {kept.folder}")


def versions() -> str:
    """Return what the tools say of themselves; a missing one is said to be."""
    asked = [["nvidia-smi"], ["nvcc", "--version"], ["cuda-gdb", "--version"], ["compute-sanitizer", "--version"],
             ["nvdisasm", "--version"], ["uname", "-a"]]  # fmt: skip
    parts = []
    for command in asked:
        if shutil.which(command[0]) is None:
            parts.append(f"$ {' '.join(command)}\nnot installed\n")
            continue
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            parts.append(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
        except subprocess.TimeoutExpired:
            parts.append(f"$ {' '.join(command)}\nno answer within a minute\n")
    return "\n".join(parts)
