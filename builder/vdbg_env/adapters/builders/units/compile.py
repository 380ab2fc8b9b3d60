"""Compile units to cubins with line info, several at a time, each kept by what it was made from."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from vdbg_env.adapters.builders.units.kept import Kept
from vdbg_env.adapters.builders.units.running import Programs
from vdbg_env.adapters.builders.units.toolkit import Toolkit
from vdbg_env.application.ports.unit_builds import CompiledUnit, ConfiguredTree, UnitOrder
from vdbg_env.image.units import cubin_argv, header_package, missing_header

_MOST_HEADERS: Final = 8

# With one architecture, nvcc names that one alone to the preprocessor; CUB puts the list into its kernels' names.
_HOST_COMPILER: Final = """\
#!/bin/sh
for word do
  shift
  case $word in -D__CUDA_ARCH_LIST__=*) word="-D__CUDA_ARCH_LIST__=$VDBG_ARCH_LIST" ;; esac
  set -- "$@" "$word"
done
exec gcc "$@"
"""


class Compiler:
    """Compiles the units of one configured tree."""

    def __init__(self, kept: Kept, toolkit: Toolkit, programs: Programs) -> None:
        self._kept = kept
        self._toolkit = toolkit
        self._programs = programs

    def compile(
        self, tree: ConfiguredTree, orders: Sequence[UnitOrder], *, jobs: int
    ) -> Generator[CompiledUnit, None, None]:
        """See `UnitBuilds.compile`."""
        wrapper = self._wrapper()
        with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
            waiting = [
                pool.submit(self._one, tree, order, wrapper, i, len(orders)) for i, order in enumerate(orders, 1)
            ]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            except BaseException:
                self._programs.stop()
                pool.shutdown(cancel_futures=True)
                raise

    def _one(self, tree: ConfiguredTree, order: UnitOrder, wrapper: Path, number: int, total: int) -> CompiledUnit:
        kept = self._kept.home / "cubins" / f"{_key(tree, order)}.cubin"
        source = Path(order.unit.source).name
        title = f"[{number}/{total}] {source} for {order.target}"
        cached = kept.exists()
        since = time.monotonic()
        output = ""
        with self._kept.step(f"{source}:{order.target}", title, cached=cached) as needed:
            if needed:
                output = self._compile(tree, order, wrapper, kept)
        cubin = kept.read_bytes() if kept.exists() else None
        duration = 0.0 if cached else time.monotonic() - since
        return CompiledUnit(order=order, cubin=cubin, cached=cached, duration_s=duration, output=output)

    def _compile(self, tree: ConfiguredTree, order: UnitOrder, wrapper: Path, kept: Path) -> str:
        """Write the cubin, or return what the compiler printed last."""
        kept.parent.mkdir(parents=True, exist_ok=True)
        compiler = Path(tree.compiler)
        key = f"{Path(order.unit.source).name}:{order.target}"
        env = self._toolkit.environment(compiler) | {"VDBG_ARCH_LIST": order.unit.arch_list}
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder, kept.name)
            argv = cubin_argv(order.unit, order.target, str(made), ("-lineinfo", "-ccbin", str(wrapper)))
            for _ in range(_MOST_HEADERS):
                ran = self._programs.run(argv, key=key, env={**env, "TMPDIR": folder}, cwd=Path(order.unit.folder))
                if ran.code == 0:
                    made.replace(kept)
                    return ""
                output = "\n".join(ran.tail)
                header = missing_header(output)
                package = header_package(header, compiler.name.partition("-")[2]) if header else None
                if package is None:
                    break
                self._add_headers(compiler, package)
        return output

    def _add_headers(self, compiler: Path, package: str) -> None:
        self._kept.folder(
            f"{compiler.name}-with-{package}", f"Headers of {package}",
            lambda folder: self._toolkit.add_headers(compiler, package, folder.name),
        )  # fmt: skip

    def _wrapper(self) -> Path:
        folder = self._kept.home / "host-compiler"
        folder.mkdir(parents=True, exist_ok=True)
        wrapper = folder / "gcc"
        partial = folder / f"gcc.{os.getpid()}"
        partial.write_text(_HOST_COMPILER)
        partial.chmod(0o755)
        partial.replace(wrapper)
        return wrapper


def _key(tree: ConfiguredTree, order: UnitOrder) -> str:
    """Return a name for a cubin by all that it is made from: the tree, whose name says its parts, and the command."""
    told = json.dumps([Path(tree.folder).name, order.target, order.unit.arch_list, order.unit.argv])
    return hashlib.sha256(told.encode()).hexdigest()[:24]
