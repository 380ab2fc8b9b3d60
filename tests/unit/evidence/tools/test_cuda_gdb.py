"""cuda-gdb's transcripts: those of 12.4 on the synthetic cores, and the forms of newer ones."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.cuda_gdb import parse_cuda_gdb

DATA = Path(__file__).parents[3] / "data" / "cuda_gdb"


def transcript(name: str) -> str:
    return (DATA / f"synthetic_sm90_{name}.cuda-gdb-12.4.txt").read_text()


def test_an_exception_with_lines_names_the_inlined_place() -> None:
    seen = parse_cuda_gdb(transcript("r575_layout"))
    assert (seen.exception, seen.error_pc) == ("Warp Illegal Address", 0x7FFFD9001140)
    assert seen.error_place == SourceFrame(function="_Z10store_leafIfLi0EEvPT_iS0_", file="cudk.cu", line=3)
    assert seen.focus is not None
    assert (seen.focus.cluster, seen.focus.thread, seen.focus.warp) == ((3, 0, 0), (32, 0, 0), 1)
    assert seen.frames[0].place == SourceFrame(function="kern<float>", file="SRC/cudk.cu", line=20)
    assert seen.frames[0].grid_dim == (4, 1, 1)


def test_the_tables_are_read_by_kind_of_field() -> None:
    seen = parse_cuda_gdb(transcript("nolines"))
    assert seen.devices == {0: "NVIDIA H200"}
    assert [(k.kernel, k.grid, k.status, k.block_dim, k.invocation) for k in seen.kernels] == [
        (0, 7, "Active", (64, 1, 1), "kern<float>()")
    ]
    assert seen.warps == (0x7FFFD9001080, 0x7FFFD9001150)
    assert seen.lanes == ("Warp Illegal Address",) * 32


def test_without_lines_the_function_comes_from_the_frame() -> None:
    seen = parse_cuda_gdb(transcript("nolines"))
    assert seen.frames[0].function.startswith("void kern<float>(float*, int, float)")
    assert seen.frames[0].place is None
    assert "kern<float>" in (seen.kernel or "")


def test_a_hang_has_no_exception() -> None:
    seen = parse_cuda_gdb(transcript("hang"))
    assert seen.exception is None
    assert set(seen.lanes) == {None}


def test_the_newer_order_puts_the_focus_first() -> None:
    seen = parse_cuda_gdb(
        "[Current focus set to CUDA kernel 0, grid 9, block (17454,0,0), thread (0,0,0), "
        "device 0, sm 0, warp 1, lane 0]\n"
        "CUDA Exception: Warp Illegal Address\n"
        "The exception was triggered at PC 0x7fc2afba5e30  void at::native::fill_kernel<4>(int)\n"
    )
    assert seen.focus is not None
    assert seen.focus.block == (17454, 0, 0)
    assert seen.error_function == "void at::native::fill_kernel<4>(int)"


def test_a_symbol_looked_up_gives_function_and_offset() -> None:
    seen = parse_cuda_gdb(
        "void kern<float>(float*, int, float) + 320 in section .text._Z4kernIfEvPT_iS0_ of /x/elf.o\n"
    )
    assert seen.error_function == "void kern<float>(float*, int, float)"


def test_a_live_session_says_its_exception_otherwise() -> None:
    seen = parse_cuda_gdb("Thread 1 received signal CUDA_EXCEPTION_14, Warp Illegal Address.\n")
    assert seen.exception == "Warp Illegal Address"


def test_a_frame_that_the_terminal_wrapped_keeps_its_function_launch_and_place() -> None:
    name = (
        "void ns::gather_kernel<128, 4, ns::impl<ns::Opaque<1> >(ns::Iter&, ns::Ref<long>)::{lambda(char*)#1}>(long, "
    )
    frame = (
        f"#0  {name}ns::impl<ns::Opaque<1> >(ns::Iter&, ns::Ref<long>)::{{lambda(char*)#1}})<<<(2,1,1),(128,1,1)>>> ()"
    )
    wrapped = "\n".join(frame[at : at + 100] for at in range(0, len(frame), 100))
    seen = parse_cuda_gdb(
        "CUDA Exception: Warp Illegal Address\nThe exception was triggered at PC 0x7ff533bb91d0  ...\n"
        f"{wrapped}\n    at /src/Gather.cu:203 in _ZN2ns4implEv inlined from Gather.cu:118\n"
    )
    (row,) = seen.frames
    assert row.function == frame[4:].split("<<<")[0]
    assert (row.grid_dim, row.block_dim) == ((2, 1, 1), (128, 1, 1))
    assert row.place == SourceFrame(function="_ZN2ns4implEv", file="/src/Gather.cu", line=203)
    assert seen.kernel == row.function


def test_a_kernel_with_its_line_is_a_function_and_a_place() -> None:
    seen = parse_cuda_gdb("The exception was triggered at PC 0x628fbe590  gather_kernel  (tma.py:245)\n")
    assert seen.error_function == "gather_kernel"
    assert seen.error_place == SourceFrame(function="gather_kernel", file="tma.py", line=245)


def test_the_frame_of_a_live_session_is_one() -> None:
    seen = parse_cuda_gdb("0x0000000628fbe700 in gather_kernel<<<(1,1,1),(128,1,1)>>> () at /tut/tma.py:245\n")
    (frame,) = seen.frames
    assert (frame.level, frame.pc, frame.block_dim) == (0, 0x628FBE700, (128, 1, 1))
    assert frame.place == SourceFrame(function="gather_kernel", file="/tut/tma.py", line=245)


def test_a_device_whose_description_has_a_hyphen_is_a_row() -> None:
    seen = parse_cuda_gdb("*   0     0000:1b:00.0 NVIDIA B200   GB100-A     sm_100   148    64       32\n")
    assert seen.devices == {0: "NVIDIA B200"}


def test_the_register_of_the_error_pc_gives_function_and_offset() -> None:
    seen = parse_cuda_gdb("errorpc        0x721beb7ad960      0x721beb7ad960 <gather_u32+7264>\n")
    assert (seen.error_pc, seen.error_function) == (0x721BEB7AD960, "gather_u32")


def test_the_thread_in_focus_is_a_phrase() -> None:
    assert parse_cuda_gdb(transcript("nolines")).thread == (
        "thread (32,0,0) of block (3,0,0), 32 lanes with an exception, 2 warps shown, on NVIDIA H200"
    )
    assert parse_cuda_gdb("").thread is None


LINES = [line for name in ("hang", "nolines", "r575_layout") for line in transcript(name).splitlines()]


@given(st.lists(st.sampled_from(LINES) | st.text(max_size=40), max_size=40).map("\n".join))
def test_any_lines_are_read(text: str) -> None:
    parse_cuda_gdb(text)


def test_a_device_assert_is_known_by_the_only_words_it_gets() -> None:
    """What 12.4 prints for code 12 on a synthetic core; every other code gets a line that begins `CUDA Exception:`."""
    seen = parse_cuda_gdb("Assertion failed.\nThe exception was triggered at PC 0x7fffd9000180 (device_assert.cu:7)\n")
    assert (seen.exception, seen.error_pc) == ("Warp Assert", 0x7FFFD9000180)
    assert seen.error_place == SourceFrame(function=None, file="device_assert.cu", line=7)
