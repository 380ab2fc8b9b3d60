"""Objects with GPUs, as vdbg-env patches them, on a real API server that has their published definitions."""

import lzma
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.server import ApiServer, Front, packed_programs
from tests.support.command_line import vdbg_env
from tests.unit.image.test_patch import JOBSET, LWS

pytestmark = pytest.mark.slow
OBJECTS = {"leaderworkerset": LWS, "jobset": JOBSET}
RUNBOOK = ("--runbook", "illegal-memory-access", "--input", "request=synthetic")


class Cluster:
    """The server as kubectl sees it."""

    def __init__(self, address: str, home: Path) -> None:
        self._address = address
        self._home = home

    def kubectl(self, *words: str, given: str | None = None) -> str:
        done = subprocess.run(
            ["kubectl", "--server", self._address, *words], input=given, cwd=self._home, capture_output=True, text=True,
            check=False, timeout=120, env={"PATH": os.environ["PATH"], "HOME": str(self._home)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.kubectl("get", kind, name, "-n", "serving", "--output", "yaml"))
        found["spec"].get("failurePolicy", {}).pop("restartStrategy", None)  # the server's default
        return found


@pytest.fixture(scope="module")
def cluster(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    groups = []
    for kind in OBJECTS:
        definition = yaml.safe_load(lzma.decompress((packed_programs() / "crd" / f"{kind}.yaml.xz").read_bytes()))
        groups.append(group := definition["spec"]["group"])
        place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert api_server.call("POST", place, definition)[0] == 201
        until = time.monotonic() + 60
        while api_server.call("GET", f"/apis/{group}")[0] != 200:
            assert time.monotonic() < until
            time.sleep(0.1)
    front = Front(api_server, tuple(groups))
    yield Cluster(front.address, tmp_path_factory.mktemp("kubectl"))
    front.close()


@pytest.mark.parametrize("words", [(), RUNBOOK], ids=["armed", "debugged"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_what_was_rendered_is_applied_stored_and_taken_back(
    cluster: Cluster, kind: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    name = yaml.safe_load(OBJECTS[kind])["metadata"]["name"]
    cluster.kubectl("apply", "--validate=ignore", "--filename", "-", given=OBJECTS[kind])
    try:
        before = cluster.get(kind, name)
        (tmp_path / "object.yaml").write_text(yaml.safe_dump(before))
        rendered = vdbg_env(
            "render", "--format", "k8s", "--for", str(tmp_path / "object.yaml"), *words, str(tmp_path / "out")
        )
        assert rendered.status == 0, rendered.stderr
        cluster.kubectl("apply", "--validate=ignore", "--filename", str(tmp_path / "out" / "object.yaml"))
        after = cluster.get(kind, name)
        assert after["spec"] == yaml.safe_load((tmp_path / "out" / "object.yaml").read_text())["spec"]
        text = yaml.safe_dump(after, width=1_000_000)
        assert ("vdbg-env runbook illegal-memory-access" if words else "exec vdbg-env guard") in text
        assert "claimName: vdbg-dumps" in text and "nvidia.com/gpu: '8'" in text
        undo = ("--type", "json", "--patch-file", str(tmp_path / "out" / "undo.yaml"))
        cluster.kubectl("patch", kind, name, "-n", "serving", *undo)
        assert cluster.get(kind, name)["spec"] == before["spec"]
        cluster.kubectl("patch", kind, name, "-n", "serving", *undo[:3], str(tmp_path / "out" / "patch.yaml"))
        assert cluster.get(kind, name)["spec"] == after["spec"]
    finally:
        cluster.kubectl("delete", kind, name, "-n", "serving", "--wait=false")


def test_the_server_refuses_a_field_that_its_definition_lacks(cluster: Cluster) -> None:
    wrong = JOBSET.replace("startupProbe", "startProbe")
    with pytest.raises(AssertionError, match=r"unknown field .*startProbe"):
        cluster.kubectl("apply", "--validate=ignore", "--filename", "-", given=wrong)
