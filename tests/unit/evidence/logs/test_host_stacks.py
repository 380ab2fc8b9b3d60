"""Stacks of a silent process tree: where each process waits."""

from vdbg_env.evidence.logs.host_stacks import parse_host_stacks

SERVER = """\
Process 154: VLLM::EngineCore
Python v3.12.3 (/usr/bin/python3.12)

Thread 154 (idle): "MainThread"
    poll (zmq/sugar/poll.py:106)
    recv_multipart (zmq/sugar/socket.py:751)
    wait (threading.py:359)
    acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:610)
    dequeue (vllm/distributed/device_communicators/shm_broadcast.py:702)
    run_busy_loop (vllm/v1/engine/core.py:1012)
Thread 0x7F2C (active): "Thread-1"
    cudaEventSynchronize (libcudart.so.13)
    synchronize (torch/cuda/streams.py:231)
    execute_model (vllm/v1/worker/gpu_model_runner.py:3021)
"""


def test_the_waiting_place_is_vllm_and_not_the_library_it_waits_in() -> None:
    (place,) = parse_host_stacks(SERVER.splitlines()).waiting_in
    assert "shm_broadcast.py:610" in place


def test_a_native_frame_gives_way_to_the_python_frame_that_called_it() -> None:
    thread = parse_host_stacks(SERVER.splitlines()).threads[1]
    assert thread.own_frame is not None
    assert (thread.active, thread.own_frame.file, thread.own_frame.line) == (True, "torch/cuda/streams.py", 231)


def test_a_thread_that_only_waits_still_has_a_place() -> None:
    text = 'Process 7: python\nThread 7 (idle): "MainThread"\n    select (selectors.py:468)\n'
    assert parse_host_stacks(text.splitlines()).waiting_in == ("python (7): selectors.py:468 in select",)
