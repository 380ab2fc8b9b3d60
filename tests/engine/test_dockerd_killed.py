"""dockerd is killed while the steps of a run are in its containers: resumed, the run ends as it would have."""

import gc
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engine.own_engine import OwnEngine, own_engine
from tests.engine.step_images import python_image
from tests.support import small_run
from tests.support.killing import EVENTS, STARTS, STEPS, Killing, KillingRunner, ledger, left_running, outcome, run
from vdbg_env.common.errors import VdbgError
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.engine.client import Engine
from vdbg_env.engine.containers import PURPOSE
from vdbg_env.image.settings import PACKAGES, Gpu, Mount, RunSettings, StepContainer
from vdbg_env.record.event_log import read_events
from vdbg_env.run.container import ContainerSteps, StepContainers, look
from vdbg_env.run.execute import Execution
from vdbg_env.run.job import StepSettings
from vdbg_env.run.placement import StartedStep
from vdbg_env.runbook.state import Invocation, Verdict

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.leaves("a dockerd that a test starts again is ended with the module"),
    # The client library leaves a socket open when nothing listens behind it any more; that is no fault of ours.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def dockerd(docker_engine: Engine) -> Iterator[OwnEngine]:
    """A dockerd of this module's own, with the image that steps run in."""
    image = python_image(docker_engine)
    with own_engine(disk_mib=2048) as engine:
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
            subprocess.run(["docker", "--host", engine.host, "load", "-q"], stdin=save.stdout, check=True)
        assert save.returncode == 0
        yield engine


@pytest.fixture(autouse=True)
def no_container_stays(dockerd: OwnEngine) -> Iterator[None]:
    """Start the dockerd again where a test left it dead; no container of ours is there at the end."""
    yield
    gc.collect()  # what the client library left open is found here and not in another test
    dockerd.start()
    assert containers(dockerd) == []


def containers(dockerd: OwnEngine) -> list[dict[str, str]]:
    found = dockerd.connect().client.containers(all=True, filters={"label": PURPOSE})
    return [{"state": c["State"], "id": c["Id"][:12], **c["Labels"]} for c in found]


MADE: list[StepContainers] = []


def steps_in(dockerd: OwnEngine, folder: Path, *, nap: str = "0.05") -> Callable[[Path], ContainerSteps]:
    """Return what makes a runner of steps in containers of that dockerd."""
    container = StepContainer(
        settings=RunSettings(image=python_image(dockerd.connect()), gpu=Gpu(by="none"), dumps=None, ulimits=()),
        mounts=(Mount(source=str(folder), target=str(folder)),),
    )

    def made(path: Path) -> ContainerSteps:
        steps = StepContainers(dockerd.connect, container, runbooks=SHIPPED_DATA / "runbooks", tell=lambda _: None)
        MADE.append(steps)
        seen = look(steps, ())
        settings = StepSettings(
            env={"LEDGER": f"{folder}/ledger", "NAP": nap},
            cwd=Path(seen.folder),
            mark=str(path),
            inherits=True,
            python=seen.python,
            packages=Path(PACKAGES),
        )
        return ContainerSteps(steps, seen, settings, here=folder)

    return made


@dataclass
class KillingDockerd(Killing):
    """Kills a dockerd, once, at a place of a run."""

    dockerd: OwnEngine
    at: int
    places: int = field(default=0, init=False)

    def here(self) -> None:
        self.places += 1
        if self.places == self.at:
            self.dockerd.kill()


def run_and_close(path: Path, execution: Execution) -> Execution:
    """Run as a process of the command line does, which closes its place at the end whatever happens."""
    try:
        return run(path, execution)
    finally:
        while MADE:
            MADE.pop().close()


def check_resumed(path: Path, made: Callable[[Path], ContainerSteps]) -> None:
    """Resume a run, and expect the end it would have had."""
    end = run_and_close(path, small_run.execution(path, runner=made(path)))
    assert [step for step, _ in outcome(end)] == STEPS
    assert [word for _, word in outcome(end)] == ["pass", "reproduced", "yes", "reproduced", "reproduced"]
    assert end.finish and end.finish.verdict is Verdict.REPRODUCED
    assert left_running(path) == []
    events = list(read_events(path / "events.jsonl"))
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert [e.kind for e in events if e.kind != "run_resumed"][-1] == "run_finished"
    assert len(ledger(path)) <= len(STARTS) + 1, "one attempt was repeated at most"


@pytest.mark.parametrize("place", range(1, len(EVENTS) + 3 * len(STARTS) + 1))
def test_a_dockerd_killed_at_every_place_changes_no_end(tmp_path: Path, dockerd: OwnEngine, place: int) -> None:
    path = tmp_path / "run"
    made = steps_in(dockerd, tmp_path)
    killing = KillingDockerd(dockerd, place)
    runner = KillingRunner(made(path), killing)
    with suppress(VdbgError):  # what the command line ends with, and a person resumes
        run_and_close(path, small_run.execution(path, runner=runner, listener=killing.event))
    assert killing.places >= place
    dockerd.start()
    check_resumed(path, made)


@dataclass
class KillsDuringAStep:
    """A runner whose dockerd is killed some time after the second start, and then started again where it is to be."""

    steps: ContainerSteps
    dockerd: OwnEngine
    after_s: float
    back: bool
    started: int = 0

    def start(self, invocation: Invocation, directory: Path) -> StartedStep:
        step = self.steps.start(invocation, directory)
        self.started += 1
        if self.started == 2:
            time.sleep(self.after_s)
            self.dockerd.kill()
            if self.back:
                self.dockerd.start()
        return step

    def adopt(self, invocation: Invocation, directory: Path) -> StartedStep | None:
        return self.steps.adopt(invocation, directory)


@pytest.mark.parametrize("back", [False, True], ids=["comes back for the resumption", "comes back at once"])
@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.0])
def test_a_dockerd_killed_during_a_step_changes_no_end(
    tmp_path: Path, dockerd: OwnEngine, after_s: float, back: bool
) -> None:
    path = tmp_path / "run"
    made = steps_in(dockerd, tmp_path, nap="2")
    runner = KillsDuringAStep(made(path), dockerd, after_s, back)
    with suppress(VdbgError):
        run_and_close(path, small_run.execution(path, runner=runner))
    assert runner.started >= 2
    dockerd.start()
    check_resumed(path, made)
