"""What makes a dump large and why it has no lines, from cores and cubins as the tests build them."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from gpucore.core_layout import SectionType
from gpucore.elf import Elf
from tests.builders.core_builder import hang_core, illegal_address_core
from tests.support import reports
from tests.support.schemas import Contract
from tests.unit.crash.test_why import FLAG, polling_core
from tests.unit.run.test_steps import CUBINS, Bench, Programs, promised
from vdbg_env.report.model import report_json

_HEADER = 64  # bytes of a section header; its type is at 4, offset and size at 24 (gABI figure 4-10)


def with_memory(kind: SectionType, size: int) -> bytes:
    """A core in which the first lane's registers are memory of that kind, `size` bytes at the end of the file."""
    data = bytearray(illegal_address_core())
    registers = Elf(bytes(data)).sections_of(frozenset({SectionType.REGISTERS}))[0]
    at = struct.unpack_from("<Q", data, 40)[0] + registers.number * _HEADER
    struct.pack_into("<I", data, at + 4, kind)
    struct.pack_into("<QQ", data, at + 24, len(data), size)
    return bytes(data) + bytes(size)


@pytest.mark.parametrize(
    ("kind", "flag", "called"),
    [
        (SectionType.GLOBAL_MEMORY, "skip_global_memory", "global memory"),
        (SectionType.LOCAL_MEMORY, "skip_local_memory", "local memory"),
        (SectionType.CONSTANT_BANKS, "skip_constbank_memory", "constant banks"),
    ],
)
def test_the_largest_kind_is_named_with_its_flag(tmp_path: Path, kind: SectionType, flag: str, called: str) -> None:
    core = tmp_path / "core"
    core.write_bytes(with_memory(kind, 1 << 20))
    done = Bench(tmp_path).use("core-sizes", core=str(core))
    promised("core-sizes", done)
    assert (done.results["largest"], done.results["whole"]) == (called, True)
    assert flag in done.results["flags"]  # type: ignore[operator]
    assert float(done.results["savings"]) > 0.5  # type: ignore[arg-type]


def test_a_core_that_is_cut_short_is_told_so(tmp_path: Path) -> None:
    core = tmp_path / "core"
    core.write_bytes(illegal_address_core()[:-4000])
    done = Bench(tmp_path).use("core-sizes", core=str(core))
    assert done.results["whole"] is False


@pytest.mark.parametrize("name", ["core-sizes", "core-lines"])
def test_what_is_no_core_has_nothing_to_tell(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("no core")
    for core in ("", str(tmp_path / "text"), str(tmp_path / "absent")):
        done = Bench(tmp_path).use(name, core=core)
        assert done.error is None
        assert done.notes
        assert done.results.keys() <= {"caches"}


def test_a_hang_says_for_programs_too_what_it_polls(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (finding,) = bench.use("decode-gpu-core", cores=[bench.put("core.cuda.a", polling_core())]).findings
    assert finding.waits is not None
    Contract("core-v1", "Wait").check(finding.waits)
    assert [(one["address"], one["value"]) for one in finding.waits["polled"]] == [(FLAG + 8, 3)]
    assert finding.why[0].startswith("in a loop at")
    published = json.loads(report_json(replace(reports.FULL, findings=(finding,))))
    Contract("run-v1").check(published)
    assert published["findings"][0]["waits"] == finding.waits


def lines(tmp_path: Path, data: bytes, *cubins: str, **bench: object) -> dict[str, object]:
    core = tmp_path / "core"
    core.write_bytes(data)
    targets = [str(CUBINS / f"{cubin}.cubin") for cubin in cubins]
    done = Bench(tmp_path, **bench).use("core-lines", core=str(core), binaries=targets or [str(core)])  # type: ignore[arg-type]
    promised("core-lines", done)
    return dict(done.results)


@pytest.mark.parametrize("data", [illegal_address_core(), hang_core()], ids=["fault", "hang"])
def test_a_core_with_lines_needs_no_search(tmp_path: Path, data: bytes) -> None:
    found = lines(tmp_path, data)
    assert found["has_lines"] is True
    assert "file" not in found


def test_the_same_code_is_found_among_others(tmp_path: Path) -> None:
    found = lines(tmp_path, illegal_address_core(lines=False), "shared_leaf_sm90", "no_lines_sm90")
    assert found["same"] is True
    assert found["kernel"] == "kern<float>"


def test_a_library_without_lines_is_proven_to_have_none(tmp_path: Path) -> None:
    found = lines(tmp_path, illegal_address_core(lines=False), "no_lines_sm90")
    assert (found["verdict"], found["file_has_lines"], found["same"]) == ("none", False, True)
    assert "located" not in found


def test_another_build_of_the_kernel_is_told_from_the_same(tmp_path: Path) -> None:
    cubin = bytearray((CUBINS / "inline_chain_sm90.cubin").read_bytes())
    for text in Elf(bytes(cubin)).sections_starting(".text."):
        for at in range(text.offset, text.offset + text.size, 16):
            cubin[at] ^= 1
    (tmp_path / "other.cubin").write_bytes(cubin)
    found = lines(tmp_path, illegal_address_core(lines=False), str(tmp_path / "other"))
    assert (found["same"], found["file_has_lines"]) == (False, True)
    assert "located" not in found


def test_a_kernel_that_no_library_holds_has_no_file(tmp_path: Path) -> None:
    found = lines(tmp_path, illegal_address_core(lines=False), "shared_leaf_sm90")
    assert "file" not in found


def test_caches_that_would_meet_a_rebuild_are_named_unless_switched_off(tmp_path: Path) -> None:
    both = Programs({"ccache": "", "sccache": ""})
    assert lines(tmp_path, hang_core(), programs=both)["caches"] == ["ccache", "sccache"]
    off = {"CCACHE_DISABLE": "1", "VLLM_DISABLE_SCCACHE": "1"}
    assert lines(tmp_path, hang_core(), programs=both, environment=off)["caches"] == []
