"""Every engine builds the same order and tells it in the same events."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import unnamed_images
from tests.support.build_orders import built, failed, output, small_order
from tests.support.patience import patience
from vdbg_env.build.builder import BuildEvent, ImageBuilder, OutputLine, StepEnded, StepStarted
from vdbg_env.common.errors import HostNotAble
from vdbg_env.engine.client import Engine

pytestmark = pytest.mark.engine

NAP = f"300.{os.getpid()}"  # seconds that no other program of this machine sleeps


def unique(name: str) -> str:
    return f"echo {name}-{time.time_ns()}"


def test_every_engine_builds_the_same_order(image_engine: ImageBuilder) -> None:
    order = small_order(unique("first"), "cat hello.txt && echo aside >&2", files={"hello.txt": b"hello\n"})
    events = list(image_engine.build(order))
    image = built(events).image_id
    assert {"hello", "aside"} <= set(output(events))
    ran = image_engine.execute(image, ["/bin/cat", "/opt/vdbg/hello.txt"])
    assert (ran.code, ran.stdout) == (0, "hello\n")
    image_engine.remove(image)


def test_each_step_is_told_once_as_begun_and_once_as_ended(image_engine: ImageBuilder) -> None:
    events = list(image_engine.build(small_order(unique("a"), unique("b"))))
    begun = [e.key for e in events if isinstance(e, StepStarted)]
    ended = [e.key for e in events if isinstance(e, StepEnded)]
    assert len(begun) == len(set(begun)) >= 2
    assert sorted(begun) == sorted(ended)
    for event in events:
        if isinstance(event, OutputLine):
            assert event.key in begun
    image_engine.remove(built(events).image_id)


def test_a_second_build_comes_from_the_cache(image_engine: ImageBuilder) -> None:
    order = small_order(unique("slow") + " && sleep 0.2")
    first = list(image_engine.build(order))
    second = list(image_engine.build(order))
    assert built(first).image_id == built(second).image_id
    runs = [e for e in second if isinstance(e, StepEnded) and e.cached]
    assert runs
    assert not any("slow-" in line for line in output(second))
    image_engine.remove(built(first).image_id)


def test_a_failing_step_is_named_with_its_status_and_its_last_words(image_engine: ImageBuilder) -> None:
    events = list(image_engine.build(small_order(unique("fine"), "echo the last words; exit 7")))
    failure = failed(events)
    assert failure.code == 7
    assert failure.tail[-1] == "the last words"
    assert "run 2" in failure.title or "exit 7" in failure.title
    assert any(isinstance(e, StepEnded) and e.error for e in events)


def test_a_killed_compiler_is_explained_by_memory_with_the_number_of_jobs_to_take(image_engine: ImageBuilder) -> None:
    failure = failed(list(image_engine.build(small_order("sh -c 'kill -9 $$'", jobs=8))))
    assert failure.code == 137
    assert "8 compilers" in failure.cause
    assert "--jobs 4" in (failure.next_step or "")


def test_closing_the_stream_cancels_the_build_and_leaves_nothing(
    image_engine: ImageBuilder, docker_engine: Engine, tmp_path: Path
) -> None:
    before = unnamed_images(docker_engine)
    stream = image_engine.build(small_order(unique("begin"), f"echo waiting && sleep {NAP}"))
    for event in stream:
        if isinstance(event, OutputLine) and event.text == "waiting":
            break
    since = time.monotonic()
    stream.close()
    assert time.monotonic() - since < patience(15)
    wait_until(lambda: not napping(), "the cancelled step still runs")
    assert unnamed_images(docker_engine) == before
    assert not list((tmp_path / "host").glob("*/")), "the host engine keeps its folder after a cancel"


def test_ctrl_c_while_nothing_is_printed_cancels_too(image_engine: ImageBuilder, docker_engine: Engine) -> None:
    stream = image_engine.build(small_order(unique("begin"), f"echo waiting && sleep {NAP}"))
    events: list[BuildEvent] = []
    with pytest.raises(KeyboardInterrupt):
        for event in stream:
            events.append(event)
            if isinstance(event, OutputLine) and event.text == "waiting":
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    wait_until(lambda: not napping(), "the cancelled step still runs")


def test_a_base_image_nobody_has_is_named(container_engine: ImageBuilder) -> None:
    failure = failed(list(container_engine.build(small_order("true", base="localhost:1/no/such:image"))))
    assert "localhost:1" in failure.cause
    assert failure.next_step


def test_labels_make_a_named_image_over_the_same_layers(container_engine: ImageBuilder, docker_engine: Engine) -> None:
    image = built(list(container_engine.build(small_order(unique("x"), "echo y > /y")))).image_id
    original = docker_engine.client.inspect_image(image)  # type: ignore[no-untyped-call]
    proof = '{"verdict": "full", "quote": "\\"", "dollar": "$HOME", "line": "a\\nb"}'
    name = f"vdbg-test/labelled:{time.time_ns()}"
    tagged = container_engine.tag(image, [name, "localhost:5000/" + name], {"dev.vdbg-env.proof": proof})
    try:
        inspected = docker_engine.client.inspect_image(name)  # type: ignore[no-untyped-call]
        assert inspected["Id"] == tagged != image
        assert inspected["Config"]["Labels"]["dev.vdbg-env.proof"] == proof
        assert inspected["RootFS"] == original["RootFS"]
        for field in ("Env", "Cmd", "Entrypoint", "WorkingDir", "User"):
            assert inspected["Config"].get(field) == original["Config"].get(field)
        assert not [t for t in inspected["RepoTags"] if "candidate" in t]
    finally:
        docker_engine.client.remove_image(name)
        docker_engine.client.remove_image("localhost:5000/" + name)
    container_engine.remove(image)


def test_removing_leaves_named_and_foreign_images_alone(container_engine: ImageBuilder, docker_engine: Engine) -> None:
    container_engine.remove("vdbg/debian-trixie:local")
    assert docker_engine.client.inspect_image("vdbg/debian-trixie:local")  # type: ignore[no-untyped-call]
    container_engine.remove("sha256:" + "0" * 64)


def test_files_gives_candidates_only_and_their_bytes(image_engine: ImageBuilder) -> None:
    order = small_order(
        "mkdir -p lib && cp /bin/true lib/true && echo text > lib/notes.txt && ln -s true lib/link", files={"f": b"f"}
    )
    image = built(list(image_engine.build(order))).image_id
    with image_engine.files(image, ["/opt/vdbg/lib", "/opt/vdbg/none"]) as found:
        names = {file.name: bytes(file.data[:4]) for file in found}
    assert names == {"/opt/vdbg/lib/true": b"\x7fELF"}
    image_engine.remove(image)


def test_execute_has_no_network_and_returns_both_streams(container_engine: ImageBuilder) -> None:
    script = "echo out; echo err >&2; ls /sys/class/net; exit 3"
    ran = container_engine.execute("vdbg/debian-trixie:local", ["/bin/sh", "-c", script])
    assert (ran.code, ran.stderr) == (3, "err\n")
    assert ran.stdout.split() == ["out", "lo"]


def test_the_host_engine_names_the_programs_it_would_need(tmp_path: Path) -> None:
    from vdbg_env.build.host import HostBuilder

    engine = HostBuilder(why="test", home=tmp_path)
    with pytest.raises(HostNotAble, match="no-such-compiler"):
        list(engine.build(small_order("true", needs=("no-such-compiler", "sh"))))
    assert not list(tmp_path.glob("*/"))


def napping() -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == f"sleep\0{NAP}\0".encode():
                return True
        except OSError:
            continue
    return False


def wait_until(holds: Callable[[], bool], otherwise: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)
