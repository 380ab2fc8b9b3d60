"""One real Slurm cluster of three nodes for all of these tests; without its programs they are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Allocated, Cluster, missing

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the cluster's daemons live: a test starts some anew, and each step has one that outlives it for a moment."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.leaves("the cluster ends its daemons"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    found = Cluster(tmp_path_factory.mktemp("slurm") / "cluster")
    found.start()
    try:
        yield found
        assert found.steps_and_tasks() == []
    finally:
        found.verb("clean")


@pytest.fixture(scope="session")
def allocation(cluster: Cluster) -> Iterator[Allocated]:
    """Three nodes for as long as the tests run: their steps need not queue."""
    with cluster.allocated(3) as found:
        yield found


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "steps" / "step" / "1"
    folder.mkdir(parents=True)
    return folder
