"""Steps under the real supervisor: made, run to their end, and looked after."""

import os
import sys
from pathlib import Path
from typing import Any

from vdbg_env.evidence.finding import Observation
from vdbg_env.run.job import StepSettings
from vdbg_env.run.local import LocalProcesses
from vdbg_env.runbook.model import KillPolicy
from vdbg_env.runbook.state import Invocation
from vdbg_env.supervisor.helpers import MARK
from vdbg_env.supervisor.proc import marked

ENV = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8"}


def runner(tmp_path: Path, **settings: Any) -> LocalProcesses:
    return LocalProcesses(StepSettings(**{"env": ENV, "cwd": tmp_path, "mark": str(tmp_path), **settings}))


def place(tmp_path: Path, step: str = "step") -> Path:
    directory = tmp_path / "run" / "steps" / step / "1" / "localhost-0"
    directory.mkdir(parents=True)
    return directory


def python(code: str, **fields: Any) -> Invocation:
    defaults: dict[str, Any] = {"step": "step", "attempt": 1, "kill": KillPolicy(grace_s=0.4), "timeout_s": 20.0}
    return Invocation(argv=(sys.executable, "-c", code), **{**defaults, **fields})


def seen(tmp_path: Path, invocation: Invocation, **settings: Any) -> Observation:
    step = runner(tmp_path, **settings).start(invocation, place(tmp_path))
    found = step.wait(30)
    assert found is not None
    assert survivors(tmp_path) == []
    return found


def survivors(tmp_path: Path) -> list[str]:
    return [f"{p.pid} {p.name}" for p in marked(MARK.encode(), f"{tmp_path}/step/1/localhost-0".encode())]
