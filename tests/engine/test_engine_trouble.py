"""An engine of the test's own that is killed, full or closed to the user: each told plainly, nothing left behind."""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine.conftest import make_builder
from tests.engine.own_engine import TINY, OwnEngine, make_base
from tests.engine.own_engine import own_engine as running_engine
from tests.support.build_orders import failed, small_order
from vdbg_env.build.builder import ImageBuilder, OutputLine
from vdbg_env.build.buildkit import BuildKitBuilder
from vdbg_env.common.errors import BadInput, EngineFailed, HostNotAble

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    # The client library leaves a socket open when nothing listens behind it any more; that is no fault of ours.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

NAP = f"sleep 6{os.getpid()}"  # of this test alone


@pytest.fixture(autouse=True)
def sockets_are_collected_here() -> Iterator[None]:
    """Keep what the client library left open from being found, and complained of, in another test."""
    yield
    gc.collect()


@pytest.fixture
def own_engine() -> Iterator[OwnEngine]:
    with running_engine(disk_mib=400) as engine:
        make_base(engine)
        yield engine


@pytest.fixture(params=["buildx", "buildkit"])
def builder(request: pytest.FixtureRequest, own_engine: OwnEngine) -> ImageBuilder:
    return make_builder(request.param, request, own_engine.connect())


def test_an_engine_killed_in_the_middle_is_a_failed_build_with_its_step(
    builder: ImageBuilder, own_engine: OwnEngine
) -> None:
    events = []
    order = small_order("echo before", f"echo waiting && {NAP}", base=TINY, network="none")
    for event in builder.build(order):
        events.append(event)
        if isinstance(event, OutputLine) and event.text == "waiting":
            own_engine.kill()
    failure = failed(events)
    assert "went away" in failure.cause
    assert NAP in failure.title
    assert failure.next_step
    for folder in Path("/proc").glob("[0-9]*"):  # whose engine has gone
        with suppress(OSError):
            if NAP in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                os.kill(int(folder.name), signal.SIGKILL)


def test_a_full_disk_is_named(builder: ImageBuilder) -> None:
    order = small_order("dd if=/dev/zero of=/big bs=1M count=600", base=TINY, network="none")
    failure = failed(list(builder.build(order)))
    assert "disk" in failure.cause
    assert "docker system df" in (failure.next_step or "")


def test_saving_and_pushing_say_what_went_wrong_and_leave_nothing(own_engine: OwnEngine, tmp_path: Path) -> None:
    engine = BuildKitBuilder(own_engine.connect(), why="test")
    whole = tmp_path / "whole.tar"
    assert engine.save(TINY, whole) == whole.stat().st_size > 1 << 20
    with pytest.raises(BadInput, match="cannot write"):
        engine.save(TINY, tmp_path / "no" / "x.tar")
    with pytest.raises(BadInput, match="none:local"):
        engine.save("vdbg/none:local", tmp_path / "none.tar")
    assert not list(tmp_path.glob("*.partial")) and not (tmp_path / "none.tar").exists()
    assert engine.tag(TINY, ["localhost:1/tiny:x"], {"dev.vdbg-env.proof": "{}"}).startswith("sha256:")
    with pytest.raises(EngineFailed, match=r"pushing localhost:1/tiny:x failed"):
        list(engine.push("localhost:1/tiny:x"))
    own_engine.kill()
    with pytest.raises(HostNotAble, match="cannot reach"):
        engine.save(TINY, tmp_path / "late.tar")
    with pytest.raises(HostNotAble, match="cannot reach"):
        own_engine.connect()
