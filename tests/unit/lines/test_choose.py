"""What a name, a core dump or an extension means in a stock wheel, and what is refused with its reason."""

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpucore.dwarf import OtherHeaders, SourceFrame
from gpucore.fatbin import EntryKind, find_device_code
from tests.builders.fatbin import EntrySpec, container, host_library
from tests.support.cubins import DATA, cubin
from tests.support.schemas import Contract
from vdbg_env.common.console import json_text
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import BinaryFile, CoreFiles
from vdbg_env_lines.build import CoreLines, HeadersShare, LinesRequest, Unplaced, compare, rebuild
from vdbg_env_lines.result import Written, lines_json, lines_text
from vdbg_env_lines.stock import (
    CoreCode,
    StockCubin,
    StockLibrary,
    StockUnit,
    Wanted,
    choose,
    compiler_release,
    one_compiler,
    read_stock,
    require_compiler,
    require_runnable,
    wanted_by_core,
)
from vdbg_env_lines.units import CompiledUnit, ConfiguredTree, OtherProject, Release, TreeRequest, Unit, UnitOrder


def unit(name: str, number: int = 0) -> StockUnit:
    (code,) = find_device_code(cubin(name))
    return StockUnit(number=number, targets=(code.entry.target,), cubins=(StockCubin(code.entry),))


KERN = StockLibrary(name="wheel.whl:toy/_C.abi3.so", extension="_C", units=(unit("no_lines_sm90"),))
FLOAT = "_Z4kernIfEvPT_iS0_"
CORES = DATA.parent / "cores"
RELEASE = Release(project="toy", version="1.0", requires=())


@pytest.mark.parametrize("name", [FLOAT, "void kern<float>(float*, int, float)", "kern<float>"])
def test_a_kernel_is_found_by_each_of_its_names(name: str) -> None:
    (choice,) = choose([KERN], Wanted(kernels=(name,), archs=("9.0",)))
    assert choice.kernels == (FLOAT,)


def test_a_bare_name_means_every_kernel_of_the_template() -> None:
    (choice,) = choose([KERN], Wanted(kernels=("kern",)))
    assert len(choice.kernels) == 2


def test_a_device_function_is_not_a_kernel() -> None:
    with pytest.raises(BadInput, match="no library of the wheel has a kernel 'slow'"):
        choose([KERN], Wanted(kernels=("slow",)))


def test_a_core_dump_names_its_kernel_and_its_gpu() -> None:
    wanted = wanted_by_core(str(CORES / "synthetic_sm90_nolines.nvcudmp.gz"), CoreFiles())
    assert (wanted.kernels, wanted.archs, list(wanted.codes)) == ((FLOAT,), ("9.0",), [FLOAT])
    (choice,) = choose([KERN], replace(wanted, codes={}))
    assert (choice.target, choice.kernels) == ("sm_90", (FLOAT,))


def test_a_kernel_of_a_core_is_not_picked_by_its_name_alone() -> None:
    # One instruction of the core's kernel differs: another release of the compiler made it.
    wanted = wanted_by_core(str(CORES / "synthetic_sm90_nolines.nvcudmp.gz"), CoreFiles())
    with pytest.raises(BadInput, match="has kern<float>, but not with the instructions that the core has") as refused:
        choose([KERN], wanted)
    assert "--kernel NAME instead of --core" in (refused.value.next_step or "")
    (stock,) = (f for f in KERN.units[0].cubins[0].functions if f.function.name == FLOAT)
    same = CoreCode(code=b"", hash=stock.hash)
    (choice,) = choose([KERN], replace(wanted, codes={FLOAT: same}))
    assert choice.kernels == (FLOAT,)


def test_a_dump_without_an_exception_names_what_was_running() -> None:
    wanted = wanted_by_core(str(CORES / "synthetic_sm90_hang.nvcudmp.gz"), CoreFiles())
    assert wanted.kernels and wanted.archs == ("9.0",)


def test_an_unknown_extension_names_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"no library '_CC' with device code; did you mean _C\?"):
        choose([KERN], Wanted(extensions=("_CC",)))


@pytest.mark.parametrize(
    ("archs", "extensions", "refused"),
    [
        (("6.1",), (), "no cubin of _C, _fa3_C runs on 6.1"),
        (("8.0",), ("_fa3_C",), "no cubin of _fa3_C runs on 8.0"),
        (("9.0",), (), None),
        (("6.1", "8.6"), (), None),
        ((), (), None),
        (("6.1",), ("_unknown",), None),
    ],
)
def test_the_targets_alone_refuse_what_no_library_runs_on(
    archs: tuple[str, ...], extensions: tuple[str, ...], refused: str | None
) -> None:
    targets = {"_C": frozenset({"sm_80", "sm_90"}), "_fa3_C": frozenset({"sm_90a"})}
    with pytest.raises(BadInput, match=refused) if refused else nullcontext():
        require_runnable(targets, Wanted(archs=archs, extensions=extensions))


def test_an_architecture_without_cubin_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no cubin of _C runs on 8\.0") as refused:
        choose([KERN], Wanted(extensions=("_C",), archs=("8.0",)))
    assert refused.value.next_step == "one of sm_90"


def test_the_compiler_is_the_one_that_the_cubins_name() -> None:
    assert compiler_release(cubin("no_lines_sm90")) == "13.0.88"
    assert one_compiler([KERN]) == "13.0.88"
    with pytest.raises(BadInput, match="do not name the compiler"):
        one_compiler([])


@dataclass
class Builds:
    """The port over a configured tree that is given: how many names a source has, and what it compiles to."""

    units: tuple[Unit, ...]
    asked: list[TreeRequest] = field(default_factory=list)
    naming: dict[str, int] = field(default_factory=dict)
    cubins: dict[str, bytes] = field(default_factory=dict)
    compiled: list[str] = field(default_factory=list)

    def configure(self, request: TreeRequest) -> ConfiguredTree:
        self.asked.append(request)
        return ConfiguredTree(folder="/tree", compiler="/cuda", units=self.units)

    def mentions(self, tree: ConfiguredTree, units: Sequence[Unit], names: frozenset[str]) -> tuple[int, ...]:
        assert names == {"kern"}
        return tuple(self.naming.get(unit.source, 0) for unit in units)

    def compile(self, tree: ConfiguredTree, orders: tuple[UnitOrder, ...], *, jobs: int) -> Iterator[CompiledUnit]:
        for order in orders:
            self.compiled.append(order.unit.source)
            yield CompiledUnit(order=order, cubin=self.cubins.get(order.unit.source), cached=False, duration_s=0.1)


OTHER = Unit(source="a.cu", extension="_moe_C", folder="/b", argv=(), codes=(("compute_90", "sm_90"),))


@pytest.mark.parametrize(
    ("units", "reason"),
    [
        ((OTHER,), "the configured sources do not build _C: it is another project's"),
        (
            (replace(OTHER, extension="_C"), replace(OTHER, extension="_C", source="b.cu")),
            "_C was linked from 1 CUDA sources, and these sources have 2 for it",
        ),
        (
            (replace(OTHER, extension="_C", codes=(("compute_80", "sm_80"),)),),
            "the sources list another file there, for other architectures",
        ),
    ],
)
def test_a_unit_without_its_source_is_reported_with_the_reason(units: tuple[Unit, ...], reason: str) -> None:
    builds = Builds(units)
    request = LinesRequest(requirement="toy==1.0", wanted=Wanted(kernels=("kern",)))
    result = rebuild(request, [KERN], RELEASE, origin="toy.whl", builds=builds)  # type: ignore[arg-type]
    assert result.built == ()
    assert [left.reason for left in result.unplaced] == [reason]
    assert (builds.asked[0].compiler, builds.asked[0].arch_list) == ("13.0.88", "9.0")


SAME, ANOTHER = cubin("inline_chain_sm90"), cubin("shared_leaf_sm90")


@pytest.mark.parametrize(
    ("naming", "compiled", "source"),
    [
        ({"right.cu": 2, "wrong.cu": 1}, ["right.cu"], "right.cu"),
        ({"right.cu": 1, "wrong.cu": 2}, ["wrong.cu", "right.cu"], "right.cu"),
        ({"wrong.cu": 1, "broken.cu": 1}, ["wrong.cu", "broken.cu"], None),
        ({}, [], None),
    ],
)
def test_where_the_order_of_the_link_does_not_hold_sources_are_searched_for_by_name(
    naming: dict[str, int], compiled: list[str], source: str | None
) -> None:
    names = ("wrong.cu", "other.cu", "right.cu", "broken.cu")
    units = tuple(replace(OTHER, extension="_C", source=name) for name in names)
    builds = Builds(units, naming=naming, cubins={"wrong.cu": ANOTHER, "right.cu": SAME})
    request = LinesRequest(requirement="toy==1.0", wanted=Wanted(kernels=("kern",)))
    result = rebuild(request, [KERN], RELEASE, origin="toy.whl", builds=builds)  # type: ignore[arg-type]
    assert builds.compiled == compiled
    assert [(built.source, built.placed_by) for built in result.built] == ([(source, "kernel names")] if source else [])
    if source:
        assert result.built[0].comparison and result.built[0].comparison.complete
        assert "right.cu, found by the names of its kernels" in lines_text(result)
    else:
        (left,) = result.unplaced
        assert "was linked from 1 CUDA sources" in left.reason
        assert ("compiles to other code" in left.reason) == bool(naming)


def test_wheels_for_cuda_12_name_their_release_by_their_ptx() -> None:
    data = host_library(container(EntrySpec(payload=b"\n\n.version 8.7\n.target sm_90\n", kind=EntryKind.PTX)))
    (library,) = read_stock([BinaryFile(name="_C.so", data=data)])
    assert library.ptx_version == "8.7"
    with pytest.raises(BadInput, match=r"their PTX is of version 8.7, that of CUDA 12.8") as refused:
        one_compiler([library])
    assert refused.value.next_step and "--compiler /usr/local/cuda-12.8" in refused.value.next_step

    require_compiler([library], "12.8.61", "_C.so")
    with pytest.raises(BadInput, match=r"_C.so was compiled by CUDA 12.8, by the version of its PTX, not by 12.9.86"):
        require_compiler([library], "12.9.86", "_C.so")


def test_a_compiler_that_the_cubins_do_not_name_is_refused_before_anything_is_configured() -> None:
    builds = Builds((OTHER,))
    request = LinesRequest(requirement="toy==1.0", wanted=Wanted(kernels=("kern",)), compiler="13.0.85")
    with pytest.raises(BadInput, match=r"toy.whl was compiled by nvcc 13.0.88, not by 13.0.85"):
        rebuild(request, [KERN], RELEASE, origin="toy.whl", builds=builds)  # type: ignore[arg-type]
    assert builds.asked == []


def test_a_build_with_line_info_is_the_same_code_and_another_source_is_not() -> None:
    stock = KERN.units[0].cubins[0]
    same = compare(stock, cubin("inline_chain_sm90"))
    assert same.complete and same.total == 2 and same.renamed == ()
    other = compare(stock, cubin("shared_leaf_sm90"))
    assert other.identical == () and len(other.missing) == 2 and not other.complete


def test_the_json_of_a_build_of_lines_has_every_field_of_its_schema() -> None:
    contract = Contract("lines-build-v1")
    unit = replace(OTHER, extension="_C", source="right.cu")
    builds = Builds((unit,), naming={"right.cu": 1}, cubins={"right.cu": SAME})
    request = LinesRequest(requirement="toy==1.0", wanted=Wanted(kernels=("kern",)))
    result = rebuild(request, [KERN], RELEASE, origin="toy.whl", builds=builds)  # type: ignore[arg-type]
    (built,) = result.built
    assert built.comparison
    project = OtherProject(name="cutlass", repository="https://x/cutlass", revision="v4.4", variable="CUTLASS_DIR")
    headers = OtherHeaders(project="CUTLASS", used="4.2", wanted="4.4")
    rare = replace(
        result,
        tree=replace(result.tree, notes=("a note",), projects=(project,)),
        built=(
            replace(
                built,
                comparison=replace(built.comparison, differing=("d",), missing=("m",), renamed=(("a", "b"),)),
                compiled=replace(built.compiled, output="an error"),
            ),
        ),
        unplaced=(Unplaced(choice=built.choice, reason="r"),),
    )
    shown = SourceFrame(function="f", file="a.cu", line=3)
    written = Written(
        path=Path("a.lines"),
        core=CoreLines(file="c.nvcudmp", shown=shown, places=2, without=("k+0x10",)),
        headers=(HeadersShare(headers=headers, instructions=1, of=2),),
    )
    contract.check(json.loads(json_text(lines_json(result))))
    contract.check(json.loads(json_text(lines_json(rare, written))))
    assert contract.never_met() == set()
