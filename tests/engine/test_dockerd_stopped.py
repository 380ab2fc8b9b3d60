"""dockerd stops responding under a run: told to stop, the run ends all the same, and resumed it ends as it would have.

How long it takes to end is in docs/lab/benchmarks.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker.errors import NotFound

from tests.engine.own_engine import OwnEngine, own_engine
from tests.engine.step_images import PYTHON, CommandLine, Ended, python_image, report, until
from tests.engine.test_runbook_in_containers import NAP, NO_GPU, TWO_STEPS, ledger
from tests.support.stopping import ended_within
from vdbg_env.engine.client import Engine
from vdbg_env.engine.containers import PURPOSE

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

BELOW_OWN_LIMIT_S = 30.0  # the client library waits for an answer twice as long
# The command line, whose dockerd is stopped just before a request: the last of these words, found one after another.
STOPPING = """
import json, os, signal, sys
from pathlib import Path
from vdbg_env.engine.client import _Client
from vdbg_env.cli import main
dockerd, words, stopped, argv = int(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
real = _Client.send
def send(self, request, **settings):
    if words and words[0] in f"{request.method} {request.path_url} {request.body}":
        words.pop(0)
        if not words:
            os.kill(dockerd, signal.SIGSTOP)
            stopped.touch()
    return real(self, request, **settings)
_Client.send = send
sys.exit(main(argv))
"""
PLACES = {
    "knocking": ["/version"],
    "looking at the image": ["/images/"],
    "making what looks into it": ["containers/create"],
    "looking into it": ["containers/create", "/wait"],
    "making a step": [f'"{PURPOSE}": "step"'],
    "attaching to it": ["/attach"],
    "starting it": ["/attach", "/start"],
    "asking how it ended": ["/attach", "/wait"],
    "removing it": ["/attach", "DELETE"],
    "making the second": ["/attach", f'"{PURPOSE}": "step"'],
}


@pytest.fixture(scope="module")
def dockerd(docker_engine: Engine) -> Iterator[OwnEngine]:
    """A dockerd of this module's own, with the image that steps run in."""
    image = python_image(docker_engine)
    with own_engine(disk_mib=1500) as engine:
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
            subprocess.run(["docker", "--host", engine.host, "load", "-q"], stdin=save.stdout, check=True)
        assert save.returncode == 0
        yield engine


@pytest.fixture
def folder(tmp_path: Path, dockerd: OwnEngine) -> Iterator[Path]:
    """A user's folder with a runbook of two steps; dockerd goes on at the end."""
    (tmp_path / "two-steps.yaml").write_text(TWO_STEPS)
    yield tmp_path
    os.kill(dockerd.pid, signal.SIGCONT)


def begun(folder: Path, dockerd: OwnEngine, words: list[str], *more: str) -> subprocess.Popen[str]:
    """Begin a run whose dockerd is stopped at a place."""
    environment = {k: v for k, v in os.environ.items() if k != "VDBG_ENV_RUNS"}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2] / "builder"), "DOCKER_HOST": dockerd.host}
    stopping = [sys.executable, "-c", STOPPING, str(dockerd.pid), json.dumps(words), str(folder / "stopped")]
    flags = ["-f", "two-steps.yaml", "--image", PYTHON, "--mount", ".", *NO_GPU, "--json", "--run-dir", "run", *more]
    return subprocess.Popen(
        [*stopping, "runbook", "two-steps", *flags, "--", "python3", "-c", NAP],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], number: int) -> Ended:
    """Send a signal, if not 0, and return how a run ended whose dockerd is still stopped."""
    out, err = ended_within(BELOW_OWN_LIMIT_S, process, number)
    return Ended(process.returncode, out, err)


def check_resumed(folder: Path, dockerd: OwnEngine) -> None:
    """Resume the run, if it had begun: it ends as it would have, and nothing is left."""
    os.kill(dockerd.pid, signal.SIGCONT)
    if (folder / "run" / "events.jsonl").exists():
        again = CommandLine(folder, "--resume", "run", "--batch", "--json", env={"DOCKER_HOST": dockerd.host}).ended()
        assert [step["outcome"] for step in report(again)["steps"]] == ["reproduced", "reproduced"], again.stderr
        assert set(ledger(folder)) == {"first", "second"}
        assert len(ledger(folder)) <= 3, "one attempt was repeated at most"
    until(lambda: containers(dockerd, "step") == [])
    for helper in containers(dockerd, "look"):  # the next run removes it, or the request to do so that was on its way
        with suppress(NotFound):
            dockerd.connect().client.remove_container(helper, force=True)


def containers(dockerd: OwnEngine, purpose: str) -> list[str]:
    found = dockerd.connect().client.containers(all=True, filters={"label": f"{PURPOSE}={purpose}"})
    return [container["Id"] for container in found]


@pytest.mark.parametrize("place", PLACES)
def test_a_run_ends_while_its_engine_does_not_respond(folder: Path, dockerd: OwnEngine, place: str) -> None:
    process = begun(folder, dockerd, list(PLACES[place]))
    until((folder / "stopped").exists)
    done = ended(process, signal.SIGTERM)
    assert done.status == 128 + signal.SIGTERM
    assert ("ended without waiting" in done.stderr) == (folder / "run" / "events.jsonl").exists()
    check_resumed(folder, dockerd)


def test_a_run_ends_while_a_step_runs_whose_engine_does_not_respond(folder: Path, dockerd: OwnEngine) -> None:
    process = begun(folder, dockerd, [])
    until(lambda: ledger(folder))
    os.kill(dockerd.pid, signal.SIGSTOP)
    assert ended(process, signal.SIGTERM).status == 128 + signal.SIGTERM
    check_resumed(folder, dockerd)


def test_a_time_limit_holds_while_the_engine_does_not_respond(folder: Path, dockerd: OwnEngine) -> None:
    process = begun(folder, dockerd, list(PLACES["starting it"]), "--total-time", "3s")
    until((folder / "stopped").exists)
    assert ended(process, 0).status == 124
    check_resumed(folder, dockerd)


@pytest.mark.parametrize("place", ["making a step", "attaching to it", "starting it", "removing it"])
def test_a_request_whose_program_was_killed_is_neither_lost_nor_done_twice(
    folder: Path, dockerd: OwnEngine, place: str
) -> None:
    process = begun(folder, dockerd, list(PLACES[place]))
    until((folder / "stopped").exists)
    time.sleep(0.2)  # the request is on its way
    assert ended(process, signal.SIGKILL).status == -signal.SIGKILL
    check_resumed(folder, dockerd)
