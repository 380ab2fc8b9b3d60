"""What is handed through to buildx, to which build, and who refuses it."""

import pytest

from tests.support.command_line import vdbg_env
from tests.support.fake_builder import FakeEngine
from tests.support.image_library import planned
from vdbg_env.build.build import BuildSettings, fetch_first
from vdbg_env.build.builder import BuildxOptions
from vdbg_env.build.buildkit import buildx_words
from vdbg_env.image.profile import BuildRequest

ALL = BuildxOptions(
    cache_from=("type=registry,ref=a/b",), cache_to=("type=inline",), sbom="true", provenance="mode=max"
)  # fmt: skip


def test_every_option_is_one_word_of_buildx() -> None:
    caches = ["--cache-from=type=registry,ref=a/b", "--cache-to=type=inline"]
    assert list(buildx_words(ALL)) == [*caches, "--sbom=true", "--provenance=mode=max"]
    assert list(buildx_words(BuildxOptions())) == []


def test_of_an_offline_compile_the_fetched_half_is_cached_and_the_image_with_the_name_attested() -> None:
    fake = FakeEngine({})
    fetch_first(planned(BuildRequest(profile="sample")), BuildSettings(buildx=ALL), fake, lambda _: None)
    (order,) = fake.orders
    assert order.buildx == BuildxOptions(cache_from=ALL.cache_from, cache_to=ALL.cache_to)


@pytest.mark.parametrize("flag", ["--cache-from", "--cache-to", "--sbom", "--provenance"])
def test_the_host_builder_refuses_them_before_it_builds(flag: str) -> None:
    ran = vdbg_env("build", "--profile", "sample", "--engine", "host", flag, "type=inline")
    assert ran.status == 2
    assert f"{flag} is an option of buildx, and host builds here" in ran.stderr
    assert "docker-buildx" in ran.stderr
