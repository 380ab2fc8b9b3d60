"""The engine is killed at every single place of a full run where it can be, while its steps run in containers."""

from pathlib import Path

import pytest

from tests.engine.step_images import python_image, step_containers
from tests.support.killing import PLACES, check_killed_and_resumed
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.engine.client import Engine, connect
from vdbg_env.image.settings import PACKAGES, Gpu, Mount, RunSettings, StepContainer
from vdbg_env.run.container import ContainerSteps, StepContainers, look
from vdbg_env.run.job import StepSettings
from vdbg_env.run.placement import StepRunner

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("place", range(1, PLACES + 1))
def test_an_engine_killed_at_every_place_is_resumed_to_the_same_end(
    tmp_path: Path, place: int, docker_engine: Engine
) -> None:
    image = python_image(docker_engine)
    folder = str(tmp_path)
    container = StepContainer(
        settings=RunSettings(image=image, gpu=Gpu(by="none"), dumps=None, ulimits=()),
        mounts=(Mount(source=folder, target=folder),),
    )

    def made(path: Path) -> StepRunner:
        containers = StepContainers(connect, container, runbooks=SHIPPED_DATA / "runbooks", tell=lambda _: None)
        seen = look(containers, ())
        settings = StepSettings(
            env={"LEDGER": f"{folder}/ledger"},
            cwd=Path(seen.folder),
            mark=str(path),
            inherits=True,
            python=seen.python,
            packages=Path(PACKAGES),
        )
        return ContainerSteps(containers, seen, settings, here=tmp_path)

    check_killed_and_resumed(tmp_path / "run", place, made, within_s=30.0)
    assert step_containers(docker_engine, tmp_path) == []
