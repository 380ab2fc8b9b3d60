"""Which process died first, by what the supervisor saw and by what vLLM 0.32 prints (of runs of the CPU build)."""

import pytest

from vdbg_env.evidence.deaths import ProcessDeath, process_death, read_deaths
from vdbg_env.evidence.finding import Death
from vdbg_env.evidence.log_line import role_of, unwrap
from vdbg_env.evidence.python_text import firsthand, raised_finding, read_tracebacks

WORKER = Death(pid=23739, name="VLLM::Worker_TP1", signal=6, at_s=55.7)
ENGINE = Death(pid=23162, name="VLLM::EngineCore", signal=9, at_s=56.1)
MISSED = (
    "(EngineCore pid=23162) ERROR 11-23 07:07:46 [multiproc_executor.py:315] Worker proc VllmWorker-1 died "
    "unexpectedly (exit code: {code}), shutting down executor."
)
CANCELLED = """\
(EngineCore pid=23162) ERROR 11-23 07:07:46 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=23162) ERROR 11-23 07:07:46 [core.py:1512]   File "/v/vllm/shm_broadcast.py", line 867, in acquire_read
(EngineCore pid=23162) ERROR 11-23 07:07:46 [core.py:1512] RuntimeError: cancelled
"""
RAISED = """\
(Worker_TP1 pid=23739) ERROR 11-23 07:12:23 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker_TP1 pid=23739) ERROR 11-23 07:12:23 [multiproc_executor.py:1063]   File "/v/vllm/model.py", line 5, in forward
(Worker_TP1 pid=23739) ERROR 11-23 07:12:23 [multiproc_executor.py:1063] RuntimeError: The size of tensor a (64)
(EngineCore pid=23162) ERROR 11-23 07:12:23 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=23162) ERROR 11-23 07:12:23 [core.py:1512]   File "/v/vllm/executor.py", line 9, in get_response
(EngineCore pid=23162) ERROR 11-23 07:12:23 [core.py:1512] RuntimeError: Worker failed with error 'The size of'
"""


def death(log: str, *deaths: Death) -> ProcessDeath | None:
    lines = [unwrap(line) for line in log.splitlines()]
    label = next((line for line in lines if deaths and line.pid == deaths[0].pid), None)
    raised = firsthand(read_tracebacks(lines))
    return process_death(deaths[0] if deaths else None, read_deaths(lines), raised, label=label)


def test_what_the_engine_raises_when_it_has_lost_its_worker_is_an_effect() -> None:
    found = death(MISSED.format(code=None) + "\n" + CANCELLED, WORKER, ENGINE)
    assert found is not None
    assert (found.process, found.rank, found.how, found.role) == ("Worker_TP1", 1, "SIGABRT", "Worker")
    assert str(found) == "Worker_TP1 (rank 1) was ended by SIGABRT: it aborted"


def test_an_exception_of_the_worker_is_the_cause_and_not_who_was_killed_in_its_course() -> None:
    assert death(RAISED, ENGINE) is None
    assert death(RAISED, WORKER) is None


@pytest.mark.parametrize(("code", "how"), [(-9, "SIGKILL"), (3, "exit status 3"), (None, None)])
def test_without_a_supervisor_that_saw_it_the_log_says_how(code: int | None, how: str | None) -> None:
    found = death(MISSED.format(code=code) + "\n" + CANCELLED)
    assert found is not None
    assert (found.process, found.rank, found.how) == ("VllmWorker-1", 1, how)


def test_an_engine_that_is_killed_is_missed_by_the_server() -> None:
    said = "(APIServer pid=1) ERROR 11-23 07:07:46 MPClient: engine core exited unexpectedly; starting cleanup"
    found = death(said, ENGINE)
    assert found is not None
    assert (found.process, found.how, found.rank) == ("EngineCore", "SIGKILL", None)


def test_a_role_has_no_number() -> None:
    names = ("VLLM::Worker_TP1", "VllmWorker-0", "Worker_DP0_TP2_EP2", "EngineCore_DP0", "VLLM::EngineCor", "train-7")
    assert list(map(role_of, names)) == ["Worker", "Worker", "Worker", "EngineCore", "EngineCore", "train"]


def test_an_exception_that_the_others_still_wait_for_is_told_of_a_hang_and_one_of_the_end_is_not() -> None:
    lines = [unwrap(line) for line in RAISED.splitlines()]
    (raised,) = firsthand(read_tracebacks(lines))
    assert raised.stops_others
    found = raised_finding(raised)
    assert (found.process, found.rank, str(found.location)) == ("Worker_TP1", 1, "/v/vllm/model.py:5 in forward")
    assert found.message == (
        "Worker_TP1 (rank 1) raised RuntimeError: The size of tensor a (64); the others waited for it"
    )
    ended = RAISED.replace("RuntimeError: The size of tensor a (64)", "KeyboardInterrupt")
    assert not firsthand(read_tracebacks(map(unwrap, ended.splitlines())))[0].stops_others
