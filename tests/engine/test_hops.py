"""How many files `build` enters on a real engine; see `tests/unit/test_hops.py` for the counter and what it is for."""

import uuid

import pytest

from tests.support.build_orders import BASE
from tests.unit.test_hops import entered
from vdbg_env.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_a_build_of_the_sample_enters_few_files(docker_engine: Engine) -> None:
    tag = f"vdbg-test/sample:{uuid.uuid4().hex}"
    files = entered("build", "--lineinfo", "--profile", "sample", "--base", BASE, "--tag", tag)
    docker_engine.client.remove_image(tag)
    assert len(files) <= 30, "\n".join(files)
