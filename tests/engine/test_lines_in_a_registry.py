"""Line packs as an OCI artifact in a real registry, with and without a password."""

import base64
import json
import urllib.request
from pathlib import Path

import pytest

from tests.builders.core_builder import illegal_address_core
from tests.engine.registry import PASSWORD, USER, running_registry
from tests.support.command_line import vdbg_env
from tests.support.line_packs import pack_of

ONE, OTHER = pack_of("inline_chain_sm90"), pack_of("shared_leaf_sm90")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Path("one.lines").write_bytes(ONE)
    Path("other.lines").write_bytes(OTHER)
    Path("stock.nvcudmp").write_bytes(illegal_address_core(lines=False))


def chain(store: str) -> tuple[list[int], list[str]]:
    document = json.loads(vdbg_env("core", "--json", "--lines", store, "stock.nvcudmp").stdout)
    return [frame["line"] for frame in document["faults"][0]["chain"]], document["notes"]


def test_packs_travel_through_a_registry(tmp_path: Path) -> None:
    with running_registry(tmp_path) as registry:
        reference = f"oci://{registry.host}/team/lines:vllm-0.33.0"
        pushed = vdbg_env("lines", "push", "one.lines", "other.lines", reference)
        assert pushed.status == 0, pushed.stderr
        by_digest = pushed.stdout.strip()
        assert "@sha256:" in by_digest
        assert vdbg_env("lines", "push", "other.lines", "one.lines", reference).stdout.strip() == by_digest
        assert chain(reference)[0] == chain(by_digest)[0] == [3, 13, 8, 19]
        pulled = vdbg_env("lines", "pull", by_digest).stdout.split()
        assert sorted(Path(path).read_bytes() for path in pulled) == sorted([ONE, OTHER])
        missing = vdbg_env("lines", "pull", f"oci://{registry.host}/team/lines:none")
        assert missing.status == 1
        assert "answers 404" in missing.stderr
    document = json.loads(vdbg_env("core", "--json", "stock.nvcudmp").stdout)
    assert document["faults"][0]["lines_from"], "what was pulled answers without the registry"


def test_a_blob_that_was_changed_in_the_registry_is_refused(tmp_path: Path) -> None:
    with running_registry(tmp_path) as registry:
        reference = f"oci://{registry.host}/lines:x"
        assert vdbg_env("lines", "push", "one.lines", reference).status == 0
        (blob,) = [p for p in (tmp_path / "images").rglob("data") if p.stat().st_size == len(ONE)]
        blob.write_bytes(OTHER[:100] + ONE[100:])
        lines, notes = chain(reference)
        assert lines == []
        assert any("sent another line pack" in note for note in notes)


def test_an_image_is_no_artifact_of_packs(tmp_path: Path) -> None:
    with running_registry(tmp_path) as registry:
        reference = f"oci://{registry.host}/lines:x"
        assert vdbg_env("lines", "push", "one.lines", reference).status == 0
        kind = "application/vnd.oci.image.manifest.v1+json"
        address = f"http://{registry.host}/v2/lines/manifests/x"
        with urllib.request.urlopen(urllib.request.Request(address, headers={"Accept": kind})) as answer:
            manifest = json.load(answer)
        manifest["layers"][0]["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
        body = json.dumps(manifest).encode()
        put = urllib.request.Request(address, data=body, method="PUT", headers={"Content-Type": kind})
        urllib.request.urlopen(put).close()
        assert "has no line pack" in vdbg_env("lines", "pull", reference).stderr


def test_a_registry_with_a_password(tmp_path: Path) -> None:
    with running_registry(tmp_path, password=True) as registry:
        reference = f"oci://{registry.host}/lines:x"
        refused = vdbg_env("lines", "push", "one.lines", reference)
        assert refused.status == 1
        assert f"docker login {registry.host}" in refused.stderr
        known = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        Path("docker").mkdir()
        Path("docker/config.json").write_text(json.dumps({"auths": {registry.host: {"auth": known}}}))
        assert vdbg_env("lines", "push", "one.lines", reference).status == 0
        assert chain(reference)[0] == [3, 13, 8, 19]
        Path("docker/config.json").write_text(json.dumps({"auths": {registry.host: {"auth": "d3Jvbmc6d3Jvbmc="}}}))
        wrong = vdbg_env("lines", "push", "one.lines", reference)
        assert wrong.status == 1
        assert "answers 401" in wrong.stderr
        assert PASSWORD not in wrong.stderr
