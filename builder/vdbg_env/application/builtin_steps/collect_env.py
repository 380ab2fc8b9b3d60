"""`builtin/collect-env@v1`: the versions in play, and the variables that change behaviour."""

from __future__ import annotations

import json
import re
from pathlib import Path

from vdbg_env.application.builtin_steps.context import BuiltinContext, BuiltinResult
from vdbg_env.errors import HostNotAble
from vdbg_env.runbook.state import ResultValue

_PACKAGES = ("vllm", "torch", "triton", "flashinfer-python", "transformers", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
# Metadata only: importing torch takes half a minute, opens the GPU, and fails where the driver is broken.
_ASK = (
    "import importlib.metadata as m, json, sys\n"
    "found = {}\n"
    "for name in sys.argv[1:]:\n"
    "    try: found[name] = m.version(name)\n"
    "    except m.PackageNotFoundError: pass\n"
    "print(json.dumps(found))\n"
)
_SHEBANG = re.compile(r"#!\s*(\S*python[\d.]*)")


def work(context: BuiltinContext) -> BuiltinResult:
    """Ask the workload's own interpreter what is installed; a program without Python has no versions to tell."""
    results: dict[str, ResultValue] = {}
    notes: list[str] = []
    versions = _versions(context, notes)
    results |= {name: versions[name] for name in ("vllm", "torch") if name in versions}
    known = {"driver": context.facts.driver, "cuda": context.facts.cuda}
    results |= {name: value for name, value in known.items() if value}
    notes += [f"{name} {version}" for name, version in versions.items()]
    notes += [f"{name}={value}" for name, value in sorted(context.environment.items()) if _changes_behaviour(name)]
    return BuiltinResult(results=results, notes=tuple(notes))


def _versions(context: BuiltinContext, notes: list[str]) -> dict[str, str]:
    python = _interpreter(context)
    if python is None:
        return {}
    try:
        done = context.programs.run([python, "-I", "-c", _ASK, *_PACKAGES], timeout_s=60)
        document = json.loads(done.stdout)
    except (HostNotAble, ValueError):
        notes.append(f"{python} could not be asked what is installed")
        return {}
    return {str(name): str(version) for name, version in document.items()}


def _interpreter(context: BuiltinContext) -> str | None:
    """Return the Python that `vllm` starts with, else the one on PATH."""
    script = context.programs.which("vllm")
    if script:
        with Path(script).open("rb") as file:
            shebang = _SHEBANG.match(file.read(256).decode("utf-8", "replace"))
        if shebang:
            return shebang[1]
    return context.programs.which("python3")


def _changes_behaviour(name: str) -> bool:
    return name.startswith(("CUDA_", "VLLM_", "NCCL_", "TORCH_", "PYTORCH_", "TRITON_", "FLASHINFER_"))
