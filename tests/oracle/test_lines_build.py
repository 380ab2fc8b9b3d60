"""A made-up stock wheel, really compiled without line info: its lines are made from the wheel and its sources alone.

nvdisasm, cuobjdump and the dynamic loader judge what is made of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpucore.code_map import CodeMap
from gpucore.cubin import read_cubin
from gpucore.line_packs import LinePack, PackedHeaders
from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, LaunchSpec, ModuleSpec, WarpSpec, build_core
from tests.support.command_line import vdbg_env
from tests.support.schemas import Contract
from tests.support.toolchain import cuda_tool
from vdbg_env.common.console import json_text
from vdbg_env.common.errors import BadInput, NotProven, OtherLines
from vdbg_env.crash.files import BinaryFile, BinaryFiles, CoreFiles
from vdbg_env_lines.build import (
    LinesBuilt,
    LinesRequest,
    build_lines,
    lines_for_core,
    lines_of_other_headers,
    pack_built,
)
from vdbg_env_lines.commands import exit_status
from vdbg_env_lines.compilers import Toolkit
from vdbg_env_lines.onto import OntoRequest, build_onto, onto_json, onto_text
from vdbg_env_lines.result import Written, lines_text
from vdbg_env_lines.sources import LocalUnitBuilds
from vdbg_env_lines.stock import CoreCode, Wanted, read_stock, wanted_by_core
from vdbg_env_lines.swap import Installed, Swap
from vdbg_env_lines.units import ConfiguredTree, OtherProject, Release, TreeRequest, read_compile_commands

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

SCALE = """
namespace {
template <int N> __device__ float scale(float x) {
  return x * N;
}
__device__ int counter;
__global__ void hidden(float* o) {
  counter = 1;
  o[threadIdx.x] = scale<3>(o[threadIdx.x]);
}
}
namespace toy {
template <int N> __global__ void blur(float* o) {
  o[threadIdx.x] = scale<N>(o[threadIdx.x + 1]);
}
template __global__ void blur<4>(float*);
}
void launch(float* o) { hidden<<<1, 32>>>(o); }
"""
# As CUTLASS's headers do from release to release: another type in a kernel's arguments, and the same instructions.
LIBRARY = """
#pragma once
namespace lib {
struct Shape_%(release)s { static constexpr int value = 7; };
using Shape = Shape_%(release)s;
template <class T> __device__ float shaped(float x) {
  return x * T::value;
}
template <class T> __global__ void device_kernel(float* o) {
  o[threadIdx.x] = shaped<T>(o[threadIdx.x]);
}
}
"""
GEMM = """
#include "lib/include/lib.h"
template __global__ void lib::device_kernel<lib::Shape>(float*);
"""
LIB = OtherProject(name="lib", repository="https://example.org/lib.git", revision="v4.7.1", variable="TOY_LIB_SRC_DIR")
OTHER = PackedHeaders(folder="lib-4.2.0/", project="lib", used="4.2.0", wanted="v4.7.1")
COPY = "__global__ void copy(float* o) { o[threadIdx.x] = o[threadIdx.x + 32]; }\n"
ARCHS = ("-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90a,code=sm_90a")
FLAGS = ("-O3", "-std=c++17", "-Xcompiler", "-fPIC", "--compress-mode=size", *ARCHS)


@dataclass(frozen=True)
class Toy:
    """A wheel of one library, the folder that its sources are in, and the commands that CMake would write."""

    wheel: Path
    sources: Path
    library: bytes

    def commands(self) -> str:
        rows = [
            {
                "directory": str(self.sources),
                "file": str(self.sources / f"{name}.cu"),
                "arguments": [cuda_tool("nvcc"), *FLAGS, "-x", "cu", "-c", str(self.sources / f"{name}.cu"),
                              "-o", f"CMakeFiles/_toy_C.dir/{name}.cu.o"],
            }
            for name in ("copy", "scale", "gemm")
        ]  # fmt: skip
        return json.dumps(rows)


def toolkit() -> Path:
    """Return the root that nvcc is in, as it prints it itself: what is on PATH may be a script that calls it."""
    printed = subprocess.run(
        [cuda_tool("nvcc"), "--dryrun", "x.cu"], capture_output=True, text=True, check=False
    ).stderr
    top = re.search(r"TOP=(.*)", printed)
    assert top, printed
    return Path(top[1].strip()).resolve()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    nvcc = cuda_tool("nvcc")
    release, sources = tmp_path_factory.mktemp("release"), tmp_path_factory.mktemp("again")
    for folder, headers in ((release, "v47"), (sources, "v42")):
        (folder / "scale.cu").write_text(SCALE)
        (folder / "copy.cu").write_text(COPY)
        (folder / "gemm.cu").write_text(GEMM)
        (folder / "lib" / "include").mkdir(parents=True)
        (folder / "lib" / "include" / "lib.h").write_text(LIBRARY % {"release": headers})
    for name in ("copy", "scale", "gemm"):
        run([nvcc, *FLAGS, "-c", f"{name}.cu", "-o", f"{name}.o"], release)
    lib = toolkit() / "lib64"
    run(["g++", "-shared", "-o", "_toy_C.abi3.so", "copy.o", "scale.o", "gemm.o", f"-L{lib}", "-lcudart"], release)
    wheel = release / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(release / "_toy_C.abi3.so", "toy/_toy_C.abi3.so")
        archive.writestr("toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    return Toy(wheel, sources, (release / "_toy_C.abi3.so").read_bytes())


@pytest.fixture(scope="module", autouse=True)
def no_index() -> Iterator[None]:
    """The sources are here: no package index is asked for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toolkit, "ask_for_sources", lambda _toolkit, _requirement: ())
        yield


class Prepared(LocalUnitBuilds):
    """The port with sources that are configured already; everything else is the real one."""

    def __init__(self, toy: Toy, work: Path, headers: PackedHeaders | None = None) -> None:
        super().__init__(lambda _: None, work)
        self.toy = toy
        self.headers = headers
        self.requests: list[TreeRequest] = []

    def configure(self, request: TreeRequest) -> ConfiguredTree:
        self.requests.append(request)
        units = read_compile_commands(self.toy.commands())
        compiler = str(toolkit())
        sources = str(self.toy.sources)
        return ConfiguredTree(
            folder=sources, compiler=compiler, units=units, projects=(LIB,),
            headers=(self.headers,) if self.headers else (),
            shown=((f"{sources}/lib/", "lib-4.2.0/"), (f"{sources}/", "csrc/")),
        )  # fmt: skip


@pytest.fixture(scope="module")
def builds(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return Prepared(toy, tmp_path_factory.mktemp("work"))


def lines(toy: Toy, builds: Prepared, wanted: Wanted) -> LinesBuilt:
    request = LinesRequest(requirement=str(toy.wheel), wanted=wanted, jobs=2)
    return build_lines(request, builds=builds, binaries=BinaryFiles())


def test_a_kernel_s_unit_is_found_compiled_and_identical(toy: Toy, builds: Prepared) -> None:
    result = lines(toy, builds, Wanted(kernels=("blur<4>",), archs=("9.0",)))
    (unit,) = result.built
    assert (Path(unit.source).name, unit.choice.target, unit.choice.unit.number) == ("scale.cu", "sm_90a", 1)
    assert unit.comparison and unit.comparison.complete and unit.comparison.total == 2
    assert unit.compiled.cubin and read_cubin(unit.compiled.cubin).has_debug_line
    # The compiler and the architectures are those that the wheel's cubins name.
    (request, *_) = builds.requests
    assert request.compiler == re.search(r"V([\d.]+)", run([cuda_tool("nvcc"), "--version"]))[1]  # type: ignore[index]
    assert request.arch_list == "8.0 9.0"


def test_names_that_hash_a_path_are_matched_and_reported(toy: Toy, builds: Prepared) -> None:
    (unit,) = lines(toy, builds, Wanted(kernels=("hidden",), archs=("9.0",))).built
    assert unit.comparison
    ((stock, built),) = unit.comparison.renamed
    assert stock != built
    assert re.sub("[0-9a-f]{8}", "", stock) == re.sub("[0-9a-f]{8}", "", built)


def stock_cubin(toy: Toy, kernel: str) -> bytes:
    """Return the cubin of the wheel that has a kernel, for sm_90a."""
    with BinaryFiles().open(str(toy.wheel)) as files:
        (library,) = read_stock(files)
    cubins = [unit.cubin("sm_90a") for unit in library.units]
    (stock,) = (cubin for cubin in cubins if cubin and any(kernel in name for name in cubin.kernel_names))
    return bytes(stock.entry.payload())


def core_of(toy: Toy, kernel: str, path: Path) -> Path:
    """Write a synthetic core around the stock code of a kernel, with a fault at its first store."""
    stock = stock_cubin(toy, kernel)
    (name,) = (found.name for found in CodeMap(stock).kernels if kernel in found.name)
    warps = [WarpSpec(offset=0x40, error_offset=0x40, exception=14, valid=1, active=1)]
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=stock)],
        launches=[LaunchSpec(kernel=name)],
        blocks=[BlockSpec(warps=warps)],
        registers=False,
    )
    path.write_bytes(build_core(CoreSpec(devices=[device])))
    return path


def test_a_kernel_whose_arguments_are_named_otherwise_gets_its_line(toy: Toy, builds: Prepared, tmp_path: Path) -> None:
    core = core_of(toy, "device_kernel", tmp_path / "core.nvcudmp")
    result = lines(toy, builds, wanted_by_core(str(core), CoreFiles()))
    ((stock, built),) = (pair for unit in result.built if unit.comparison for pair in unit.comparison.renamed)
    assert "v47" in stock and "v42" in built
    packed = pack_built(result)
    assert packed
    (tmp_path / "new.lines").write_bytes(packed.data)
    shown = vdbg_env("core", "--lines", str(tmp_path / "new.lines"), str(core))
    assert "lib.h:" in shown.stdout, shown.stdout
    in_core = lines_for_core(str(core), packed.data, CoreFiles())
    assert (in_core.places, in_core.without) == (1, ()) and in_core.shown
    assert exit_status(result, Written(core=in_core)) == 0


def test_success_is_not_reported_for_a_core_without_a_line(toy: Toy, builds: Prepared, tmp_path: Path) -> None:
    core = core_of(toy, "blur", tmp_path / "core.nvcudmp")
    result = lines(toy, builds, Wanted(kernels=("copy",), archs=("9.0",)))
    packed = pack_built(result)
    assert packed
    in_core = lines_for_core(str(core), packed.data, CoreFiles())
    assert len(in_core.without) == 1 and "blur" in in_core.without[0]
    assert (exit_status(result), exit_status(result, Written(core=in_core))) == (0, 4)
    assert "no line" in lines_text(result, Written(core=in_core))


def test_lines_of_other_headers_are_marked_wherever_they_are_shown(toy: Toy, builds: Prepared, tmp_path: Path) -> None:
    core = core_of(toy, "device_kernel", tmp_path / "core.nvcudmp")
    marked = Prepared(toy, builds._kept.home, OTHER)
    result = lines(toy, marked, wanted_by_core(str(core), CoreFiles()))
    packed = pack_built(result)
    assert packed
    (share,) = shares = lines_of_other_headers(result, packed.data)
    assert 0 < share.instructions <= share.of
    written = Written(core=lines_for_core(str(core), packed.data, CoreFiles()), headers=shares)
    assert exit_status(result, written) == 4
    mark = "line of lib 4.2.0; the wheel was built with v4.7.1"
    text = lines_text(result, written)
    assert mark in text and "git clone --depth 1 --branch v4.7.1 https://example.org/lib.git\n" in text
    assert '--external TOY_LIB_SRC_DIR="$PWD/lib"' in text
    pack = tmp_path / "new.lines"
    pack.write_bytes(packed.data)
    said = {"project": "lib", "used": "4.2.0", "wanted": "v4.7.1"}
    (fault,) = json.loads(vdbg_env("core", "--json", "--lines", str(pack), str(core)).stdout)["faults"]
    assert fault["lines_from"]["headers"] == said
    assert [frame["headers"] for frame in fault["chain"] if "/lib.h" in frame["file"]] == [said] * len(fault["chain"])
    assert all(frame["file"].startswith("lib-4.2.0/include/") for frame in fault["chain"])
    shown = vdbg_env("core", "--lines", str(pack), str(core)).stdout
    assert all(mark in line for line in shown.splitlines() if "lib.h:" in line and "note: " not in line), shown
    name = next(record.name for record in LinePack(packed.data).records())
    cubin = tmp_path / "stock.cubin"
    cubin.write_bytes(stock_cubin(toy, "device_kernel"))
    located = vdbg_env("locate", "--lines", str(pack), f"{name}+0x40", str(cubin)).stdout
    assert mark in located, located
    assert mark in vdbg_env("lines", "show", str(pack)).stdout


def test_lines_of_the_release_s_own_headers_and_sources_are_not_marked(
    toy: Toy, builds: Prepared, tmp_path: Path
) -> None:
    exact = Prepared(toy, builds._kept.home, replace(OTHER, used="4.7.1"))
    for prepared, kernel in ((exact, "device_kernel"), (Prepared(toy, builds._kept.home, OTHER), "blur")):
        result = lines(toy, prepared, Wanted(kernels=(kernel,), archs=("9.0",)))
        packed = pack_built(result)
        assert packed and lines_of_other_headers(result, packed.data) == ()
        core = core_of(toy, kernel, tmp_path / "core.nvcudmp")
        (tmp_path / "new.lines").write_bytes(packed.data)
        (fault,) = json.loads(vdbg_env("core", "--json", "--lines", str(tmp_path / "new.lines"), str(core)).stdout)[
            "faults"
        ]
        assert fault["chain"] and "headers" not in fault["lines_from"]
        assert all("headers" not in frame for frame in fault["chain"])


def test_lines_of_the_right_headers_win_over_those_of_others(toy: Toy, builds: Prepared, tmp_path: Path) -> None:
    core = core_of(toy, "device_kernel", tmp_path / "core.nvcudmp")
    for name, used in (("a", "4.2.0"), ("b", "4.7.1")):
        prepared = Prepared(toy, builds._kept.home, replace(OTHER, used=used))
        packed = pack_built(lines(toy, prepared, wanted_by_core(str(core), CoreFiles())))
        assert packed
        (tmp_path / f"{name}.lines").write_bytes(packed.data)
    ran = vdbg_env("core", "--json", "--lines", str(tmp_path), str(core))
    (fault,) = json.loads(ran.stdout)["faults"]
    assert fault["chain"] and "headers" not in fault["lines_from"] and fault["lines_from"]["others"] == []


def test_onto_refuses_lines_of_other_headers_unless_they_are_accepted(toy: Toy, builds: Prepared) -> None:
    marked = Prepared(toy, builds._kept.home, OTHER)
    wanted = LinesRequest(requirement="", wanted=Wanted(kernels=("device_kernel",), archs=("9.0",)), jobs=2)
    request = OntoRequest(image="toy:1", project="toy", lines=wanted, tags=())
    image = Memory(toy)
    with pytest.raises(OtherLines, match="instructions would have a line of lib") as refused:
        build_onto(request, images=image, builds=marked, clock=lambda: 0.0)  # type: ignore[arg-type]
    assert refused.value.exit_status == 4 and set(image.images) == {"sha256:base"}
    accepted = replace(request, accept_other_headers=True)
    result = build_onto(accepted, images=image, builds=marked, clock=lambda: 0.0)  # type: ignore[arg-type]
    assert [share.headers.used for share in result.headers] == ["4.2.0"]
    Contract("onto-v1").check(json.loads(json_text(onto_json(result))))
    text = onto_text(result)
    assert "its lines are the stock wheel's" not in text
    assert "line of lib 4.2.0; the wheel was built with v4.7.1" in text and "again with --dep TOY_LIB_SRC_DIR=" in text


def test_code_under_the_name_of_another_kernel_is_not_taken_for_it(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "lib" / "include").mkdir(parents=True)
    (tmp_path / "lib" / "include" / "lib.h").write_text(
        LIBRARY.replace("void device_kernel", "void third_kernel") % {"release": "v47"}
    )
    (tmp_path / "gemm.cu").write_text(GEMM.replace("device_kernel", "third_kernel"))
    changed = replace(toy, sources=tmp_path)
    wanted = Wanted(kernels=("device_kernel",), archs=("9.0",))
    (unit,) = lines(changed, Prepared(changed, tmp_path / "work"), wanted).built
    assert unit.comparison and unit.comparison.identical == () and len(unit.comparison.missing) == 1


def test_a_kernel_is_picked_by_the_code_of_the_core(toy: Toy, builds: Prepared, tmp_path: Path) -> None:
    core = core_of(toy, "blur", tmp_path / "core.nvcudmp")
    wanted = wanted_by_core(str(core), CoreFiles())
    (unit,) = lines(toy, builds, wanted).built
    assert Path(unit.source).name == "scale.cu"
    ((name, code),) = wanted.codes.items()
    other = CoreCode(code=bytes(len(code.code)), hash=bytes(16))
    with pytest.raises(BadInput, match=r"the wheel has toy::blur<4>, but not with the instructions that the core has"):
        lines(toy, builds, replace(wanted, codes={name: other}))


def test_a_second_call_takes_the_cubin_of_the_first(toy: Toy, builds: Prepared) -> None:
    lines(toy, builds, Wanted(kernels=("copy",), archs=("8.0",)))
    (unit,) = lines(toy, builds, Wanted(kernels=("copy",), archs=("8.0",))).built
    assert unit.compiled.cached and unit.compiled.duration_s == 0.0


def test_the_pack_has_the_lines_of_the_stock_code(toy: Toy, builds: Prepared) -> None:
    packed = pack_built(lines(toy, builds, Wanted(extensions=("_toy_C",), archs=("9.0",))))
    assert packed
    hashes = {record.hash for record in LinePack(packed.data).records()}
    with BinaryFiles().open(str(toy.wheel)) as files:
        (library,) = read_stock(files)
    stock = {f.hash for unit in library.units for f in (unit.cubin("sm_90a") or unit.cubins[0]).functions}
    assert stock <= hashes


def test_changed_sources_are_not_taken_for_the_stock_code(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(SCALE.replace("x * N", "x * N + 1"))
    (tmp_path / "copy.cu").write_text(COPY)
    changed = replace(toy, sources=tmp_path)
    (unit,) = lines(changed, Prepared(changed, tmp_path / "work"), Wanted(kernels=("blur",), archs=("9.0",))).built
    assert unit.comparison and unit.comparison.identical == () and len(unit.comparison.differing) == 2


def test_a_source_that_does_not_compile_says_why(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text("#error of this test\n")
    broken = replace(toy, sources=tmp_path)
    (unit,) = lines(broken, Prepared(broken, tmp_path / "work"), Wanted(kernels=("blur",), archs=("9.0",))).built
    assert unit.comparison is None and unit.compiled.cubin is None
    assert "#error of this test" in unit.compiled.output


def test_a_kernel_that_is_not_there_is_refused_with_the_nearest(toy: Toy, builds: Prepared) -> None:
    with pytest.raises(BadInput, match=r"no library of the wheel has a kernel 'blurr'; did you mean toy::blur\?"):
        lines(toy, builds, Wanted(kernels=("blurr",)))


def test_an_architecture_that_only_has_ptx_is_refused(toy: Toy, builds: Prepared) -> None:
    with pytest.raises(BadInput, match=r"blur is in the wheel, but no cubin of it runs on 10\.0") as refused:
        lines(toy, builds, Wanted(kernels=("blur",), archs=("10.0",)))
    assert "compiles its PTX" in (refused.value.cause or "")
    assert "it was compiled for sm_80, sm_90" in (refused.value.next_step or "")


class Memory:
    """An image as a mapping of paths: the port of swaps without an engine; `spoil` changes what is written."""

    def __init__(self, toy: Toy, spoil: bytes = b"") -> None:
        self.path = "/venv/site/toy/_toy_C.abi3.so"
        self.images = {"sha256:base": {self.path: toy.library}}
        self.tags: dict[str, dict[str, str]] = {}
        self.spoil = spoil

    def installed(self, image: str, project: str) -> Installed:
        release = Release(project=project, version="1.0", requires=())
        return Installed(release=release, folder="/venv/site", image_id="sha256:base")

    def targets(self, base: Installed, project: str) -> dict[str, frozenset[str]]:
        return {}

    @contextmanager
    def files(self, image_id: str, folders: Sequence[str]) -> Iterator[Iterator[BinaryFile]]:
        found = self.images[image_id]
        yield iter(
            BinaryFile(name=name, data=data)
            for folder in folders
            for name, data in found.items()
            if name == folder or name.startswith(folder + "/")
        )

    def swap(self, image_id: str, swaps: Sequence[Swap]) -> str:
        new = dict(self.images[image_id])
        for swap in swaps:
            written = swap.new.replace(self.spoil, self.spoil[::-1], 1) if self.spoil else swap.new
            new |= {swap.path: written, swap.kept: swap.stock}
        self.images["sha256:new"] = new
        return "sha256:new"

    def discard(self, image_id: str) -> None:
        del self.images[image_id]

    def tag(self, image_id: str, names: Sequence[str], labels: dict[str, str]) -> str:  # type: ignore[override,unused-ignore]
        self.tags |= {name: dict(labels) for name in names}
        return image_id


def swapped(toy: Toy, builds: Prepared, image: Memory) -> bytes:
    wanted = LinesRequest(requirement="", wanted=Wanted(kernels=("blur",), archs=("9.0",)), jobs=2)
    request = OntoRequest(image="toy:1", project="toy", lines=wanted, tags=("toy:lines",))
    result = build_onto(request, images=image, builds=builds, clock=lambda: 0.0)  # type: ignore[arg-type]
    (library,) = result.proof.libraries
    assert (library.cubins, library.with_lines, library.functions, library.identical) == (6, 1, 2, 2)
    return image.images[result.image_id][image.path]


def test_a_swapped_library_is_the_original_with_lines(toy: Toy, builds: Prepared, tmp_path: Path) -> None:
    image = Memory(toy)
    library = swapped(toy, builds, image)
    assert image.images["sha256:new"][f"{image.path}.stock"] == toy.library
    assert image.tags["toy:lines"]["dev.vdbg-env.onto"] == "sha256:base"
    path = tmp_path / "_toy_C.abi3.so"
    path.write_bytes(library)

    # cuobjdump finds the same cubins, and extracts three of them byte for byte as they were.
    def extracted(of: bytes, folder: str) -> list[bytes]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.so").write_bytes(of)
        run([cuda_tool("cuobjdump"), "-xelf", "all", "x.so"], tmp_path / folder)
        return [file.read_bytes() for file in sorted((tmp_path / folder).glob("*.cubin"))]

    before, after = extracted(toy.library, "before"), extracted(library, "after")
    assert len(before) == len(after) == 6
    (changed,) = [now for old, now in zip(before, after, strict=True) if old != now]

    # nvdisasm reads the same lines from it as from the cubin that was built with -lineinfo.
    (unit,) = lines(toy, builds, Wanted(kernels=("blur",), archs=("9.0",))).built
    assert unit.compiled.cubin is not None
    assert listed(changed, tmp_path) == listed(unit.compiled.cubin, tmp_path)
    assert "scale.cu" in "".join(listed(changed, tmp_path))

    # The dynamic loader maps it, runs the constructor that registers the fat binary, and finds the host function.
    lib = toolkit() / "lib64"
    load = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1])._Z6launchPf is not None)"
    env = {**os.environ, "LD_LIBRARY_PATH": str(lib)}
    assert run([sys.executable, "-c", load, str(path)], env=env) == "True\n"


def test_a_host_part_that_changed_is_not_proven(toy: Toy, builds: Prepared) -> None:
    image = Memory(toy, spoil=b"_Z6launchPf")
    with pytest.raises(NotProven, match="is not the original with line tables added") as refused:
        swapped(toy, builds, image)
    assert any(".dynstr" in detail or ".strtab" in detail for detail in refused.value.details)
    assert set(image.images) == {"sha256:base"}, "what was made is removed"


def test_an_image_of_another_compiler_is_refused(toy: Toy, builds: Prepared) -> None:
    wanted = LinesRequest(requirement="", wanted=Wanted(kernels=("blur",)), compiler="12.9.86")
    request = OntoRequest(image="toy:1", project="toy", lines=wanted, tags=())
    with pytest.raises(BadInput, match=r"toy:1 was compiled by nvcc [\d.]+, not by 12\.9\.86"):
        build_onto(request, images=Memory(toy), builds=builds, clock=lambda: 0.0)  # type: ignore[arg-type]


def listed(cubin: bytes, folder: Path) -> list[str]:
    """Return the lines and inline chains that nvdisasm prints, and its offsets."""
    (folder / "one.cubin").write_bytes(cubin)
    text = run([cuda_tool("nvdisasm"), "-gi", "-c", "one.cubin"], folder)
    return [
        line.strip() for line in text.splitlines() if "//## File" in line or re.match(r"\s+/\*[0-9a-f]{4}\*/", line)
    ]


def run(argv: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    ran = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
