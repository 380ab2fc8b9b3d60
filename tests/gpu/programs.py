"""Builds the samples: many at once, each once, kept as long as source, compiler and flags are the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gpu.needs import ROOT
from tests.gpu.samples import FOLDER, Sample
from tests.support.reaper import STAYS
from tests.support.toolchain import cuda_tool


@dataclass(frozen=True, kw_only=True)
class Order:
    """One compilation: a program with machine code for `arch` alone, or with `cubin` that code by itself."""

    sample: Sample
    arch: str
    lineinfo: bool = True
    cubin: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's flags."""
        number = self.arch.removeprefix("sm_")
        what = ("-cubin", f"-arch={self.arch}") if self.cubin else (f"-gencode=arch=compute_{number},code={self.arch}",)
        return ("-std=c++17", *what, *(["-lineinfo"] if self.lineinfo else []))


class Compiler:
    """nvcc, and a folder of what it made: GPU_SAMPLES_CACHE, else `.cache/gpu-samples`."""

    def __init__(self, nvcc: str) -> None:
        self._nvcc = nvcc
        self._folder = Path(os.environ.get("GPU_SAMPLES_CACHE", ROOT / ".cache" / "gpu-samples"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self._made: dict[Order, Future[Path]] = {}

    def start(self, orders: Iterable[Order]) -> None:
        """Begin compilations in the background."""
        for order in orders:
            if order not in self._made:
                self._made[order] = self._pool.submit(self._make, order)

    def get(self, order: Order) -> Path:
        """Return what a compilation made; raises AssertionError with the compiler's words when it failed."""
        self.start([order])
        return self._made[order].result()

    def close(self) -> None:
        """Drop what nobody waits for any more."""
        self._pool.shutdown(cancel_futures=True)

    def _make(self, order: Order) -> Path:
        sources = (order.sample.source, FOLDER / "crash.h")
        parts = (self._version.encode(), *(path.read_bytes() for path in sources), str(order.sample.source).encode())
        key = hashlib.sha256(b"\0".join((*parts, " ".join(order.flags).encode()))).hexdigest()[:16]
        target = self._folder / f"{order.sample.source.stem}-{key}"
        if target.exists():
            return target
        new = target.with_name(f"{target.name}.{os.getpid()}.new")
        command = [self._nvcc, *order.flags, "-o", str(new), str(order.sample.source)]
        # It goes on beside tests that need no program yet: none of them has left it behind.
        env = {**os.environ, STAYS: "yes"}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        new.rename(target)
        return target


class Programs:
    """The samples as commands for the GPU that is here."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self._compiler: Compiler | None = None
        self._python: tuple[str | None, str] | None = None

    def prepare(self, chosen: Iterable[Sample]) -> None:
        """Begin to compile what will be asked for, where there is a compiler."""
        if self._has_nvcc():
            self._compile().start(self._order(sample) for sample in chosen if not sample.python)

    def command(self, sample: Sample, *, lineinfo: bool = True) -> list[str]:
        """Return the command that starts a sample; skips, with the reason, where it cannot be had."""
        if not sample.python:
            return [str(self._compile().get(self._order(sample, lineinfo=lineinfo))), *sample.args]
        self._python = self._python or python_with_torch()
        python, why = self._python
        if python is None:
            pytest.skip(why)
        if sample.planted_in != sample.source and _cannot(python, "import triton"):
            pytest.skip("Triton is not installed")
        return [python, str(sample.source), *sample.args]

    def close(self) -> None:
        """End the compiler's threads."""
        if self._compiler:
            self._compiler.close()

    def _order(self, sample: Sample, *, lineinfo: bool = True) -> Order:
        # Of another generation than the GPU, and known to every compiler since CUDA 11.
        foreign = "sm_80" if self.arch.startswith("sm_7") else "sm_75"
        return Order(sample=sample, arch=foreign if sample.foreign else self.arch, lineinfo=lineinfo)

    def _compile(self) -> Compiler:
        self._compiler = self._compiler or Compiler(cuda_tool("nvcc"))
        return self._compiler

    def _has_nvcc(self) -> bool:
        try:
            cuda_tool("nvcc")
        except pytest.skip.Exception:
            return False
        return True


def python_with_torch() -> tuple[str | None, str]:
    """Return a Python whose PyTorch reaches a GPU, else None and why: GPU_PYTHON, this one, the first on the PATH."""
    tried = [os.environ.get("GPU_PYTHON"), sys.executable, shutil.which("python3")]
    why = ""
    for python in dict.fromkeys(filter(None, tried)):
        problem = _cannot(python, "import torch; torch.zeros(1, device='cuda')")
        if problem is None:
            return python, ""
        why = why or f"no PyTorch that reaches the GPU ({python}: {problem}); GPU_PYTHON may name another Python"
    return None, why


def _cannot(python: str, code: str) -> str | None:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=300)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1][:120]
