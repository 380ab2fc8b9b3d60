"""Images to run steps in, and the command line as a process of its own that runs them there."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import ImageNotFound

from tests.support.build_orders import BASE
from tests.support.patience import patience
from vdbg_env.engine.client import Engine
from vdbg_env.engine.containers import PURPOSE
from vdbg_env.run.container import RUN

ROOT = Path(__file__).parents[2]
WORKLOADS = ROOT / "tests" / "workloads"
PYTHON = "vdbg/debian-trixie-python:local"
OF_A_USER = "vdbg/debian-trixie-python-user:local"  # the same, its processes those of user 4711

_INSTALL = "apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*"


def python_image(engine: Engine) -> str:
    """Return an image that holds a Python, made once from the base image and then kept."""
    _built(engine, PYTHON, f"FROM {BASE}\nRUN {_INSTALL}\n")
    return PYTHON


def user_image(engine: Engine) -> str:
    """Return the same image with a user that is not root."""
    _built(engine, OF_A_USER, f"FROM {python_image(engine)}\nUSER 4711:4711\n")
    return OF_A_USER


def _built(engine: Engine, name: str, dockerfile: str) -> None:
    try:
        engine.client.inspect_image(name)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        said = list(engine.client.build(fileobj=io.BytesIO(dockerfile.encode()), tag=name, rm=True, decode=True))
        assert not any("error" in message for message in said), said[-1]


def step_containers(engine: Engine, folder: Path) -> list[str]:
    """Return the containers, running or not, of the runs kept below a folder: an engine may be shared with others."""
    found = engine.client.containers(all=True, filters={"label": f"{PURPOSE}=step"})
    return [c["Id"] for c in found if c["Labels"].get(RUN, "").startswith(f"{folder}/")]


@dataclass(frozen=True)
class Ended:
    status: int
    stdout: str
    stderr: str


class CommandLine:
    """`vdbg-env runbook` in `folder`, in a process of its own that may be killed."""

    def __init__(self, folder: Path, *argv: str, env: Mapping[str, str] | None = None, prefix: tuple[str, ...] = ()):
        environment = {k: v for k, v in os.environ.items() if k != "VDBG_ENV_RUNS"}
        environment |= {"PYTHONPATH": str(ROOT / "builder"), **(env or {})}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "vdbg_env", "runbook", *argv],
            cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def ended(self, timeout_s: float = 120.0) -> Ended:
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"still running after {timeout_s} s\n{out}\n{err}") from None
        return Ended(self.process.returncode, out, err)

    def until(self, what: Callable[[], object]) -> None:
        """Wait until something is so; what the program said is told when it ends before that."""
        until(lambda: what() or self.process.poll() is not None)
        assert what(), self.ended()

    def killed(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def dismiss(self) -> None:
        """End what a test that failed has left."""
        if self.process.returncode is None:
            self.killed()


def runbook(folder: Path, *argv: str, **options: Any) -> Ended:
    """Run the command line to its end."""
    return CommandLine(folder, *argv, **options).ended()


def report(ended: Ended) -> dict[str, Any]:
    """Return the report that `--json` printed."""
    assert ended.stdout.startswith("{"), ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def until(what: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + patience(timeout_s)
    while not what():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.05)
