"""torchrun's own account of which process failed first: as PyTorch 2.13 (CPU) printed it in runs of ours."""

from dataclasses import replace

from tests.unit.evidence.test_ranks import rank
from vdbg_env.evidence.deaths import VICTIM, blame, is_victim, root_cause, torchrun_findings
from vdbg_env.evidence.finding import RootCause

KILLED = """\
W1123 07:51:08.350000 17980 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 18009 closing signal SIGTERM
E1123 07:51:08.393000 17980 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -11) local_rank: 1 (pid: 18010) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-23_07:51:08
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 18009)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 18009
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_07:51:08
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 18010)  (SIGSEGV)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 18010
=======================================================
"""  # noqa: E501
RECORDED = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_07:52:36
  host      : localhost
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 19775)\x20
  error_file: /tmp/torchelastic/none/attempt_0/1/error.json
  traceback : Traceback (most recent call last):
    File "rec.py", line 8, in main
      if r == 1: raise ValueError("my own fault")
                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  ValueError: my own fault
 \x20
============================================================
"""


def test_the_process_that_failed_first_and_its_end_are_read() -> None:
    assert root_cause(KILLED) == RootCause(
        rank=1, local_rank=1, host="localhost", pid=18010, code=-11, signal="SIGSEGV"
    )
    recorded = RootCause(rank=5, local_rank=1, host="localhost", pid=19775, code=1, error="ValueError: my own fault")
    assert root_cause(RECORDED) == recorded
    assert root_cause(KILLED + RECORDED) == recorded  # the last one: it gave up
    assert root_cause("Root Cause (first observed failure):\n") is None


def test_the_local_rank_is_named() -> None:
    seen = replace(rank(0, "exit", code=1), root_cause=root_cause(KILLED))
    (found,) = torchrun_findings([seen])
    assert found.message == ("torchrun's rank 1 failed first (local rank 1 on localhost, process 18010) with SIGSEGV")
    (found,) = torchrun_findings([replace(seen, root_cause=root_cause(RECORDED))])
    assert found.message.endswith("process 19775) with exit status 1: ValueError: my own fault")
    assert torchrun_findings([rank(0, "exit", code=1)]) == ()
    assert torchrun_findings([]) == ()


def test_an_agent_whose_process_crashed_is_told_from_one_whose_processes_lost_their_peer() -> None:
    """Two nodes: both agents return 1 and name a process; on node 0 it says that its connection was closed."""
    lost = replace(root_cause(KILLED) or RootCause(rank=0, local_rank=0, pid=1, code=1), code=1)
    victim = replace(rank(0, "exit", code=1, said=(VICTIM,)), root_cause=lost)
    crashed = replace(rank(1, "exit", code=1, said=(VICTIM,), started=60.0), root_cause=root_cause(KILLED))
    found = blame([victim, crashed])
    assert found is not None
    assert found.ranks == (crashed,)
    assert is_victim(replace(rank(0, "exit", code=1), root_cause=replace(lost, code=-15)))
    (named,) = torchrun_findings([victim, crashed])
    assert "local rank 1" in named.message
