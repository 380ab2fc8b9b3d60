"""One real API server for all of these tests, and one played cluster; without the server's programs they skip."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.cluster import Cluster
from tests.k8s.server import missing
from vdbg_env.adapters.placement.k8s.api import KubeApi
from vdbg_env.adapters.placement.k8s.attempt import Patience
from vdbg_env.adapters.placement.k8s.ranks import PodRanks
from vdbg_env.image.container.pod_settings import PodSettings, PodVolume
from vdbg_env.image.container.run_settings import Gpu, RunSettings

# Short where the cluster has said all there is; long where a busy machine may only be slow.
PATIENT = Patience(start_s=300.0, image_s=0.2, after_pod_s=0.5, status_s=300.0, tidy_s=60.0)


@pytest.fixture(scope="session")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := missing():
        pytest.skip(why)
    found = Cluster(tmp_path_factory.mktemp("k8s"))
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def cluster(one_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that this process's kubeconfig names; every object that was made in it is valid."""
    monkeypatch.setenv("KUBECONFIG", str(one_cluster.kubeconfig(tmp_path)))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield one_cluster
    assert one_cluster.problems == []
    assert one_cluster.front.invalid == []
    one_cluster.clean()
    assert one_cluster.processes() == []


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


@pytest.fixture
def attempt(volume: Path) -> Path:
    folder = volume / "run" / "steps" / "step" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def pods(cluster: Cluster, volume: Path) -> Callable[..., PodRanks]:
    """Return what makes placements for the run of `attempt`; fields are those of RunSettings and PodRanks."""

    def made(ranks: int | None = 2, *, patience: Patience = PATIENT, **fields: Any) -> PodRanks:
        given: dict[str, Any] = {"python": sys.executable}
        given |= {name: fields.pop(name) for name in {"env_from", "overlay", "python"} & fields.keys()}
        source = fields.pop("source", volume)
        run = RunSettings(image="registry/debug:1", gpu=Gpu(by="none"), seccomp="default", dumps=None, **fields)
        here = PodVolume(kind="host", source=str(source), path=str(volume))
        settings = PodSettings(run=run, volumes=(here,), wait_s=patience.start_s, **given)
        api = KubeApi(context=None, namespace=None)
        return PodRanks(settings, run=volume / "run", api=api, disk_floor=0, ranks=ranks, patience=patience)

    return made


@pytest.fixture(autouse=True)
def no_thread_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    yield
    assert failed == []
