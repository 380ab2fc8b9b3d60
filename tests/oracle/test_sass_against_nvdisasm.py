"""gpucore's SASS decoder against nvdisasm, on what nvcc compiles here."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucore import Elf, EntryKind, find_device_code
from gpucore.elf import read_branch_targets
from gpucore.sass import (
    Constant,
    Instruction,
    RegisterOperand,
    Unread,
    control_flow,
    decode,
    definitions,
    read_listings,
)
from tests.support.toolchain import cuda_tool, newest_cuda_tool

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 103, 120, 121)
SOURCE = r"""
struct View { float *data; long long stride; int width; };
__constant__ int table[64];
__noinline__ __device__ float look(const float *p, long long i, long long d) { return p[i / d] + p[i % d]; }
__global__ void kernel(float *out, const float *__restrict__ in, const int *index, View view, int n, double *wide,
                       unsigned long long *count) {
  __shared__ float tile[256];
  for (int t = blockIdx.x * blockDim.x + threadIdx.x; t < n; t += gridDim.x * blockDim.x) {
    int row = index[t];
    tile[threadIdx.x] = in[row * view.stride + table[row & 63]];
    __syncthreads();
    float other = __shfl_xor_sync(~0u, tile[t & 255], 3);
    out[t / view.width + (t % view.width) * view.stride] = tile[threadIdx.x ^ 1] + other;
    atomicAdd(out + row, 1.f);
    count[row] = max(count[t], (unsigned long long)row) >> n;
    wide[t] = wide[row] * 3.0 + (double)view.stride;
    if (view.stride) out[row] += look(view.data, t, view.stride);
    switch (row) {
      case 0: out[1] = 2; break;
      case 1: out[3] = in[5] * 2; break;
      case 2: out[4] = in[7] / 3; break;
      case 3: out[n] = min(max(row, n), 77); break;
      case 4: out[9] = in[n]; break;
      case 5: out[8] = __popc(row) + __clz(n); break;
    }
  }
}
"""


Tool = Callable[[str], str]
TOOLS: dict[str, Tool] = {"13.0": cuda_tool, "newest": newest_cuda_tool}
KERNELS = Path(__file__).parents[1] / "data" / "kernels"
BROAD = ("integers", "floats_and_copies")


@pytest.fixture(scope="module", params=TOOLS)
def tool(request: pytest.FixtureRequest) -> Tool:
    """Return what finds the tools of one CUDA."""
    return TOOLS[request.param]


@pytest.fixture(scope="module")
def cubins(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return a cubin of one kernel for each architecture, by target."""
    folder = tmp_path_factory.mktemp("sass")
    (folder / "kernel.cu").write_text(SOURCE)
    wanted = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in ARCHITECTURES]
    command = [tool("nvcc"), "-fatbin", *wanted, "-o", "kernel.fatbin", "kernel.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
    found = find_device_code((folder / "kernel.fatbin").read_bytes())
    return {code.entry.target: bytes(code.entry.payload()) for code in found if code.entry.kind == EntryKind.ELF}


def place_of(operand: object) -> object:
    """Return where an operand is, without its signs and its number."""
    if isinstance(operand, RegisterOperand):
        return operand.register
    return (operand.bank, operand.offset) if isinstance(operand, Constant) else "a number"


def assert_equal(code: bytes, sm: int, name: str, nvdisasm: str, folder: Path) -> tuple[Instruction, ...]:
    """Compare what the decoder says of some code with nvdisasm; return it."""
    (folder / "code").write_bytes(code)
    run = subprocess.run(
        [nvdisasm, "-b", name, "-json", str(folder / "code")], capture_output=True, check=True, timeout=120
    )
    (listing,) = read_listings(run.stdout)
    found = decode(code, sm)
    assert len(found) == len(listing.instructions)
    for ours, theirs in zip(found, listing.instructions, strict=True):
        if ours.known == "all":
            assert ours == theirs
            assert not any(isinstance(operand, Unread) for operand in ours.sources)
        else:
            assert ours.known == "writes", f"{theirs} is not known"
            assert (ours.opcode, ours.guard, ours.destinations) == (theirs.opcode, theirs.guard, theirs.destinations)
            if ours.opcode in {"FADD", "FMUL", "FFMA"}:
                assert list(map(place_of, ours.sources)) == list(map(place_of, theirs.sources))
        assert definitions(ours) == definitions(theirs)
    return found


@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_every_instruction_is_what_nvdisasm_says(tool: Tool, cubins: dict[str, bytes], tmp_path: Path, sm: int) -> None:
    elf = Elf(cubins[f"sm_{sm}"])
    (section,) = elf.sections_starting(".text.")
    found = assert_equal(bytes(elf.contents(section)), sm, f"SM{sm}", tool("nvdisasm"), tmp_path)
    assert len(found) > 200

    name = elf.name(section).removeprefix(".text.")
    flow = control_flow(found, tables=read_branch_targets(elf, name))
    assert flow.unresolved == (), "the indirect branch of the switch has its targets in the cubin"
    callees = {call.callee for call in flow.calls}
    assert callees and None not in callees
    for callee in callees:
        assert any(block.ends == "return" for block in control_flow(found, callee or 0).blocks)


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("sm", [90, 100, 120])
@pytest.mark.parametrize("source", BROAD)
def test_instructions_of_every_kind_are_what_the_newest_nvdisasm_says(source: str, sm: int, tmp_path: Path) -> None:
    compare_broadly(newest_cuda_tool, source, sm, tmp_path)


@pytest.mark.nvcc
@pytest.mark.long
@pytest.mark.parametrize("tool", TOOLS, indirect=True)
@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_instructions_of_every_kind_on_every_architecture(tool: Tool, sm: int, tmp_path: Path) -> None:
    for source in BROAD:
        compare_broadly(tool, source, sm, tmp_path)


def compare_broadly(tool: Tool, source: str, sm: int, folder: Path) -> None:
    """Compile a file of kernels and compare all of its code."""
    nvcc = Path(tool("nvcc"))
    headers = f"-I{nvcc.resolve().parents[1] / 'include' / 'cccl'}"
    flags = ["-std=c++17", "-w", f"-arch=sm_{sm}", headers, "-cubin", "-o", str(folder / "all.cubin")]
    subprocess.run([nvcc, *flags, KERNELS / f"{source}.cu"], check=True, capture_output=True, timeout=600)
    elf = Elf((folder / "all.cubin").read_bytes())
    code = b"".join(bytes(elf.contents(section)) for section in elf.sections_starting(".text."))
    name = f"SM{sm}a" if sm >= 90 else f"SM{sm}"
    assert len(assert_equal(code, sm, name, tool("nvdisasm"), folder)) > 1000
