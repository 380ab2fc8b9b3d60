"""A bundle is the plan that was decided, whole: what arrives changed or cut off is refused before anything is built."""

import io
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.fake_builder import FakeEngine
from tests.support.golden import assert_golden
from tests.support.image_library import PACKAGE, shipped
from vdbg_env.build.build import BuildResult, BuildSettings, plan_build
from vdbg_env.build.bundle import BundleResult, Manifest, build_from_bundle, open_bundle, write_bundle
from vdbg_env.common.errors import BadInput
from vdbg_env.engine import trees
from vdbg_env.image.plan import CommandStep, CopyStep
from vdbg_env.image.profile import BuildRequest, LocalTree

PROVEN = {
    "/opt/vdbg/out/lib/libsample.so": host_library(
        container(EntrySpec(payload=cubin("k", lines=True), identifier="csrc/k.cu"), EntrySpec(payload=cubin()))
    )
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    source = tmp_path / "project"
    (source / "src").mkdir(parents=True)
    (source / "src" / "k.cu").write_text("__global__ void k() {}\n")
    (source / "CMakeLists.txt").write_text("project(x)\n")
    return source


@pytest.fixture
def bundled(tmp_path: Path, checkout: Path) -> BundleResult:
    request = BuildRequest(
        profile="sample", source=LocalTree(path=str(checkout)), offline_compile=True, jobs=3, guard=PACKAGE
    )
    plan = plan_build(request, shipped(), gpu=None)
    settings = BuildSettings(tags=("vdbg/sample:lineinfo",))
    path = tmp_path / "sample.tar"
    return write_bundle(plan, settings, path, builder=FakeEngine(PROVEN), tell=lambda _: None)


def test_the_published_schema_is_that_of_the_manifest() -> None:
    schema = json.dumps(Manifest.model_json_schema(mode="serialization"), indent=2) + "\n"
    assert_golden("../../docs/schemas/bundle-v1.schema.json", schema)


def build(path: Path, on: FakeEngine, *tags: str) -> BuildResult:
    with open_bundle(path) as bundle:
        plan = bundle.plan(trees.digest)
        return build_from_bundle(
            path, bundle.manifest, plan, BuildSettings(tags=tags), builder=on, tell=lambda _: None,
            clock=iter([0.0, 1.0]).__next__,
        )  # fmt: skip


def rewritten(bundle: BundleResult, name: str, change: tuple[bytes, bytes] | None) -> Path:
    """Copy the bundle with one member changed, or without it."""
    target = bundle.path.with_suffix(".changed")
    with tarfile.open(bundle.path) as old, tarfile.open(target, "w") as new:
        for member in old:
            stream = old.extractfile(member)
            data = stream.read() if stream else b""
            if member.name == name and change is None:
                continue
            data = data.replace(*change) if member.name == name and change else data
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    return target


def test_the_site_builds_what_was_left_of_the_plan_without_network(bundled: BundleResult, checkout: Path) -> None:
    (checkout / "src" / "k.cu").write_text("changed after the bundle was made")
    at_site = FakeEngine(PROVEN)
    result = build(bundled.path, at_site)
    assert at_site.loaded == [bundled.path]
    (order,) = at_site.orders
    assert order.plan.network == "none" and order.plan.base == bundled.image
    assert not any(step.network for step in order.plan.steps if isinstance(step, CommandStep))
    assert order.plan.digest == result.plan.digest == bundled.plan_digest
    copied = {s.source for s in order.plan.steps if isinstance(s, CopyStep)}
    assert copied == {"source", "entrypoint.sh", "wheel", "vdbg-env"}
    assert {item.name for item in order.context.items} >= {"source", "entrypoint.sh", "Dockerfile"}
    assert result.tags == ("vdbg/sample:lineinfo",)
    assert build(bundled.path, FakeEngine(PROVEN), "our/name:1").tags == ("our/name:1",)


def test_the_tar_of_the_image_is_still_one(bundled: BundleResult) -> None:
    with tarfile.open(bundled.path) as archive:
        assert archive.getnames()[0].startswith("vdbg/prepared-")
    assert bundled.size == bundled.path.stat().st_size


@pytest.mark.parametrize(
    ("member", "change", "what"),
    [
        ("vdbg-env/context.tar", (b"__global__", b"__nothin__"), "its digest differs"),
        ("vdbg-env/bundle.json", (b"sample:lineinfo", b"sample:lineinfi"), None),
        ("vdbg-env/bundle.json", (b"-lineinfo", b"-lineinfi"), "its digest differs"),
        ("vdbg-env/bundle.json", (b"vdbg-env/bundle/v1", b"vdbg-env/bundle/v9"), "not 'vdbg-env/bundle/v1'"),
        ("vdbg-env/bundle.json", (b'"steps"', b'"stages"'), "the plan in the bundle cannot be read"),
        ("vdbg-env/bundle.json", (b'"layers"', b'"lawyers"'), "manifest cannot be read"),
        ("vdbg-env/bundle.json", None, "not a whole bundle"),
        ("vdbg-env/context.tar", None, "not a whole bundle"),
    ],
)
def test_what_arrives_changed_is_refused_before_anything_is_loaded(
    bundled: BundleResult, member: str, change: tuple[bytes, bytes] | None, what: str | None
) -> None:
    changed, at_site = rewritten(bundled, member, change), FakeEngine(PROVEN)
    if what is None:  # the name that is suggested is not part of the plan
        assert build(changed, at_site).tags == ("vdbg/sample:lineinfi",)
        return
    with pytest.raises(BadInput, match=what) as caught:
        build(changed, at_site)
    assert caught.value.next_step
    assert (at_site.loaded, at_site.orders) == ([], [])


def test_an_image_with_other_layers_is_refused(bundled: BundleResult) -> None:
    at_site = replace(FakeEngine(PROVEN), content="sha256:other")
    with pytest.raises(BadInput, match="its layers differ"):
        build(bundled.path, at_site)
    assert at_site.orders == []


def test_a_file_cut_off_on_its_way_is_refused(bundled: BundleResult, tmp_path: Path) -> None:
    cut = tmp_path / "cut.tar"
    cut.write_bytes(bundled.path.read_bytes()[:-12_000])
    with pytest.raises(BadInput, match="not a whole bundle"), open_bundle(cut):
        raise AssertionError("it was opened")
    with pytest.raises(BadInput, match="cannot be read"), open_bundle(tmp_path / "none.tar"):
        raise AssertionError("it was opened")


def with_lists(bundle: BundleResult, *lists: tuple[str, str]) -> Path:
    """Copy the bundle with more members at its end, of which an engine takes the last of a name."""
    target = bundle.path.with_suffix(".named")
    shutil.copy(bundle.path, target)
    with tarfile.open(target, "a") as archive:
        for name, text in lists:
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return target


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        (
            "manifest.json",
            '[{"RepoTags": ["debian:trixie-slim"]}]',
            "names its image debian:trixie-slim, and not vdbg/",
        ),
        ("./manifest.json", '[{"RepoTags": ["debian:1"]}]', "names its image debian:1"),
        ("/manifest.json", '[{"RepoTags": ["debian:1"]}]', "names its image debian:1"),
        ("x/manifest.json/.", '[{"RepoTags": ["debian:1"]}]', "names its image debian:1"),
        ("repositories", '{"vllm/vllm-openai": {"v1": "x"}}', "names its image vllm/vllm-openai:v1"),
        ("index.json", '{"manifests": [{"annotations": {"io.containerd.image.name": "debian:1"}}]}', "debian:1"),
        ("manifest.json", '[{"RepoTags": 7}]', "not a whole bundle"),
        ("index.json", "[", "not a whole bundle"),
    ],
)
def test_a_bundle_takes_no_name_from_another_image(bundled: BundleResult, name: str, text: str, what: str) -> None:
    at_site = FakeEngine(PROVEN)
    with pytest.raises(BadInput, match=what):
        build(with_lists(bundled, (name, text)), at_site)
    assert at_site.loaded == []


def test_the_names_that_stores_write_for_the_bundle_s_own_image_are_taken(bundled: BundleResult) -> None:
    tag = bundled.image.partition(":")[2]
    named = {"io.containerd.image.name": f"docker.io/{bundled.image}", "org.opencontainers.image.ref.name": tag}
    lists = ("index.json", json.dumps({"manifests": [{"annotations": named}]}))
    assert build(with_lists(bundled, lists), FakeEngine(PROVEN)).tags == ("vdbg/sample:lineinfo",)


def test_a_bundle_without_any_name_is_refused(bundled: BundleResult) -> None:
    with pytest.raises(BadInput, match="names its image nothing"):
        build(rewritten(bundled, "manifest.json", None), FakeEngine(PROVEN))


@pytest.mark.parametrize(
    "change", [{"network": "default"}, {"base": "debian:trixie-slim"}], ids=lambda c: next(iter(c))
)
def test_a_plan_with_a_network_or_another_image_is_refused_whatever_its_digest(
    bundled: BundleResult, change: dict[str, Any]
) -> None:
    with open_bundle(bundled.path) as bundle:
        forged = replace(bundle.plan(trees.digest), **change)
        manifest = bundle.manifest.model_copy(
            update={"plan": bundle.manifest.plan | change, "plan_digest": forged.digest}
        )
        with pytest.raises(BadInput, match="the plan in the bundle starts from"):
            replace(bundle, manifest=manifest).plan(trees.digest)


def test_a_plan_that_is_none_ends_in_words(bundled: BundleResult, tmp_path: Path) -> None:
    with open_bundle(bundled.path) as bundle:
        text = bundle.manifest.model_copy(update={"plan": {}}).text()
    old = bundle.manifest.text()
    changed = rewritten(bundled, "vdbg-env/bundle.json", (old.encode(), text.encode()))
    with pytest.raises(BadInput, match="the plan in the bundle cannot be read"):
        build(changed, FakeEngine(PROVEN))
