"""Check whether driver, toolkit, torch and vLLM fit one another, by the dated compatibility tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from vdbg_env.common.resources import data_dir, read_tables
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.image.knowledge import Knowledge, read_knowledge, version_key

RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")  # PyTorch's own CUDA, as its wheels bring it


@dataclass(frozen=True, kw_only=True)
class Versions:
    """What is installed; None where it is not, or could not be found out. `runtime` is the CUDA that torch brings."""

    vllm: str | None = None
    torch: str | None = None
    runtime: str | None = None
    toolkit: str | None = None
    driver: str | None = None

    @property
    def torch_cuda(self) -> str | None:
        """Return torch's CUDA as `13.0`: by its version's local part, else by the runtime installed with it."""
        local = re.search(r"\+cu(\d+)(\d)$", self.torch or "")
        if local:
            return f"{local[1]}.{local[2]}"
        return ".".join(self.runtime.split(".")[:2]) if self.runtime else None


@cache
def shipped_tables() -> Knowledge:
    """Read the shipped tables; raises BadDocument where one is wrong."""
    return read_knowledge(read_tables(data_dir("images") / "knowledge"))


def mismatches(versions: Versions, tables: Knowledge) -> tuple[Finding, ...]:
    """Return a warning for each pair that the tables rule out; what they do not speak of is no finding."""
    return (*_torch_of_vllm(versions, tables), *_driver(versions, tables), *_toolkit(versions))


def _torch_of_vllm(versions: Versions, tables: Knowledge) -> Iterator[Finding]:
    if versions.torch and versions.torch.endswith("+cpu"):
        yield _finding(f"torch {versions.torch} is built without CUDA", "install the torch of vLLM's own wheel")
        return
    row = tables.vllm.get(_release(versions.vllm))
    if row and versions.torch and _release(versions.torch) != row.torch:
        yield _finding(
            f"vLLM {versions.vllm} is built against torch {row.torch}, and {versions.torch} is installed",
            f"pip install torch=={row.torch}, or build vLLM against this torch",
        )


def _driver(versions: Versions, tables: Knowledge) -> Iterator[Finding]:
    row = tables.cuda.get(versions.torch_cuda or "")
    if row and versions.driver and version_key(versions.driver) < version_key(row.driver.least):
        yield _finding(
            f"torch's CUDA {row.version} needs driver {row.driver.least} or newer, and {versions.driver} is here",
            "a newer driver, a wheel for an older CUDA, or VLLM_ENABLE_CUDA_COMPATIBILITY=1 on a data-centre GPU",
        )


def _toolkit(versions: Versions) -> Iterator[Finding]:
    ours, theirs = versions.toolkit, versions.torch_cuda
    if ours and theirs and version_key(ours)[:1] != version_key(theirs)[:1]:
        yield _finding(
            f"nvcc is of CUDA {ours} and torch of CUDA {theirs}: what is compiled at run time will not fit",
            f"a toolkit of CUDA {theirs.partition('.')[0]} first on PATH and in CUDA_HOME",
        )


def _release(version: str | None) -> str:
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return found[0] if found else ""


def _finding(message: str, next_step: str) -> Finding:
    return Finding(
        rule="versions-do-not-fit",
        level=Level.WARNING,
        message=message,
        how_known=HowKnown.HOST_CHECK,
        confidence=0.85,
        next_step=next_step,
    )
