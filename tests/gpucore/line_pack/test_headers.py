"""Lines of other headers than the code was built with: what a pack says of them, and how that is written and read."""

import json
from dataclasses import replace

import pytest

from gpucore import line_packs
from gpucore.dwarf import OtherHeaders, SourceFrame, parse_frame
from gpucore.errors import UnreadableBinary
from gpucore.line_packs import PackedHeaders, Provenance

USED = PackedHeaders(folder="cutlass-4.5.0/", project="CUTLASS", used="4.5.0", wanted="v4.7.1")
BINARY = Provenance(digest="1", binary="a.cubin", headers=(USED,))
SAID = OtherHeaders(project="CUTLASS", used="4.5.0", wanted="v4.7.1")


def test_a_pack_keeps_which_headers_were_used_and_wanted() -> None:
    (read,) = line_packs.load(line_packs.dump([BINARY]))
    assert read == BINARY
    assert read.headers_of("cutlass-4.5.0/include/cutlass/gemm.h") == SAID
    assert read.headers_of("csrc/quantization/gemm.cu") is None


@pytest.mark.parametrize(("used", "wanted", "same"), [("4.7.1", "v4.7.1", True), ("unknown", "unknown", False)])
def test_headers_of_the_release_are_no_others(used: str, wanted: str, same: bool) -> None:
    assert (replace(USED, used=used, wanted=wanted).other is None) == same


@pytest.mark.parametrize(
    ("file", "used"),
    [
        ("/root/.cache/vdbg-env/units/nvidia-cutlass-4.2.0.0/include/cutlass/gemm/gemm.h", "4.2.0"),
        ("/src/build/_deps/cutlass-src/tools/util/include/cutlass/util/a.h", "unknown"),
        ("/src/csrc/cutlass_extensions/gemm.cuh", None),
        ("/src/csrc/moe/moe_align_sum_kernels.cu", None),
    ],
)
def test_a_pack_that_does_not_say_is_read_and_its_cutlass_is_unknown(file: str, used: str | None) -> None:
    row = {"digest": "1", "binary": "a.cubin", "release": "vllm 0.33.0", "functions": 1, "with_lines": 1}
    (old,) = line_packs.load(json.dumps([row]).encode())
    assert old.headers is None and "headers" not in line_packs.dump([old]).decode()
    found = old.headers_of(file)
    assert (found and found.used) == used
    assert found is None or "the pack does not say which one the wheel was built with" in str(found)


@pytest.mark.parametrize("headers", [1, [1], [{"folder": "a"}], [{**vars(USED), "used": 4}], [vars(USED)] * 65])
def test_damaged_headers_are_refused(headers: object) -> None:
    row = {"digest": "1", "binary": "a", "headers": headers}
    with pytest.raises(UnreadableBinary, match="headers of another type"):
        line_packs.load(json.dumps([row]).encode())


@pytest.mark.parametrize("function", [None, "run", "f<int>(int) in (anonymous namespace)"])
@pytest.mark.parametrize("said", [None, SAID, OtherHeaders(project="CUTLASS", used="unknown", wanted="unknown")])
def test_a_frame_is_read_as_it_is_written(function: str | None, said: OtherHeaders | None) -> None:
    frame = SourceFrame(function=function, file="cutlass-4.5.0/include/x.h", line=12, headers=said)
    assert parse_frame(str(frame)) == frame
    assert parse_frame("no place") is None
