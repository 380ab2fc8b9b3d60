"""The interpreter of whole blocks: what warps do together is what CUDA's programming guide says, computed in Python."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from gpucore.core import find_faults
from gpucore.core_reader import read_core
from tests.builders.core_builder import BlockSpec, CoreSpec, DeviceSpec, LaunchSpec, ModuleSpec, SmSpec, build_core
from tests.support.sass.blocks import Block, Deadlock
from tests.support.sass.collective import source_lane
from tests.support.sass.listing import split
from tests.support.sass.machine import Touch
from tests.support.sass.mapped import MAPPING, Mapped, Zeros
from tests.support.sass.programs import Program, compile_unit, load
from tests.support.sass.stopped_block import ILLEGAL, MISALIGNED, OUT_OF_RANGE, block_of, judge, stopped_warps
from tests.support.toolchain import cuda_tool

SOURCE = """
#include <cuda_fp16.h>
__global__ void reverse_block(const int* in, int* out) {
  __shared__ int tile[128];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[127 - threadIdx.x];
}
__global__ void scan_block(const int* in, int* out) {
  __shared__ int total[4];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, x = in[threadIdx.x];
  for (int o = 1; o < 32; o <<= 1) {
    int y = __shfl_up_sync(~0u, x, o);
    if (lane >= o) x += y;
  }
  if (lane == 31) total[warp] = x;
  __syncthreads();
  for (int w = 0; w < warp; ++w) x += total[w];
  out[threadIdx.x] = x;
}
__global__ void reduce_warp(const int* in, int* out) {
  int x = in[threadIdx.x];
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  int y = __shfl_sync(~0u, in[threadIdx.x], (threadIdx.x & 31) / 8, 8), z = __shfl_down_sync(~0u, y, 3, 16);
  out[threadIdx.x] = x + 1000 * y + 100000 * z;
}
__global__ void part_and_meet(const int* in, int* out) {
  int x = in[threadIdx.x], turns = 0;
  if (x & 1) while (x > 3) { x >>= 1; ++turns; }
  else if (x & 2) turns = -x;
  __syncwarp();
  unsigned many = __ballot_sync(~0u, turns > 2), alike = __match_any_sync(~0u, turns);
  out[threadIdx.x] = turns + 100 * __popc(many) + 10000 * __popc(alike) + 1000000 * __all_sync(~0u, turns < 9);
}
__global__ void count_in_block(const int* in, int* out) {
  __shared__ float sum;
  if (threadIdx.x == 0) sum = 0.f;
  int even = __syncthreads_count(in[threadIdx.x] % 2 == 0);
  atomicAdd(&sum, 0.5f);
  __syncthreads();
  out[threadIdx.x] = even * 1000 + (int)sum;
}
__global__ void pack_halves(const int* in, int* out) {
  float a = __int2float_rn(in[threadIdx.x]) * 0.37f, b = __int2float_rn(in[threadIdx.x ^ 1]) * 0.11f;
  __half2 both = __floats2half2_rn(fminf(a, b), fmaxf(a, b));
  out[threadIdx.x] = *reinterpret_cast<int*>(&both);
}
__global__ void add_floats(const int* in, int* out) {
  float* sum = reinterpret_cast<float*>(out);
  double* exact = reinterpret_cast<double*>(out + 2);
  atomicAdd(sum, 0.25f);
  atomicAdd(exact, 0.375);
  atomicAdd(reinterpret_cast<__half2*>(out + 4), __floats2half2_rn(1.f, -0.5f));
}
__global__ void add_all(const int* in, int* out) {
  int sum = 0;
#pragma unroll 1
  for (unsigned k = 0; k < blockDim.x; ++k) sum += in[k];
  out[threadIdx.x] = sum;
}
__global__ void wait_for_ever(const int* in, int* out) {
  if (threadIdx.x < 64) asm volatile("bar.sync 1, 128;");
  out[threadIdx.x] = in[threadIdx.x];
}
__global__ void name_by_register(const int* in, int* out) {
  __shared__ int tile[128];
  tile[threadIdx.x] = in[threadIdx.x];
  asm volatile("bar.sync %0, %1;" :: "r"((int)blockDim.y + 4), "r"((int)blockDim.x) : "memory");
  out[threadIdx.x] = tile[threadIdx.x ^ 96];
}
__global__ void fault_in_all(const int* in, int* out) {
  if (threadIdx.x / 32 != 1) out[(in[threadIdx.x] + 1) * 9000000] = 1;
  else out[threadIdx.x] = 2;
}
__global__ void fault_in_warp_2(const int* in, int* out) {
  __shared__ int seen[128];
  seen[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x / 32 == 2) out[in[threadIdx.x] * 3] = 1;
  __syncthreads();
  out[threadIdx.x] = seen[threadIdx.x ^ 64];
}
"""
NUMBERS = [(37 * n + 11) % 101 for n in range(128)]


@dataclass
class Ready:
    """A block at its start, and where its output will be."""

    block: Block
    memory: Mapped
    out: int

    def output(self) -> list[int]:
        """Return what the threads wrote."""
        return list(struct.unpack("<128i", self.memory.read(self.out, 512)))


@pytest.fixture(scope="module", params=[75, 80, 90, 100, 120])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    source = tmp_path_factory.mktemp("blocks") / "blocks.cu"
    source.write_text(SOURCE)
    return load(cuda_tool("nvdisasm"), compile_unit(cuda_tool("nvcc"), source, request.param), request.param)


def ready(program: Program, kernel: str, numbers: list[int] = NUMBERS) -> Ready:
    memory = Mapped()
    data, out = memory.allocate(512), memory.allocate(512)
    memory.write(data, struct.pack("<128i", *numbers))
    parameters = struct.pack("<2Q", data, out)
    block = block_of(program, program.find(kernel), memory, parameters=parameters, size=(128, 1, 1))
    return Ready(block, memory, out)


def run(program: Program, kernel: str) -> list[int]:
    made = ready(program, kernel)
    assert made.block.run(limit=5000) is None
    return made.output()


@pytest.mark.nvcc
def test_a_barrier_makes_shared_memory_whole(program: Program) -> None:
    assert run(program, "reverse_block") == NUMBERS[::-1]


@pytest.mark.nvcc
def test_a_block_adds_up_by_shuffles_and_shared_memory(program: Program) -> None:
    assert run(program, "scan_block") == [sum(NUMBERS[: n + 1]) for n in range(128)]


@pytest.mark.nvcc
def test_shuffles_read_the_lane_that_cuda_names(program: Program) -> None:
    expected = []
    for n in range(128):
        first, lane = n - n % 32, n % 32
        by_index = [NUMBERS[first + m - m % 8 + m // 8] for m in range(32)]
        down = by_index[lane + 3 if lane % 16 < 13 else lane]
        expected.append(sum(NUMBERS[first : first + 32]) + 1000 * by_index[lane] + 100000 * down)
    assert run(program, "reduce_warp") == expected


@pytest.mark.nvcc
def test_lanes_that_part_meet_again(program: Program) -> None:
    turns = []
    for x in NUMBERS:
        turn = -x if x & 3 == 2 else 0
        while (x & 1 or turn > 0) and x > 3:
            x, turn = x >> 1, turn + 1
        turns.append(turn)
    expected = []
    for n, turn in enumerate(turns):
        warp = turns[n - n % 32 :][:32]
        many = sum(one > 2 for one in warp)
        expected.append(turn + 100 * many + 10000 * warp.count(turn) + 1000000 * all(one < 9 for one in warp))
    assert run(program, "part_and_meet") == expected


@pytest.mark.nvcc
def test_a_barrier_counts_and_floats_add_up_in_shared_memory(program: Program) -> None:
    assert run(program, "count_in_block") == [sum(x % 2 == 0 for x in NUMBERS) * 1000 + 64] * 128


@pytest.mark.nvcc
def test_atomics_add_floats_of_every_width(program: Program) -> None:
    made = ready(program, "add_floats")
    assert made.block.run(limit=5000) is None
    held = made.memory.read(made.out, 20)
    assert struct.unpack_from("<f4xd2e", held) == (32.0, 48.0, 128.0, -64.0)


@pytest.mark.nvcc
def test_floats_are_compared_and_packed_as_halves(program: Program) -> None:
    def product(number: int, factor: float) -> float:
        return single(number * single(factor))

    def single(value: float) -> float:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])

    expected: list[int] = []
    for n, number in enumerate(NUMBERS):
        pair = product(number, 0.37), product(NUMBERS[n ^ 1], 0.11)
        expected += struct.unpack("<i", struct.pack("<2e", min(pair), max(pair)))
    assert run(program, "pack_halves") == expected


@pytest.mark.nvcc
def test_what_the_warp_counts_is_counted_once(program: Program) -> None:
    assert run(program, "add_all") == [sum(NUMBERS)] * 128  # Blackwell keeps k in a uniform register


@pytest.mark.nvcc
def test_a_barrier_that_is_short_of_threads_is_a_hang(program: Program) -> None:
    block = ready(program, "wait_for_ever").block
    with pytest.raises(Deadlock):
        block.run(limit=5000)
    (barrier,) = (line.offset for line in block.machine.code.lines if line.name == "BAR")
    warps = stopped_warps(block)
    assert [(warp.number, warp.offset, warp.thread_state, warp.exception) for warp in warps] == [
        (0, barrier + 16, 8, 0), (1, barrier + 16, 8, 0)
    ]  # fmt: skip


@pytest.mark.nvcc
def test_a_register_holds_the_number_and_the_count_of_a_barrier(program: Program) -> None:
    assert run(program, "name_by_register") == [NUMBERS[n ^ 96] for n in range(128)]


@pytest.mark.nvcc
def test_after_a_fault_the_other_warps_go_on(program: Program) -> None:
    block, memory = (made := ready(program, "fault_in_all")).block, made.memory
    faults = [block.run(judge(memory, 1024)), block.run(judge(memory, 1024)), block.run(judge(memory, 1024))]
    assert block.run(judge(memory, 1024), rounds=3) is None
    assert [fault and (fault.warp.number, len(fault.bad)) for fault in faults] == [(0, 32), (2, 32), (3, 32)]
    assert made.output() == [0] * 32 + [2] * 32 + [0] * 64
    warps = stopped_warps(block, [fault for fault in faults if fault])
    assert [(warp.number, warp.exception) for warp in warps] == [(0, ILLEGAL), (2, ILLEGAL), (3, ILLEGAL)]


@pytest.mark.nvcc
def test_the_first_fault_stops_every_warp_where_it_stands(program: Program) -> None:
    numbers = [*NUMBERS]
    numbers[70] = 1 << 28
    made = ready(program, "fault_in_warp_2", numbers)
    shared_size = 4096
    fault = made.block.run(judge(made.memory, shared_size), limit=5000)
    assert fault and fault.exception == ILLEGAL and fault.warp.number == 2
    assert fault.addresses == {n: made.out + 12 * numbers[64 + n] for n in range(32)}
    assert fault.bad == {6}

    warps = stopped_warps(made.block, [fault], run_on=2, shared_size=shared_size)
    assert [(warp.number, warp.exception) for warp in warps] == [(0, 0), (1, 0), (2, ILLEGAL), (3, 0)]
    name = program.find("fault_in_warp_2")
    barrier = next(line.offset for line in program.code_of(name).lines if line.name == "BAR")
    assert {warp.offset for warp in warps[:2]} == {barrier + 16}  # they wait there
    device = DeviceSpec(
        modules=[ModuleSpec(cubin=program.cubin)], launches=[LaunchSpec(kernel=name, block=(128, 1, 1))],
        blocks=[BlockSpec(warps=warps)], sms={0: SmSpec(exception=ILLEGAL, error_offset=fault.offset)},
    )  # fmt: skip
    (found,) = find_faults(read_core(build_core(CoreSpec(devices=[device]))))
    assert (found.threads, found.warps) == (32, 1)
    assert found.first and found.first.at.thread == (64, 0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P0[R4], R2, R3", ["P0", "[R4]", "R2", "R3"]),
        ("PT, R4[R2.64], R8, R9", ["PT", "R4", "[R2.64]", "R8", "R9"]),
        ("[R5][R6.64]", ["[R5]", "[R6.64]"]),
        ("[R5+0x10]desc[UR4][R6.64+0x8], P0", ["[R5+0x10]", "desc[UR4][R6.64+0x8]", "P0"]),
        ("R2, R3, c[0x0][0x160], PT", ["R2", "R3", "c[0x0][0x160]", "PT"]),
    ],
)
def test_operands_without_a_comma_between_them_are_parted(text: str, expected: list[str]) -> None:
    assert split(text) == expected


@pytest.mark.parametrize(
    ("how", "lane", "by", "limits", "expected"),
    [
        ("UP", 3, 4, 0, (3, False)),
        ("UP", 4, 4, 0, (0, True)),
        ("UP", 17, 2, 16 << 8, (17, False)),
        ("DOWN", 30, 2, 31, (30, False)),
        ("DOWN", 5, 2, 24 << 8 | 31, (7, True)),
        ("DOWN", 6, 2, 24 << 8 | 31, (6, False)),
        ("BFLY", 9, 8, 31, (1, True)),
        ("IDX", 20, 35, 31, (3, True)),
        ("IDX", 20, 3, 24 << 8 | 31, (19, True)),
    ],
)
def test_a_shuffle_stays_in_its_segment(how: str, lane: int, by: int, limits: int, expected: tuple[int, bool]) -> None:
    assert source_lane(how, lane, by, limits) == expected


def test_an_overrun_inside_a_mapping_is_no_fault() -> None:
    memory = Mapped()
    small, large, other = memory.allocate(100), memory.allocate(3 << 20, gap=1), memory.allocate(100)
    assert small % MAPPING == 0 and large == small + 2 * MAPPING
    assert other == small + 512  # small ones share a mapping
    assert memory.hold(small + MAPPING - 4, 4) and not memory.hold(small + MAPPING, 4)
    assert memory.hold(large + 2 * MAPPING - 8, 8) and not memory.hold(large + 2 * MAPPING - 4, 8)
    memory.write(large + MAPPING - 2, b"abcd")
    assert memory.read(large + MAPPING, 2) == b"cd"  # a write may cross mappings


def test_accesses_are_judged_by_alignment_and_by_the_size_of_their_memory() -> None:
    memory = Mapped()
    at = memory.allocate(64)
    decide = judge(memory, shared_size=256)

    def exception(space: str, address: int, size: int = 4) -> int:
        return decide(Touch(0, "load", space, address, size, 1, ()))

    assert exception("global", at) == exception("generic", at + 60) == 0
    assert exception("global", at + 2) == exception("shared", 2) == MISALIGNED
    assert exception("global", at - 4) == ILLEGAL
    assert (exception("shared", 252), exception("shared", 256)) == (0, OUT_OF_RANGE)
    assert (exception("local", 0xFFEFF0), exception("local", 1 << 24)) == (0, OUT_OF_RANGE)
    assert Zeros().read(5, 3) == b"\0\0\0"
