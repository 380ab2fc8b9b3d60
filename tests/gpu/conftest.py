"""What the GPU tests share: is there a GPU, the samples built for it, and the folder of evidence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.evidence import Evidence, versions
from tests.gpu.samples import Sample, build
from tests.support.toolchain import cuda_tool


def why_no_gpu() -> str | None:
    """Return why nothing can be run on a GPU here, or None when there is one that answers."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no NVIDIA GPU here: nvidia-smi is not installed (run `make gpu` where there is one)"
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "nvidia-smi does not answer"
    said = (done.stdout + done.stderr).strip()
    return None if done.returncode == 0 and "GPU 0" in said else f"no NVIDIA GPU answers: {said[:120]}"


@pytest.fixture(scope="session")
def arch() -> str:
    """The architecture of the first GPU, as `sm_90`; skips, with the reason, where there is none."""
    if reason := why_no_gpu():
        pytest.skip(reason)
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "--id=0"]
    return "sm_" + subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().replace(".", "")


@pytest.fixture(scope="session")
def evidence(arch: str) -> Iterator[Evidence]:
    """The folder of evidence: GPU_EVIDENCE, else `gpu-evidence` here; its table is printed at the end."""
    folder = Path(os.environ.get("GPU_EVIDENCE", "gpu-evidence")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    kept = Evidence(folder)
    kept.keep("versions.txt", versions())
    yield kept
    kept.tidy()
    print(f"\n{(folder / 'table.md').read_text() if kept.rows else ''}\nevidence in {folder}", file=sys.stderr)


class Builder:
    """Builds each sample once for this GPU."""

    def __init__(self, folder: Path, arch: str) -> None:
        self._folder = folder
        self._arch = arch

    def program(self, sample: Sample, *, lineinfo: bool = True) -> list[str]:
        """Return the command that starts a sample; skips where PyTorch is missing."""
        if sample.python:
            python = shutil.which("python3") or sys.executable
            if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
                pytest.skip("PyTorch is not installed")
            return [python, str(sample.source), *sample.args]
        program = self._folder / f"{sample.name}{'' if lineinfo else '-plain'}"
        if not program.exists():
            foreign = "sm_100" if self._arch != "sm_100" else "sm_90"
            build(cuda_tool("nvcc"), sample, program, foreign if sample.foreign else self._arch, lineinfo=lineinfo)
        return [str(program), *sample.args]


@pytest.fixture(scope="session")
def builder(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """The samples, built for the GPU that is here."""
    return Builder(tmp_path_factory.mktemp("programs"), arch)
