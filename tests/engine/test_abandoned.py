"""Containers of programs that were killed are removed by the next one; those of programs that live stay."""

import os
import signal

import pytest
from docker.errors import NotFound

from tests.support.build_orders import BASE
from vdbg_env.adapters.docker.client import Engine, connect
from vdbg_env.adapters.docker.create import created, remove_abandoned, tool_container

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
