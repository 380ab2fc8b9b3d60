"""The check programs of the runbooks: imported for their decisions, and run as a runbook runs them."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType

from tests.support.shipped import RUNBOOKS, shipped

CHECKS = RUNBOOKS / "lib" / "checks"


def check_module(name: str) -> ModuleType:
    """Import a check program without running it; its neighbours are found as when it is run."""
    spec = importlib.util.spec_from_file_location(f"check_{name}", CHECKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(CHECKS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(CHECKS))
    return module


def run_check(name: str, *words: str, environment: Mapping[str, str] | None = None, status: int = 0) -> str:
    """Run a check program as a runbook does and return what it printed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "CUDA_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, str(CHECKS / f"{name}.py"), *words],
        env={**inherited, **(environment or {})}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def seen_by(runbook: str, printed: str) -> dict[str, dict[str, str]]:
    """Return the matchers of a runbook that what was printed meets, each with its groups: what its outcomes go by."""
    matchers = shipped(runbook).matchers.values()
    found = ((m.name, re.search(m.pattern, printed, re.MULTILINE)) for m in matchers)
    return {name: hit.groupdict() for name, hit in found if hit}
