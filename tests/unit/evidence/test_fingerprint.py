"""One cause has one fingerprint: what changes from crash to crash is not in it."""

from dataclasses import replace

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.finding import Finding, HowKnown, Level
from vdbg_env.runbook.judge import Crash, Fingerprint, fingerprint

KERNEL = "_ZN4vllm3moe17topkGatingSoftmaxILi8ELi256EEEvPKfPKbPfi"


def core(line: int | None = 41, *, kernel: str = KERNEL, message: str = "PC 0x7f10 on rank 3") -> Crash:
    chain = () if line is None else (SourceFrame(function="load", file=f"/build/{line}/csrc/topk.cu", line=line),)
    found = Finding(
        rule="gpu-core-warp-illegal-address", level=Level.ERROR, message=message, how_known=HowKnown.GPU_CORE,
        confidence=0.98, chain=chain, location=chain[0] if chain else None, kernel=kernel,
        artifact=f"steps/guarded/1/node-{line}/core.cuda.node.{line}",
    )  # fmt: skip
    return Crash(findings=(found,))


def known(crash: Crash) -> Fingerprint:
    found = fingerprint(crash)
    assert found
    return found


def frame(file: str, line: int, function: str) -> SourceFrame:
    return SourceFrame(function=function, file=file, line=line)


def raised(error: str, *frames: SourceFrame) -> Crash:
    return Crash(error=error, stack=frames)


def test_a_gpu_fault_is_exception_kernel_and_chain() -> None:
    found = known(core())
    assert (found.kind, found.exception, found.frames) == ("gpu", "warp-illegal-address", ("topk.cu:41 load",))
    assert found.kernel is not None and "topkGatingSoftmax" in found.kernel
    assert known(core(message="PC 0x1234 on rank 0")).id == found.id
    assert known(core(42)).id != found.id
    assert known(core(kernel="_Z5otherv")).id != found.id


def test_a_mangled_and_a_demangled_name_are_one_kernel() -> None:
    assert known(core(kernel=known(core()).kernel or "")).id == known(core()).id


def test_a_crash_without_lines_fits_one_with_them_and_has_another_id() -> None:
    bare, first, second = known(core(None)), known(core(41)), known(core(42))
    assert bare.id == bare.base == first.base == second.base
    assert bare.id != first.id
    assert bare.is_same_cause(first) and second.is_same_cause(bare)
    assert not first.is_same_cause(second)


def test_an_exception_is_its_type_and_the_innermost_frames_of_the_project() -> None:
    torch = frame("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", 1751, "_call_impl")
    one = known(
        raised(
            "KeyError: 'expert.7'",
            frame("/usr/lib/python3.11/threading.py", 995, "run"),
            frame("/home/a/venv/lib/python3.11/site-packages/vllm/v1/worker.py", 100, "execute_model"),
            torch,
            frame("/home/a/app/model.py", 12, "load"),
            torch,
        )
    )
    other = known(
        raised(
            "KeyError: 'expert.9'",
            frame("/opt/venv/lib/python3.12/site-packages/vllm/v1/worker.py", 107, "execute_model"),
            frame("/srv/app/model.py", 15, "load"),
        )
    )
    assert one.id == other.id
    assert one.frames == ("model.py load", "vllm/v1/worker.py execute_model")
    assert known(raised("ValueError: x", frame("/srv/app/model.py", 15, "load"))).id != one.id


def test_a_cuda_error_noticed_later_has_no_frames() -> None:
    text = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    one = known(raised(text, frame("/a/site-packages/vllm/x.py", 1, "f")))
    other = known(raised(text, frame("/a/site-packages/vllm/y.py", 2, "g")))
    assert one.id == other.id
    assert (one.kind, one.exception) == ("gpu", "cudaErrorIllegalAddress")


def test_the_kernel_of_a_core_is_surer_than_the_exception_of_the_host() -> None:
    crash = core()
    both = replace(crash, error="RuntimeError: CUDA error: unspecified launch failure", signal="SIGABRT")
    assert known(both).id == known(crash).id


def test_a_signal_a_lack_of_memory_and_a_hang_have_a_cause_too() -> None:
    kill = Finding(
        rule="memory-kill", level=Level.ERROR, message="killed", how_known=HowKnown.KERNEL_LOG, confidence=0.95
    )
    assert known(Crash(findings=(kill,), signal="SIGKILL")).kind == "memory"
    assert str(known(Crash(signal="SIGSEGV"))) == "SIGSEGV"
    assert str(known(Crash(signal="SIGSEGV", failure="host-crash"))) == "SIGSEGV"
    assert str(known(Crash(signal="SIGTERM", failure="unknown"))) == "SIGTERM"
    stopped = {str(known(Crash(signal="SIGTERM", failure=name))) for name in ("nccl-failure", "out-of-memory")}
    assert stopped == {"nccl-failure", "out-of-memory"}, "who stops what has failed does not make it one cause"
    stuck = frame("/x/site-packages/vllm/shm_broadcast.py", 500, "acquire_read")
    assert known(Crash(hang=True, stack=(stuck, stuck))).frames == ("vllm/shm_broadcast.py acquire_read",)
    assert known(Crash(failure="nccl-failure")).exception == "nccl-failure"
    assert fingerprint(Crash()) is None
    for failure in ("not-a-gpu-failure", "unknown"):  # two commands that failed for no known reason share nothing
        assert fingerprint(Crash(failure=failure)) is None
