"""Containers of programs that were killed are removed by the next one; those of programs that live stay."""

import os
import signal
import uuid
from contextlib import closing

import pytest
from docker.errors import NotFound

from tests.support.build_orders import BASE
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.engine.client import Engine, connect
from vdbg_env.engine.containers import NewContainer, created, remove_abandoned, tool_container
from vdbg_env.image.settings import Gpu, RunSettings, StepContainer
from vdbg_env.run.container import ATTEMPT, StepContainers

pytestmark = pytest.mark.engine


def one_of_another_process() -> tuple[int, str]:
    """Start a process that makes a container and waits; returns both."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with created(connect(), tool_container(BASE, ["true"], "look-inside")) as container:
                os.write(writing, container.encode())
                signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as said:
        return child, said.read(64)


def test_what_a_killed_program_left_is_removed_and_what_a_living_one_needs_is_not(docker_engine: Engine) -> None:
    killed, abandoned = one_of_another_process()
    living, needed = one_of_another_process()
    try:
        os.kill(killed, signal.SIGKILL)
        os.waitpid(killed, 0)
        docker_engine.client.inspect_container(abandoned)  # a killed program removes nothing
        remove_abandoned(docker_engine)
        with pytest.raises(NotFound):
            docker_engine.client.inspect_container(abandoned)
        docker_engine.client.inspect_container(needed)
    finally:
        os.kill(living, signal.SIGKILL)
        os.waitpid(living, 0)
    another = created(connect(), tool_container(BASE, ["true"], "look-inside"))
    with another, pytest.raises(NotFound):  # a new connection looks for such before it makes its first container
        docker_engine.client.inspect_container(needed)


def test_a_container_of_an_image_that_was_committed_from_one_of_ours_is_not_ours(docker_engine: Engine) -> None:
    """`docker commit` gives an image the labels of its container, and an image gives them to its containers."""
    client = docker_engine.client
    maker, ours = one_of_another_process()
    kept = client.create_container(committed := client.commit(ours)["Id"], "true")["Id"]
    try:
        os.kill(maker, signal.SIGKILL)
        os.waitpid(maker, 0)
        remove_abandoned(docker_engine)
        client.inspect_container(kept)
        with pytest.raises(NotFound):
            client.inspect_container(ours)
    finally:
        client.remove_container(kept, force=True)
        client.remove_image(committed, force=True)


def test_nor_is_one_of_an_image_that_was_committed_from_a_step(docker_engine: Engine) -> None:
    client, mark = docker_engine.client, f"{uuid.uuid4()}"
    settings = RunSettings(image=BASE, command=("true",), gpu=Gpu(by="none"), dumps=None, ulimits=())
    steps = StepContainers(connect, StepContainer(settings=settings), runbooks=SHIPPED_DATA / "runbooks", tell=print)
    step = NewContainer(settings=settings, purpose="step", labels={ATTEMPT: mark})
    with created(docker_engine, step) as ours, closing(steps):
        kept = client.create_container(committed := client.commit(ours)["Id"], "true")["Id"]
        try:
            steps.remove(mark)
            client.inspect_container(kept)
            with pytest.raises(NotFound):
                client.inspect_container(ours)
        finally:
            client.remove_container(kept, force=True)
            client.remove_image(committed, force=True)
