"""What nvcc really writes, judged here and listed by cuobjdump; and where the usual ways of checking are wrong.

Each naive check stands beside ours as code, so that its failure is shown and not just told.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpucore.cubin import read_cubin, read_cubin_start
from gpucore.elf import Elf
from gpucore.fatbin import EntryKind, find_device_code
from gpucore.lineinfo import Cause, Counts, FileReport, Verdict
from tests.support.toolchain import cuda_tool
from vdbg_env.build.prove import VerifyRequest, verify_binaries
from vdbg_env.common.programs import Programs
from vdbg_env.crash.files import BinaryFiles, Scratch

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

KERNEL = """
template <int N> __device__ float scale(float x) { return x * N; }
template <int N> __global__ void blur(float* o) { o[threadIdx.x] = scale<N>(o[threadIdx.x + 1]); }
template __global__ void blur<4>(float*);
template __global__ void blur<8>(float*);
"""
CALLER = "extern __device__ float far(float);\n__global__ void caller(float* o) { o[0] = far(o[1]); }\n"
CALLEE = "__device__ float far(float x) { return x * x; }\n"
PLAIN = "int plain() { return 1; }\n"
TWO_ARCHS = ("-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=[sm_90,compute_90]")


@dataclass
class Toolchain:
    """nvcc and cuobjdump in a folder of their own."""

    folder: Path
    nvcc: str = field(default_factory=lambda: cuda_tool("nvcc"))
    cuobjdump: str = field(default_factory=lambda: cuda_tool("cuobjdump"))

    def source(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    def compile(self, output: str, *arguments: str) -> Path:
        self.run(self.nvcc, "-Xcompiler", "-fPIC", "-o", output, *arguments)
        return self.folder / output

    def shared(self, output: str, *arguments: str) -> Path:
        return self.compile(output, "-shared", *arguments)

    def listed(self, path: Path, *options: str) -> list[str]:
        """The lines of `cuobjdump -lelf`."""
        return [
            line for line in self.run(self.cuobjdump, *options, "-lelf", str(path)).splitlines() if "ELF file" in line
        ]

    def extracted(self, path: Path) -> list[Path]:
        """The files that `cuobjdump -all -xelf all` leaves in a folder."""
        folder = self.folder / f"extracted-{path.name}"
        folder.mkdir()
        subprocess.run([self.cuobjdump, "-all", "-xelf", "all", path], cwd=folder, check=True, capture_output=True)
        return sorted(folder.iterdir())

    def run(self, *argv: str) -> str:
        ran = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture
def tools(tmp_path: Path) -> Toolchain:
    return Toolchain(tmp_path)


@dataclass(frozen=True)
class WithWitness:
    """The programs of this machine, with the cuobjdump of the test's toolchain."""

    cuobjdump: str

    def head(self, program: str) -> bytes:
        return b""

    def which(self, program: str) -> str | None:
        assert program == "cuobjdump"
        return self.cuobjdump

    run = staticmethod(Programs().run)


def verify(tools: Toolchain, path: Path) -> FileReport:
    """Verify one file with cuobjdump as witness, which must agree."""
    request = VerifyRequest(targets=(str(path),), witness="cuobjdump", threads=2)
    (report,) = verify_binaries(
        request, source=BinaryFiles(), programs=WithWitness(tools.cuobjdump), scratch=Scratch()
    ).files
    assert report.witness is not None
    assert report.witness.agrees, report.witness
    return report


LINES = ("-lineinfo",), Verdict.FULL, Counts(cubins=4, with_code=2, with_debug_line=2, ptx=1)


# Members are compressed whatever is in them, so not all pairs are compiled.
@pytest.mark.parametrize(
    ("mode", "flags", "verdict", "counts"),
    [
        ("none", (), Verdict.NONE, Counts(cubins=4, with_code=2, ptx=1)),
        ("balance", ("-G",), Verdict.FULL, Counts(cubins=4, with_code=2, with_debug_line=2, device_debug=2, ptx=1)),
        ("size", ("-g",), Verdict.NONE, Counts(cubins=4, with_code=2, ptx=1)),
        *((mode, *LINES) for mode in ("none", "speed", "balance", "size")),
    ],
)
def test_every_compression_and_every_way_of_debugging(
    tools: Toolchain, mode: str, flags: Sequence[str], verdict: Verdict, counts: Counts
) -> None:
    library = tools.shared("lib.so", f"--compress-mode={mode}", *flags, *TWO_ARCHS, tools.source("k.cu", KERNEL))
    report = verify(tools, library)
    assert (report.verdict, report.counts) == (verdict, counts)


def test_kernels_of_what_lacks_lines_are_named(tools: Toolchain) -> None:
    report = verify(tools, tools.compile("k.o", "-c", "-arch=sm_90", tools.source("k.cu", KERNEL)))
    (missing,) = report.missing
    assert (missing.arch, sorted(missing.kernels)) == ("sm_90", ["_Z4blurILi4EEvPf", "_Z4blurILi8EEvPf"])


@pytest.mark.parametrize(("arch", "name"), [("90a", "sm_90a"), ("100f", "sm_100f"), ("120", "sm_120")])
def test_targets_are_named_in_libraries_and_bare_cubins_alike(tools: Toolchain, arch: str, name: str) -> None:
    source = tools.source("k.cu", KERNEL)
    library = verify(tools, tools.compile("k.o", "-c", f"-arch=sm_{arch}", source))
    bare = verify(tools, tools.compile("k.cubin", "-cubin", f"-arch=sm_{arch}", source))
    assert [a for a, c in library.archs if c.cubins] == [a for a, _ in bare.archs] == [name]


def test_a_library_mixed_from_a_cache_names_the_unit_that_was_not_compiled_again(tools: Toolchain) -> None:
    fresh = tools.compile("fresh.o", "-c", "-lineinfo", "-arch=sm_90", tools.source("fresh.cu", KERNEL))
    stale = tools.compile("stale.o", "-c", "-arch=sm_90", tools.source("stale.cu", KERNEL.replace("blur", "sharpen")))
    library = tools.shared("lib.so", str(fresh), str(stale))
    report = verify(tools, library)
    assert report.verdict is Verdict.PARTIAL
    assert [sorted(m.kernels) for m in report.missing] == [["_Z7sharpenILi4EEvPf", "_Z7sharpenILi8EEvPf"]]


def test_link_stubs_are_reported_and_never_failed(tools: Toolchain) -> None:
    library = tools.shared("lib.so", "-lineinfo", *TWO_ARCHS, tools.source("plain.cu", PLAIN))
    report = verify(tools, library)
    assert (report.verdict, report.counts) == (Verdict.NO_DEVICE_CODE, Counts(cubins=4, ptx=1))


def test_naive_search_for_the_string_takes_the_hosts_line_info_for_the_kernels(tools: Toolchain) -> None:
    library = tools.shared("lib.so", "-g", "-arch=sm_90", tools.source("k.cu", KERNEL))
    assert b".debug_line\0" in library.read_bytes()  # the naive verdict: full
    assert Elf(library.read_bytes()).section(".debug_line") is not None  # readelf's too: it is the host code's
    assert verify(tools, library).verdict is Verdict.NONE


def test_naive_extraction_lets_same_named_cubins_overwrite_each_other(tools: Toolchain) -> None:
    """Listing and exit status look right, one file is left, and it has line info: the one without was written over."""
    tools.compile("bad.cubin", "-cubin", "-arch=sm_90", tools.source("bad/k.cu", KERNEL.replace("blur", "stale")))
    tools.compile("good.cubin", "-cubin", "-lineinfo", "-arch=sm_90", tools.source("good/k.cu", KERNEL))
    fatbinary = str(Path(tools.nvcc).resolve().with_name("fatbinary"))
    fatbinary = fatbinary if Path(fatbinary).exists() else cuda_tool("fatbinary")
    for name in ("bad", "good"):
        image = f"--image3=kind=elf,sm=90,file={name}.cubin"
        tools.run(fatbinary, "-64", "--ident=k.cu", image, f"--create={name}.fatbin")
    both = tools.folder / "both.fatbin"
    both.write_bytes(b"".join((tools.folder / f"{name}.fatbin").read_bytes() for name in ("bad", "good")))

    files = tools.extracted(both)
    assert len(files) == 1
    assert all(read_cubin(file.read_bytes()).has_debug_line for file in files)  # the naive verdict: full

    report = verify(tools, both)
    assert (report.verdict, report.counts.cubins) == (Verdict.PARTIAL, 2)
    assert [m.identifier for m in report.missing] == ["k.cu"]


def test_twins_of_one_file_name_are_both_read_where_extraction_leaves_one(tools: Toolchain) -> None:
    objects = [
        str(
            tools.compile(
                f"{name}.o",
                "-c",
                "-lineinfo",
                "-arch=sm_90",
                tools.source(f"{name}/k.cu", KERNEL.replace("blur", name)),
            )
        )
        for name in ("one", "two")
    ]
    library = tools.folder / "twins.so"
    tools.run(shutil.which("g++") or "c++", "-shared", "-o", str(library), *objects)
    assert len(tools.extracted(library)) == 1
    assert verify(tools, library).counts == Counts(cubins=2, with_code=2, with_debug_line=2, ptx=2)


def test_naive_listing_leaves_out_relocatable_code(tools: Toolchain) -> None:
    sources = [tools.source("caller.cu", CALLER), tools.source("callee.cu", CALLEE)]
    library = tools.shared("lib.so", "-rdc=true", "-arch=sm_90", *sources)
    assert len(tools.listed(library)) == 1
    assert len(tools.listed(library, "-all")) == 3
    assert verify(tools, library).counts.cubins == 3


def test_one_unit_with_lines_gives_the_linked_cubin_a_table_that_covers_the_other_not(tools: Toolchain) -> None:
    """A naive check of the linked code says full: its table is there, and has no row for the other unit."""
    with_lines = tools.compile(
        "caller.o", "-c", "-lineinfo", "-rdc=true", "-arch=sm_90", tools.source("caller.cu", CALLER)
    )
    without = tools.compile("callee.o", "-c", "-rdc=true", "-arch=sm_90", tools.source("callee.cu", CALLEE))
    library = tools.shared("lib.so", "-arch=sm_90", str(with_lines), str(without))
    elf = Elf(library.read_bytes())
    final = elf.section(".nv_fatbin")
    assert final is not None
    linked = [
        read_cubin(c.entry.payload()) for c in find_device_code(elf.contents(final)) if c.entry.kind == EntryKind.ELF
    ]
    assert all(c.has_debug_line for c in linked if c.has_code)  # the naive verdict: full

    report = verify(tools, library)
    counts = Counts(cubins=3, with_code=3, with_debug_line=1, partly=1, ptx=2)
    assert (report.verdict, report.counts) == (Verdict.PARTIAL, counts)
    linked_one, unit = sorted(report.missing, key=lambda m: -m.kernel_count)
    assert (unit.cause, unit.kernel_count) == (Cause.NO_TABLE, 0)
    assert (linked_one.cause, [f.name for f in linked_one.functions]) == (Cause.LINKED_WITHOUT, ["_Z3farf"])


def test_lines_asked_for_at_the_link_alone_add_nothing(tools: Toolchain) -> None:
    without = tools.compile("caller.o", "-c", "-rdc=true", "-arch=sm_90", tools.source("caller.cu", CALLER))
    callee = tools.compile("callee.o", "-c", "-rdc=true", "-arch=sm_90", tools.source("callee.cu", CALLEE))
    library = tools.shared("lib.so", "-lineinfo", "-arch=sm_90", str(without), str(callee))
    assert verify(tools, library).verdict is Verdict.NONE


def test_a_static_library_is_read_by_members(tools: Toolchain) -> None:
    sources = [tools.source("caller.cu", CALLER), tools.source("a_callee_with_a_long_name.cu", CALLEE)]
    objects = [str(tools.compile(f"{s}.o", "-c", "-rdc=true", "-arch=sm_90", s)) for s in sources]
    report = verify(tools, tools.compile("libk.a", "-lib", *objects))
    assert [m.member for m in report.missing] == ["caller.cu.o", "a_callee_with_a_long_name.cu.o"]


def test_ptx_alone_is_said_and_not_judged(tools: Toolchain) -> None:
    code = ("-gencode", "arch=compute_90,code=compute_90")
    report = verify(tools, tools.compile("k.o", "-c", "-lineinfo", *code, tools.source("k.cu", KERNEL)))
    assert (report.verdict, report.counts) == (Verdict.NO_DEVICE_CODE, Counts(ptx=1))


def test_link_time_code_is_counted_and_not_judged(tools: Toolchain) -> None:
    code = ("-gencode", "arch=compute_90,code=lto_90")
    report = verify(tools, tools.compile("k.o", "-c", "-rdc=true", *code, tools.source("k.cu", KERNEL)))
    assert (report.verdict, report.counts) == (Verdict.NO_DEVICE_CODE, Counts(other=1))


def test_the_code_of_a_library_without_a_section_table_is_found_elsewhere(tools: Toolchain) -> None:
    library = tools.shared("lib.so", "-lineinfo", "-arch=sm_90", tools.source("k.cu", KERNEL))
    damaged = bytearray(library.read_bytes())
    start, count = int.from_bytes(damaged[40:48], "little"), int.from_bytes(damaged[60:62], "little")
    damaged[start : start + 64 * count] = bytes(64 * count)
    library.write_bytes(damaged)
    report = verify(tools, library)  # cuobjdump: 255, "does not contain device code"
    assert report.verdict is Verdict.FULL
    assert report.elsewhere


def test_a_host_program_has_no_device_code_and_both_say_so(tools: Toolchain) -> None:
    (tools.folder / "plain.cc").write_text(PLAIN)
    tools.run(shutil.which("g++") or "c++", "-shared", "-o", "plain.so", "plain.cc")
    witness = verify(tools, tools.folder / "plain.so").witness
    assert witness is not None
    assert (witness.listed, witness.rc) == (0, 255)


@pytest.mark.parametrize("arch", ["75", "80", "89", "90", "90a", "100", "100f", "120"])
def test_the_start_of_a_real_cubin_tells_what_its_section_headers_tell(tools: Toolchain, arch: str) -> None:
    """The layout that `read_cubin_start` counts on is nvcc's own on every architecture."""
    data = tools.compile("k.cubin", "-cubin", f"-arch=sm_{arch}", tools.source("k.cu", KERNEL)).read_bytes()
    assert read_cubin_start([data]) == read_cubin(data)
