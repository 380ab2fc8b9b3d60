"""Processes that write into one log: each is followed by its own lines, however many others stand between."""

from itertools import chain
from unittest.mock import patch

import pytest

from tests.support.triage import triage_bytes
from vdbg_env.evidence.triage_scan import BLOCK, HELD, LineScanner
from vdbg_env.evidence.triage_verdict import Triage

FRAMES = ["Traceback (most recent call last):", '  File "worker.py", line 9, in run', "    self.step()"]
DIED = "WorkerProc hit an exception."
TOKENS = "INFO 11-03 23:14:09 [loggers.py:1] Avg generation throughput: 81.0 tokens/s, Running: 1 reqs"
NO_TOKENS = (
    "INFO 11-03 23:14:09 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
    "Avg generation throughput: 0.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs"
)
IMA = "RuntimeError: CUDA error: an illegal memory access was encountered"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def rank(number: int, *texts: str) -> list[str]:
    """Return lines as a worker of vLLM writes them."""
    return [f"(Worker_TP{number} pid={100 + number}) ERROR 11-03 23:14:03 [x.py:7] {text}" for text in texts]


def others(count: int, *ranks: int) -> list[str]:
    """Return what other ranks write meanwhile."""
    return [f"(Worker_TP{ranks[i % len(ranks)]} pid={100 + ranks[i % len(ranks)]}) INFO step {i}" for i in range(count)]


def pod(name: str, *texts: str) -> list[str]:
    return [f"[pod/{name}/server] {text}" for text in texts]


def judged(*parts: list[str], chunk: int = 1 << 20) -> Triage:
    return triage_bytes("".join(f"{line}\n" for part in parts for line in part).encode(), chunk=chunk)


def shown(verdict: Triage) -> str:
    return verdict.root_cause.text if verdict.root_cause else ""


@pytest.mark.parametrize("between", [10, 3_000, 30_000])
def test_the_exception_of_the_process_that_died_is_found_over_a_long_log_of_other_ranks(between: int) -> None:
    raised = rank(1, *FRAMES, "ValueError: block 7 is not free")
    late = rank(0, *FRAMES, "AssertionError: rank 1 did not answer")
    verdict = judged(others(50, 0, 1, 2, 3), raised, others(between, 0, 2, 3), rank(1, DIED), late)
    assert (shown(verdict), verdict.rank) == ("ValueError: block 7 is not free", 1)


@pytest.mark.parametrize("between", [10, 3_000, 30_000])
def test_an_exception_that_a_process_got_over_is_not_that_of_its_death(between: int) -> None:
    handled = rank(1, *FRAMES, "ValueError: prompt 3 is too long")
    cause = rank(1, *FRAMES, "KeyError: 'block 7'")
    went_on = others(between, 1) + others(between, 0, 2, 3)
    assert shown(judged(handled, went_on, others(2000, 1), rank(1, DIED), cause)) == "KeyError: 'block 7'"


@pytest.mark.parametrize("between", [0, 5, 3_000])
def test_of_two_tracebacks_that_are_mixed_that_of_the_process_that_died_first_is_shown(between: int) -> None:
    first, second = rank(1, DIED, *FRAMES, "KeyError: 'block 7'"), rank(2, *FRAMES, "KeyError: 'block 9'", DIED)
    lines = [first[0]]
    for at in range(5):  # the second rank's last line is printed before that of the first
        lines += [second[at], *others(between, 0, 3), *first[at + 1 : at + 2], *others(between, 0, 3)]
    verdict = judged(others(40, 0, 1, 2, 3), lines, rank(0, *FRAMES, "KeyError: 'block 1'"))
    assert (shown(verdict), verdict.rank) == ("KeyError: 'block 7'", 1)


@pytest.mark.parametrize("between", [0, 100, 30_000])
def test_a_reason_is_found_below_its_header_and_an_ignored_error_is_ignored(between: int) -> None:
    header = rank(1, "pydantic_core.ValidationError: 1 validation error for ModelConfig")
    reason = rank(1, "  Value error, the model is gated [type=value_error, input_value=ArgsKwargs(()), input_type=x]")
    assert "the model is gated" in shown(judged(header, others(between, 0, 2), reason))
    finalizer = rank(1, "Exception ignored in: <function Pool.__del__>", *FRAMES)
    closed = rank(1, "AttributeError: 'Pool' object has no attribute 'queue'")
    assert "AttributeError" in shown(judged(closed))
    assert "AttributeError" not in shown(judged(finalizer, others(between, 0, 2), closed))


@pytest.mark.parametrize("between", [0, 100, 30_000])
def test_the_kernel_that_a_process_names_later_is_that_of_its_fault(between: int) -> None:
    def rank_0(text: str) -> list[str]:
        return [f"[rank0]: {text}"]

    fault = rank_0("coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)")
    kernel = rank_0("coredump:   #0\t0x7462c3bac620\t_Z7mykernelPi")
    meanwhile = [f"[rank{1 + i % 3}]: step {i}" for i in range(between)]
    assert judged(fault, meanwhile, kernel).kernel == "_Z7mykernelPi"


def test_a_pod_that_shuts_down_in_order_excuses_no_failure_of_another() -> None:
    ends = "INFO:     Shutting down"
    assert judged(pod("a", TOKENS, ends), pod("b", IMA)).failure.name == "illegal-memory-access"
    assert judged(pod("a", TOKENS, ends, IMA)).failure.name == "not-a-gpu-failure"


def test_what_a_pod_survives_says_nothing_of_another() -> None:
    assert judged(pod("a", MEMORY), pod("b", TOKENS)).failure.name == "out-of-memory"
    assert judged(pod("a", MEMORY, TOKENS)).failure.name == "not-a-gpu-failure"
    died = pod("a", "EngineCore encountered a fatal error.", "KeyError: 'block 7'")
    assert judged(pod("b", MEMORY), died, pod("b", TOKENS)).failure.name == "not-a-gpu-failure"
    assert judged(pod("b", MEMORY), died, pod("b", TOKENS)).root_cause is not None
    assert shown(judged(pod("b", MEMORY), died, pod("b", TOKENS))) == "KeyError: 'block 7'"


def test_two_pods_without_tokens_once_each_are_no_stall() -> None:
    assert judged(pod("a", TOKENS, NO_TOKENS), pod("b", NO_TOKENS)).failed is False
    assert judged(pod("a", TOKENS, NO_TOKENS, NO_TOKENS)).failure.name == "kernel-hang"


@pytest.mark.parametrize("chunk", [61, 4096, 1 << 17])
def test_lines_of_a_process_are_counted_the_same_however_the_bytes_come(chunk: int) -> None:
    parts = rank(1, *FRAMES, "ValueError: x"), others(4000, 0, 1, 2), rank(1, DIED), rank(0, *FRAMES, "KeyError: 'y'")
    assert judged(*parts, chunk=chunk) == judged(*parts)


def test_what_is_too_long_ago_is_no_longer_held() -> None:
    def previous(between: int) -> tuple[int, int]:
        """Return where the line before the last one of a process is, and where it is looked for."""
        scanner = LineScanner(["DIED"], [])
        scanner.hold = True
        text = b"\n".join([b"(W pid=1) DIED", *[b"(W pid=2) step" + b"." * 86] * between, b"(W pid=1) DIED\n"])
        _, found = (scanner.before("W 1", b"pid=1", 1) for _ in chain(scanner.feed(text), scanner.finish()))
        return found, between + 2

    assert previous(5) == (1, 7)
    assert previous(HELD * BLOCK // 120)[0] == 1
    held, last = previous(4 * HELD * BLOCK // 100)
    assert 0.9 * HELD * BLOCK < (last - held) * 101 < 1.1 * (HELD + 1) * BLOCK


LABELS = {
    "srun": ("0: ", "1: "),
    "srun-in-containers": ("2026-11-26T10:00:00.5Z stdout F 0: ", "2026-11-26T10:01:00.5Z stdout F 1: "),
    "pods-with-the-same-pid": ("[pod/vllm-0/vllm] (Worker pid=285) ", "[pod/vllm-1/vllm] (Worker pid=285) "),
    "pods-with-the-same-rank": ("[pod/vllm-0/vllm] [rank0]: ", "[pod/vllm-1/vllm] [rank0]: "),
    "a-name-within-another": ("ray-worker-1  | ", "worker-1  | "),
    "sglang": ("[2026-11-26 10:01:00 DP1 TP1] ", "[2026-11-26 10:01:00 TP1] "),
}


@pytest.mark.parametrize("form", LABELS)
def test_the_lines_of_a_process_are_those_that_it_wrote_not_those_that_have_its_label_somewhere(form: str) -> None:
    peer, own = LABELS[form]
    steps = [f"{who}INFO 11-26 10:01:{i % 60:02} [core.py:1] step {i}" for i in range(200) for who in (peer, own)]
    raised = [f"{own}ERROR 11-26 10:01:05 [core.py:7] {text}" for text in (*FRAMES, "ValueError: no such head")]
    late = [f"{peer}ERROR 11-26 10:02:05 [core.py:7] RuntimeError: the other one says nothing"]
    died = [f"{own}ERROR 11-26 10:02:05 [core.py:7] EngineCore encountered a fatal error."]
    assert shown(judged(steps[:6], raised, steps, late, died)) == "ValueError: no such head"
    recovered = [f"{own}{text}" for text in (*FRAMES, "ConnectionError: the hub is not reached")]
    assert shown(judged(recovered, steps, steps, raised, steps[:240], died)) == "ValueError: no such head"


@pytest.mark.parametrize("shift", [1, 50, 99])
def test_a_wrapped_line_that_a_block_ends_in_is_not_the_one_before_itself(shift: int) -> None:
    lines = [b"[rank0]: first"]
    while (left := BLOCK - sum(map(len, lines)) - len(lines)) > 101 + shift:
        lines.append(b"[rank%d]: ".ljust(100, b".") % (2 + len(lines) % 4))
    lines += [b"[rank2]: ".ljust(left - shift - 1, b"."), b"[rank0]: ".ljust(98, b"=") + b"DI", b"ED"]
    scanner = LineScanner(["DIED"], [])
    scanner.hold = True
    (found,) = [
        (one.number, scanner.before("0", b"[rank0]:", 1))
        for one in chain(scanner.feed(b"\n".join(lines) + b"\n" + b"end\n" * 4000), scanner.finish())
    ]
    assert found == (len(lines) - 1, 1)


def test_a_fault_that_is_too_long_ago_is_looked_for_once() -> None:
    fault = ["[1,0]<stdout>: ========= Invalid __global__ write of size 4 bytes"]
    frames = [f"[1,0]<stdout>: =========     at void foo(int)+0x{i:x}0 in a.cu:3" for i in range(40)]
    with patch.object(LineScanner, "before", autospec=True, side_effect=LineScanner.before) as looked:
        assert judged(fault, ["[1,0]<stdout>: step"] * 30, frames).kernel is None
    assert looked.call_count == 1
