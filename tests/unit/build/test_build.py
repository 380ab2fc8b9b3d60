"""What is not proven gets no name; what fails says where and what to type; an offline compile is two builds."""

import tarfile
from pathlib import Path

import pytest

from tests.builders.cubin import EMPTY_TABLE, cubin
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.fake_builder import FakeEngine
from vdbg_env.build.build import BuildSettings, build_image, build_json, build_text, read_image_library
from vdbg_env.build.builder import BuildEvent, BuildFailed
from vdbg_env.common.console import json_text
from vdbg_env.common.errors import EngineFailed, NotProven
from vdbg_env.image.plan import LABEL_BUILT, LABEL_DIGEST, LABEL_PROOF, BuildPlan, step_titles
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import BuildRequest

LINES = EntrySpec(payload=cubin("k", lines=True), identifier="csrc/k.cu")
NO_LINES = EntrySpec(payload=cubin("stale_kernel"))
STUB = EntrySpec(payload=cubin())
EMPTY = EntrySpec(payload=cubin("k", lines=True, table=EMPTY_TABLE))
LINKED = EntrySpec(payload=cubin("_Z4linePf", "_Z4barePf", lines=True, covered=["_Z4linePf"], linked=True))


@pytest.fixture(scope="module")
def sample() -> BuildPlan:
    library = read_image_library()
    return plan(library.spec("sample"), BuildRequest(profile="sample"), library)


def engine(*entries: EntrySpec, listed: int = 2) -> FakeEngine:
    return FakeEngine({"/opt/vdbg/out/lib/libsample.so": host_library(container(*entries))}, listed=listed)


def build(sample: BuildPlan, on: FakeEngine, **settings: object) -> tuple[str, str]:
    told: list[BuildEvent] = []
    wanted = BuildSettings(tags=("a:1",), **settings)  # type: ignore[arg-type]
    result = build_image(sample, wanted, builder=on, tell=told.append, clock=iter([10.0, 12.5]).__next__)
    assert told
    return build_text(result), json_text(build_json(result))


def test_a_proven_image_is_labelled_with_its_proof_and_tagged(sample: BuildPlan) -> None:
    fake = engine(LINES, STUB)
    text, document = build(sample, fake)
    proof = "full: 1 of 1 cubins with code carry .debug_line; rows cover 8 of 8 instructions; seen by cuobjdump too"
    assert fake.tagged == [
        ("sha256:1", ("a:1",), {LABEL_PROOF: proof, LABEL_DIGEST: sample.digest, LABEL_BUILT: '["/opt/vdbg/out"]'})
    ]
    assert fake.read_to_the_end, "closing an engine's events early cancels the build"
    assert "proven    1 of 1 cubins with code carry line info" in text
    assert "rows cover 8 of 8 instructions of 1 function" in text
    assert "libsample.so: 1 of 1 (sm_90 1); cuobjdump agrees" in text
    assert '"verdict": "full"' in document
    assert "time      2.5 s" in text


@pytest.mark.parametrize(
    ("entries", "summary", "cause"),
    [
        ((LINES, NO_LINES), "1 of 2 cubins with code carry line info: partial", "a compiler cache handed back"),
        ((NO_LINES, NO_LINES), "0 of 2 cubins with code carry line info: none", "a compiler cache handed back"),
        ((EMPTY, STUB), "0 of 1 cubins with code carry line info: none", "only ptxas was given -lineinfo"),
        (
            (LINKED, LINES),
            "1 of 2 cubins with code carry line info: partial, "
            "rows cover 16 of 24 instructions where there is a line table",
            "some units of a device link",
        ),
        ((STUB, STUB), "the build left no device code to prove anything on", "a prebuilt wheel was installed"),
    ],
    ids=["partial", "none", "empty-table", "linked", "no-code"],
)
def test_what_is_not_proven_is_not_tagged(
    sample: BuildPlan, entries: tuple[EntrySpec, ...], summary: str, cause: str
) -> None:
    fake = engine(*entries)
    with pytest.raises(NotProven) as caught:
        build(sample, fake)
    assert fake.tagged == []
    assert caught.value.exit_status == 3
    assert caught.value.what == summary
    assert (caught.value.cause or "").startswith(cause)
    assert "the candidate is kept, untagged: sha256:1" in caught.value.details


def test_the_missing_kernel_is_named(sample: BuildPlan) -> None:
    with pytest.raises(NotProven) as caught:
        build(sample, engine(LINES, NO_LINES))
    assert caught.value.details[0] == "/opt/vdbg/out/lib/libsample.so: 1 of 2 with line info: stale_kernel"


def test_a_function_without_rows_is_named_with_the_reason(sample: BuildPlan) -> None:
    with pytest.raises(NotProven) as caught:
        build(sample, engine(LINKED, STUB))
    unit = "_Z4barePf (a device link took in units without line info)"
    assert caught.value.details[0] == f"/opt/vdbg/out/lib/libsample.so: 0 of 1 with line info: {unit}"


def test_a_witness_that_counts_otherwise_without_a_known_reason_keeps_the_tag_back(sample: BuildPlan) -> None:
    fake = engine(LINES, STUB, listed=7)
    with pytest.raises(NotProven, match="cuobjdump does not confirm") as caught:
        build(sample, fake)
    assert fake.tagged == []
    assert "cuobjdump: it lists 7 cubins, the reader found 2: no known reason" in caught.value.details[0]


def test_a_failed_step_is_told_with_its_tail_and_the_next_thing_to_type(sample: BuildPlan) -> None:
    fake = engine()
    fake.failure = BuildFailed(
        key="a", title="RUN make", code=137, cause="killed for memory", next_step="--jobs 1", tail=("cc", "Killed")
    )
    with pytest.raises(EngineFailed) as caught:
        build(sample, fake)
    assert caught.value.what == "the build failed at: RUN make with exit status 137"
    assert caught.value.details == ("| cc", "| Killed")
    assert (caught.value.cause, caught.value.next_step) == ("killed for memory", "--jobs 1")


def test_steps_bear_the_titles_of_the_plan(sample: BuildPlan) -> None:
    fake = engine(LINES, STUB)
    fake.total = len(step_titles(sample, "classic"))
    fake.failure = BuildFailed(key="a", title="RUN set -eu; ...", code=1, cause="")
    with pytest.raises(EngineFailed, match="the build failed at: Base image"):
        build(sample, fake)


def test_an_engine_that_falls_silent_is_an_error(sample: BuildPlan) -> None:
    fake = engine()
    fake.silent = True
    with pytest.raises(EngineFailed, match="without saying how the build ended"):
        build(sample, fake)


def test_an_offline_compile_fetches_first_and_compiles_without_network(sample: BuildPlan) -> None:
    fake = engine(LINES, STUB)
    build(sample, fake, offline_compile=True)
    assert fake.tagged[-1][2][LABEL_DIGEST] == sample.digest, "what is compiled is a plan of its own"
    fetch, compiling = (order.plan for order in fake.orders)
    name = fake.tagged[0][1][0]
    assert name.startswith("vdbg/prepared:")
    assert (compiling.base, compiling.network) == (name, "none")
    assert fetch.network == "default"
    assert {step.id for step in fetch.steps} | {step.id for step in compiling.steps} == {s.id for s in sample.steps}


def test_the_image_is_handed_on_by_its_name(sample: BuildPlan, tmp_path: Path) -> None:
    text, _ = build(sample, engine(LINES, STUB), push=True, output=tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as saved:
        assert "a-1.json" in saved.getnames()
    assert "pushed    sha256:of-a:1" in text
