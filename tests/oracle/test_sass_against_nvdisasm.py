"""gpucore's SASS decoder against nvdisasm, on what nvcc compiles here."""

import subprocess
from pathlib import Path

import pytest

from gpucore import Elf, EntryKind, find_device_code
from gpucore.elf import read_branch_targets
from gpucore.sass import Constant, RegisterOperand, Unread, control_flow, decode, definitions, read_listings
from tests.support.toolchain import cuda_tool

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


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return a cubin of one kernel for each architecture, by target."""
    folder = tmp_path_factory.mktemp("sass")
    (folder / "kernel.cu").write_text(SOURCE)
    wanted = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in ARCHITECTURES]
    command = [cuda_tool("nvcc"), "-fatbin", *wanted, "-o", "kernel.fatbin", "kernel.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
    found = find_device_code((folder / "kernel.fatbin").read_bytes())
    return {code.entry.target: bytes(code.entry.payload()) for code in found if code.entry.kind == EntryKind.ELF}


def place_of(operand: object) -> object:
    """Return where an operand is, without its signs and its number."""
    if isinstance(operand, RegisterOperand):
        return operand.register
    return (operand.bank, operand.offset) if isinstance(operand, Constant) else "a number"


@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_every_instruction_is_what_nvdisasm_says(cubins: dict[str, bytes], tmp_path: Path, sm: int) -> None:
    elf = Elf(cubins[f"sm_{sm}"])
    (section,) = elf.sections_starting(".text.")
    code = bytes(elf.contents(section))
    (tmp_path / "code").write_bytes(code)
    command = [cuda_tool("nvdisasm"), "-b", f"SM{sm}", "-json", str(tmp_path / "code")]
    run = subprocess.run(command, capture_output=True, check=True, timeout=60)
    (listing,) = read_listings(run.stdout)
    found = decode(code, sm)
    assert len(found) == len(listing.instructions) > 200
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

    name = elf.name(section).removeprefix(".text.")
    flow = control_flow(found, tables=read_branch_targets(elf, name))
    assert flow.unresolved == (), "the indirect branch of the switch has its targets in the cubin"
    callees = {call.callee for call in flow.calls}
    assert callees and None not in callees
    for callee in callees:
        assert any(block.ends == "return" for block in control_flow(found, callee or 0).blocks)
