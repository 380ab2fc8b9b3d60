"""The published schemas of builds, bundles, renderings and profiles: every document keeps to its schema."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders.cubin import cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.command_line import vdbg_env
from tests.support.fake_builder import FakeEngine
from tests.support.image_library import planned
from tests.support.schemas import Contract
from vdbg_env.build.build import BuildSettings, build_image, build_json
from vdbg_env.build.bundle import BundleResult, bundle_json
from vdbg_env.image.profile import BuildRequest


def test_build(tmp_path: Path) -> None:
    contract = Contract("build-v1")
    library = host_library(container(EntrySpec(payload=cubin("k", lines=True)), EntrySpec(payload=cubin())))
    fake = FakeEngine({"/opt/vdbg/out/lib/libsample.so": library})
    settings = BuildSettings(tags=("a:1",), push=True, output=tmp_path / "image.tar")
    plan = planned(BuildRequest(profile="sample"))
    result = build_image(plan, settings, builder=fake, tell=lambda _: None, clock=iter([1.0, 3.5]).__next__)
    assert (result.pushed_digest, result.duration_s) == ("sha256:of-a:1", 2.5)
    for one in (result, replace(result, digest="sha256:d"), replace(result, saved=None, pushed_digest=None)):
        contract.check(json.loads(json.dumps(build_json(one))))
    assert {field for field in contract.never_met() if len(field) == 1} == set()


def test_bundle() -> None:
    contract = Contract("bundled-v1")
    contract.check(bundle_json(BundleResult(path=Path("x.tar"), size=7, image="a:1", plan_digest="sha256:d")))
    assert contract.never_met() == set()


def test_render(tmp_path: Path) -> None:
    contract = Contract("render-v1")
    ran = vdbg_env("render", "--profile", "sample", "--no-guard", "--json", str(tmp_path / "folder"))
    contract.check(json.loads(ran.stdout))
    assert contract.never_met() == set()


def test_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDBG_IMAGES", str(tmp_path))
    contract = Contract("images-v1")
    (tmp_path / "wrong.yaml").write_text("name: wrong\n")
    ran = vdbg_env("images", "list", "--json")
    contract.check(json.loads(ran.stdout))
    assert contract.never_met() == set()
