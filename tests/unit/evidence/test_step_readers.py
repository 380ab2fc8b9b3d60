"""The readers of what a step leaves behind: Python tracebacks, NCCL's log, vLLM's function trace, host stacks."""

from hypothesis import given
from hypothesis import strategies as st

from gpucore.dwarf import SourceFrame
from vdbg_env.evidence.log_line import unwrap
from vdbg_env.evidence.nccl import nccl_findings, parse_nccl_log
from vdbg_env.evidence.python_text import (
    FatalError,
    Traceback,
    parse_function_trace,
    parse_host_stacks,
    read_fatal_errors,
    read_tracebacks,
    telling,
)

CRASH = """\
<core> Traceback (most recent call last):
(APIServer pid=7) INFO 11-03 23:14:03 [loggers.py:127] Engine 000: running
<core>   File "/vllm/v1/worker/gpu_model_runner.py", line 2100, in execute_model
<core>     out = self.model(ids)
<core>           ^^^^^^^^^^^^^^^
<core>   File "/site-packages/torch/nn/modules/module.py", line 1773, in _call_impl
<core>     return forward_call(*args, **kwargs)
<core> torch.AcceleratorError: CUDA error: an illegal memory access was encountered
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/vllm/v1/engine/async_llm.py", line 480, in output_handler
(APIServer pid=7)     outputs = await engine_core.get_output_async()
(APIServer pid=7) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)
""".replace("<core>", "(EngineCore pid=11) ERROR 11-03 23:14:03 [core.py:710]")


def tracebacks(text: str) -> list[Traceback]:
    return list(read_tracebacks(unwrap(line) for line in text.splitlines()))


def test_the_engines_own_traceback_is_told_apart_from_what_follows_it() -> None:
    found = tracebacks(CRASH)
    assert [t.error for t in found] == [
        "torch.AcceleratorError",
        "vllm.v1.engine.exceptions.EngineDeadError",
    ]
    first = telling(found)
    assert first is found[0] and first.process == "EngineCore"
    assert first.own_frame == SourceFrame(
        function="execute_model", file="/vllm/v1/worker/gpu_model_runner.py", line=2100
    )


def test_without_a_cuda_error_the_last_traceback_is_the_one_to_read() -> None:
    text = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'\n"
    found = telling(tracebacks(text + text.replace("KeyError", "ValueError")))
    assert found and found.error == "ValueError" and found.line == 6


def test_an_error_that_only_passes_another_on_is_not_the_one_to_read() -> None:
    # vLLM 0.32.0: the worker's own error, the engine that quotes it, the front that lost its engine.
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    quoted = "RuntimeError: Worker failed with error 'The size', please check the stack trace above for the root cause"
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    found = telling(tracebacks(f"{head}RuntimeError: The size\n{head}{quoted}\n{head}{dead}\n"))
    assert found and found.message == "The size"
    alone = telling(tracebacks(f"{head}{dead}\n"))
    assert alone and alone.error.endswith("EngineDeadError"), "what there is"


FATAL = """\
(EngineCore pid=7) INFO 11-03 23:14:03 [core.py:1] ready
Fatal Python error: Segmentation fault

Thread 0x00007fcf58fea640 (most recent call first):
  File "/usr/lib/python3.12/multiprocessing/connection.py", line 395 in _recv
  File "/usr/lib/python3.12/threading.py", line 1032 in _bootstrap

Current thread 0x00007fcf597eb640 (most recent call first):
(APIServer pid=5) INFO 11-03 23:14:03 [loggers.py:127] Engine 000: running
  File "/site-packages/torch/_ops.py", line 1209 in __call__
  File "/vllm/_custom_ops.py", line 301 in rms_norm
  File "/vllm/model.py", line 88 in forward

Thread 0x00007fcf48fea640 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait

Extension modules: numpy, torch._C (total: 41)
"""


def fatal(text: str) -> list[FatalError]:
    return list(read_fatal_errors(unwrap(line) for line in text.splitlines()))


def test_the_thread_that_got_the_signal_is_told_apart_from_bystanders() -> None:
    (found,) = fatal(FATAL)
    assert (found.error, found.line, len(found.frames)) == ("Segmentation fault", 2, 3)
    assert str(found.own_frame) == "/vllm/_custom_ops.py:301 in rms_norm"


def test_two_processes_that_crash_are_two_errors() -> None:
    assert [len(one.frames) for one in fatal(FATAL + FATAL)] == [3, 3]


def test_a_thread_without_python_has_no_frame() -> None:
    (found,) = fatal('Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "a", line 1 in f\n')
    assert found.frames == ()
    assert found.own_frame is None
    assert fatal('Current thread 0x1 (most recent call first):\n  File "a", line 1 in f\n') == []


def test_a_traceback_that_never_ends_is_no_traceback() -> None:
    assert tracebacks('Traceback (most recent call last):\n  File "a.py", line 1, in f\n') == []
    assert telling([]) is None


@given(st.lists(st.sampled_from([*CRASH.splitlines(), "", "x", "  File"])))
def test_any_shuffling_of_lines_is_survived(lines: list[str]) -> None:
    assert all(t.line <= len(lines) for t in tracebacks("\n".join(lines)))


NCCL = """\
n1:11:90 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE
n1:12:91 [1] NCCL INFO comm 0x66 rank 1 nranks 2 cudaDev 1 busId 43000 - Init COMPLETE
n1:11:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
n1:11:90 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
n1:12:91 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via NET/IB/0
[2025-11-03 23:14:03] n1:12:91 [1] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer
n1:11:11 [0] NCCL INFO AllReduce: opCount 1f sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 root 0 comm 0x55 [nranks=2]
n1:12:12 [1] NCCL INFO AllReduce: opCount 1e sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 root 0 comm 0x66 [nranks=2]
"""


def test_nccl_says_how_ranks_talk_and_which_is_behind() -> None:
    log = parse_nccl_log(NCCL.splitlines())
    assert log.ranks == 2
    assert log.transports == (("P2P/CUMEM", 2), ("NET/IB", 1))
    assert log.warnings == ("socketProgress: Connection closed by remote peer",)
    (finding,) = nccl_findings(log)
    assert "n1:12 [1] is at AllReduce number 30" in finding.message


def test_ranks_in_different_collectives_are_told_and_ranks_in_step_are_not() -> None:
    level = NCCL.replace("opCount 1e", "opCount 1f")
    assert nccl_findings(parse_nccl_log(level.splitlines())) == ()
    apart = level.replace("[1] NCCL INFO AllReduce", "[1] NCCL INFO AllGather")
    (finding,) = nccl_findings(parse_nccl_log(apart.splitlines()))
    assert finding.message == "ranks entered different collectives at number 31: AllGather, AllReduce"


TRACE = """\
2025-11-03 23:14:03.1 Call to run in /v/a.py:1 from main in /v/m.py:9
2025-11-03 23:14:03.2 Call to step in /v/b.py:5 from run in /v/a.py:3
2025-11-03 23:14:03.3 Return from step in /v/b.py:8 to run in /v/a.py:3
2025-11-03 23:14:03.4 Call to wait in /v/c.py:2 from run in /v/a.py:4
2025-11-03 23:14:03.5 Call to poll in /v/d.py:7 fro"""


def test_the_open_calls_are_those_entered_and_not_left() -> None:
    calls = parse_function_trace(TRACE.splitlines()).calls
    assert [str(call) for call in calls] == ["/v/c.py:2 in wait", "/v/a.py:4 in run", "/v/m.py:9 in main"]


def test_a_trace_whose_beginning_is_cut_off_still_has_its_end() -> None:
    calls = parse_function_trace(TRACE.splitlines()[2:]).calls
    assert [str(call) for call in calls] == ["/v/c.py:2 in wait", "/v/a.py:4 in run"]


@given(st.lists(st.sampled_from(TRACE.splitlines())))
def test_any_order_of_calls_and_returns_is_survived(lines: list[str]) -> None:
    assert len(parse_function_trace(lines).calls) <= len(lines) + 1


HANG = """\
# hang: no output for 600 s
process 7 VLLM::APIServer (parent 1, state S)
[<0>] do_epoll_wait+0x5f
process 11 VLLM::Worker_TP0 (parent 7, state R)

# py-spy: process 11
Process 11: /usr/bin/python3 -m vllm serve x
Python v3.12.3 (/usr/bin/python3.12)

Thread 11 (active): "MainThread"
    synchronize (torch/cuda/__init__.py:1040)
    execute_model (vllm/v1/worker/gpu_worker.py:300)
Thread 0x7F01 (idle): "pool-1"
    wait (threading.py:359)
    get (queue.py:180)
    _loop (vllm/x.py:3)
# ended with 0
"""


def test_each_python_process_says_where_its_main_thread_waits() -> None:
    stacks = parse_host_stacks(HANG.splitlines())
    assert stacks.processes == {7: "VLLM::APIServer", 11: "VLLM::Worker_TP0"}
    assert stacks.waiting_in == ("VLLM::Worker_TP0 (11): torch/cuda/__init__.py:1040 in synchronize",)
    assert [(t.name, t.active) for t in stacks.threads] == [("MainThread", True), ("pool-1", False)]
    assert str(stacks.threads[1].own_frame) == "vllm/x.py:3 in _loop"


def test_a_tree_that_py_spy_could_not_read_has_processes_only() -> None:
    stacks = parse_host_stacks(HANG.split("# py-spy")[0].splitlines())
    assert stacks.threads == () and stacks.waiting_in == () and len(stacks.processes) == 2
