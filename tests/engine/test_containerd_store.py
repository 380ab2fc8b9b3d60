"""An engine with the containerd image store: how builds are sent to it, and attestations of the image that is named."""

import io
import json
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.conftest import REPOSITORY, make_builder
from tests.engine.own_engine import TINY, make_base, own_engine
from tests.support.build_orders import built, small_order
from vdbg_env.build.builder import BuildxOptions
from vdbg_env.build.buildkit import choose_builder
from vdbg_env.common.errors import EngineFailed, HostNotAble
from vdbg_env.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.long]

SCANNER = "vdbg-test/scanner:1"
STATEMENT = {
    "_type": "https://in-toto.io/Statement/v0.1",
    "predicateType": "https://spdx.dev/Document",
    "predicate": {"spdxVersion": "SPDX-2.3", "SPDXID": "SPDXRef-DOCUMENT", "name": "of this test"},
}
LABELS = {"dev.vdbg-env.proof": 'full: "2 of 2"'}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Debian 13's engine, which is not installed, with a base of few programs and a scanner of ours."""
    folder = REPOSITORY / ".cache" / "docker-26"
    script = [str(REPOSITORY / "scripts" / "trixie-packages"), str(folder), "docker.io", "containerd"]
    ran = subprocess.run(script, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        pytest.skip(ran.stderr.strip().rpartition("\n")[2])
    with own_engine(disk_mib=800, programs=folder) as running:
        make_base(running)
        found = running.connect()
        write = f"echo '{json.dumps(STATEMENT)}' > $BUILDKIT_SCAN_DESTINATION/found.spdx.json"
        dockerfile = f"FROM {TINY}\nENTRYPOINT {json.dumps(['/bin/sh', '-c', write])}\n"
        said = list(found.client.build(fileobj=io.BytesIO(dockerfile.encode()), tag=SCANNER, rm=True, decode=True))
        assert not any("error" in message for message in said), said
        yield found


def named() -> str:
    return f"vdbg-test/store:{uuid.uuid4().hex}"


def attested(engine: Engine, image: str) -> dict[str, Any]:
    """Return the predicates attached to an image by their type."""
    saved = b"".join(engine.client.get_image(image))
    with tarfile.open(fileobj=io.BytesIO(saved)) as tar:
        files = (tar.extractfile(member) for member in tar if member.name.startswith("blobs/") and member.isfile())
        documents = [json.loads(data) for file in files if file and (data := file.read())[:1] == b"{"]
    found = (document for document in documents if "predicateType" in document)
    return {document["predicateType"]: document["predicate"] for document in found}


def test_attestations_are_of_the_build_and_of_the_image_that_is_named(
    request: pytest.FixtureRequest, engine: Engine
) -> None:
    builder = make_builder("buildx", request, engine)
    options = BuildxOptions(sbom=f"generator={SCANNER}", provenance="mode=max")
    order = replace(small_order("echo attested > /x", base=TINY, network="none"), buildx=options)
    image = built(list(builder.build(order))).image_id
    name, layers = named(), builder.layers(image)
    tagged = builder.tag(image, [name], LABELS)

    config = engine.client.inspect_image(name)  # type: ignore[no-untyped-call]
    assert (config["Id"], config["Config"]["Labels"] | LABELS) == (tagged, config["Config"]["Labels"])
    assert builder.layers(name) == layers
    found = attested(engine, name)
    assert found["https://spdx.dev/Document"]["name"] == "of this test"
    provenance = json.dumps(found["https://slsa.dev/provenance/v0.2"])
    assert "echo attested > /x" in provenance and "pkg:docker/vdbg/tiny@local" in provenance
    assert "candidate" not in provenance


def test_an_image_that_cannot_be_attested_gets_no_name(request: pytest.FixtureRequest, engine: Engine) -> None:
    builder = make_builder("buildx", request, engine)
    order = small_order("echo $$ > /x; cat /proc/uptime > /y", base=TINY, network="none")
    image = built(list(builder.build(replace(order, buildx=BuildxOptions(provenance="true"))))).image_id
    name = named()
    engine.client.post(f"{engine.client.base_url}/v{engine.client.api_version}/build/prune", params={"all": "1"})
    with pytest.raises(EngineFailed, match="could not attest the image that was proven"):
        builder.tag(image, [name], LABELS)
    assert not engine.client.images(name)


def test_a_named_image_has_its_labels_and_layers(request: pytest.FixtureRequest, engine: Engine) -> None:
    builder = make_builder("buildx", request, engine)
    order = small_order("echo x > /x", base=TINY, network="none")
    image, again = (built(list(builder.build(order))).image_id for _ in range(2))
    assert image == again
    name, layers = named(), builder.layers(image)
    builder.tag(image, [name], LABELS)
    config = engine.client.inspect_image(name)  # type: ignore[no-untyped-call]
    assert config["Config"]["Labels"]["dev.vdbg-env.proof"] == LABELS["dev.vdbg-env.proof"]
    assert builder.layers(name) == layers
    assert not attested(engine, name)


def test_what_the_engine_would_lose_is_not_sent_to_it(engine: Engine) -> None:
    with pytest.raises(HostNotAble, match="containerd image store loses what is sent") as refused:
        choose_builder("auto", connect=lambda: engine, find_buildx=lambda: None)
    assert "docker-buildx" in (refused.value.next_step or "")
