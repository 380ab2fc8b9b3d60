"""Ranks on this machine: one attempt of several real process trees, the first failure, and taking them over."""

import time
from pathlib import Path

import pytest

from tests.support.patience import patience
from tests.support.steps import python, runner
from vdbg_env.evidence.finding import EndedBy, Observation
from vdbg_env.run.placement import Layout, StartedAttempt
from vdbg_env.run.ranks import LocalRanks
from vdbg_env.runbook.machine import ranked as of_ranks
from vdbg_env.runbook.model import ArtifactRule, KillPolicy, OnFirstFailure, Placement, Ready, ServerDriver, Watch
from vdbg_env.runbook.state import Invocation

RANK = "import os,sys,time,signal\nrank=int(sys.argv[1])\n"
QUICKLY = Placement(on_first_failure=OnFirstFailure(wait_s=0.2))


def ranked(code: str, **fields: object) -> Invocation:
    found = python(RANK + code, **fields)
    return Invocation(**{**found.__dict__, "argv": (*found.argv, "${{ rank.number }}")})


def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "steps" / "step" / "1"
    folder.mkdir(parents=True)
    return folder


def ends(started: StartedAttempt, within_s: float = 20.0) -> dict[int, Observation]:
    seen = started.wait(within_s)
    assert seen is not None
    assert [one.rank for one in seen] == list(range(len(seen)))
    return {one.rank: one for one in seen}


def test_each_rank_has_its_number_its_folder_and_its_end(tmp_path: Path) -> None:
    here = LocalRanks(runner(tmp_path), 3)
    invocation = ranked("print('I am', rank); raise SystemExit(rank)")
    assert here.layout(invocation) == Layout(ranks=3)
    folder = attempt(tmp_path)
    seen = ends(here.start(invocation, folder))
    assert [one.ended.code for one in seen.values()] == [0, 1, 2]
    assert [(folder / f"localhost-{rank}" / "stdout").read_text() for rank in seen] == [f"I am {r}\n" for r in range(3)]


def test_the_ranks_find_each_other_as_torch_distributed_does(tmp_path: Path) -> None:
    """Real connections at the address and port given: the variables alone would prove little."""
    code = (
        "import socket\n"
        "names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR')\n"
        "print(*(os.environ[name] for name in names), flush=True)\n"
        "at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "if rank == 0:\n"
        "  with socket.create_server(at) as server: server.accept()[0].send(b'met')\n"
        "else:\n"
        "  for _ in range(200):\n"
        "    try: met = socket.create_connection(at).recv(3); break\n"
        "    except OSError: time.sleep(0.05)\n"
        "  raise SystemExit(met != b'met')\n"
    )
    folder = attempt(tmp_path)
    seen = ends(LocalRanks(runner(tmp_path), 2).start(ranked(code), folder))
    assert all(one.ended.clean for one in seen.values())
    said = [(folder / f"localhost-{rank}" / "stdout").read_text() for rank in (0, 1)]
    assert said == ["0 2 0 127.0.0.1\n", "1 2 1 127.0.0.1\n"]


def test_a_step_may_give_its_ranks_another_place_to_meet(tmp_path: Path) -> None:
    folder = attempt(tmp_path)
    code = "print(os.environ['MASTER_PORT'], os.environ['RANK'])"
    ends(LocalRanks(runner(tmp_path), 2).start(ranked(code, env={"MASTER_PORT": "29500"}), folder))
    assert (folder / "localhost-1" / "stdout").read_text() == "29500 1\n"


def test_a_single_rank_is_where_it_always_was(tmp_path: Path) -> None:
    here = LocalRanks(runner(tmp_path))
    invocation = ranked("print(rank)")
    assert here.layout(invocation) == Layout(ranks=1, folder="localhost-0")
    folder = attempt(tmp_path)
    (folder / "localhost-0").mkdir()
    assert ends(here.start(invocation, folder))[0].ended.clean


def test_a_step_may_ask_for_its_ranks_and_the_command_line_is_stronger(tmp_path: Path) -> None:
    invocation = ranked("pass", placement=Placement(nodes=2, per_node=2))
    assert LocalRanks(runner(tmp_path)).layout(invocation).ranks == 4
    assert LocalRanks(runner(tmp_path), 2).layout(invocation).ranks == 2


def test_the_first_failure_ends_the_ranks_that_would_wait_for_ever(tmp_path: Path) -> None:
    code = "os.kill(os.getpid(), signal.SIGSEGV) if rank == 1 else time.sleep(60)"
    began = time.monotonic()
    seen = ends(LocalRanks(runner(tmp_path), 3).start(ranked(code, placement=QUICKLY), attempt(tmp_path)))
    assert time.monotonic() - began < patience(15)
    assert (seen[1].ended.by, seen[1].ended.signal) == (EndedBy.SIGNAL, 11)
    assert [seen[rank].ended.by for rank in (0, 2)] == [EndedBy.PEER, EndedBy.PEER]


def test_a_peer_that_still_writes_a_dump_outlives_the_wait(tmp_path: Path) -> None:
    code = (
        "if rank == 1: raise SystemExit(3)\n"
        "with open('${{ rank.dir }}/core.1', 'wb') as core:\n"
        "  for _ in range(25): core.write(bytes(4096)); core.flush(); time.sleep(0.1)\n"
        "print('whole')\n"
    )
    invocation = ranked(code, placement=QUICKLY, artifacts=(ArtifactRule(name="core", glob="core.*"),))
    folder = attempt(tmp_path)
    seen = ends(LocalRanks(runner(tmp_path), 2).start(invocation, folder))
    assert seen[0].ended.clean
    assert (folder / "localhost-0" / "core.1").stat().st_size == 25 * 4096
    assert [one.size for one in seen[0].artifacts["core"]] == [25 * 4096]


def test_requests_go_to_the_first_rank_and_their_end_is_the_end_of_all(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text('{"method": "POST", "url": "/v1", "body": {}}\n')
    code = (
        "import http.server\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "  def do_GET(self): self.send_response(200); self.end_headers()\n"
        "  do_POST = do_GET\n"
        "if rank: time.sleep(60)\n"
        "server = http.server.HTTPServer(('127.0.0.1', PORT), Answer); server.serve_forever()\n"
    )
    port = free_port()
    driver = ServerDriver(
        replay=str(tmp_path / "requests.jsonl"), ready=Ready(http=f"http://127.0.0.1:{port}/", timeout_s=10)
    )
    invocation = ranked(code.replace("PORT", str(port)), driver=driver, server=True)
    seen = ends(LocalRanks(runner(tmp_path), 2).start(invocation, attempt(tmp_path)))
    assert [one.ended.by for one in seen.values()] == [EndedBy.STOPPED, EndedBy.STOPPED]
    assert seen[0].requests is not None
    assert seen[0].requests.answered == 1
    assert seen[1].requests is None


@pytest.mark.parametrize("asked", [False, True], ids=["running", "being ended"])
def test_another_engine_takes_over_all_ranks(tmp_path: Path, asked: bool) -> None:
    code = "if not rank: raise SystemExit(4)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    invocation = ranked(code, placement=QUICKLY, kill=KillPolicy(grace_s=2.0))
    folder = attempt(tmp_path)
    first = LocalRanks(runner(tmp_path), 2).start(invocation, folder)
    while asked and not (folder / "ending.json").exists():
        assert first.wait(0.05) is None
    adopted = LocalRanks(runner(tmp_path), 2).adopt(invocation, folder)
    assert adopted is not None
    seen = ends(adopted)
    ends(first)  # this process is its parent too
    assert seen[0].ended.code == 4
    assert seen[1].ended.by is EndedBy.PEER


def test_what_the_user_cancels_is_no_failure_of_a_peer(tmp_path: Path) -> None:
    started = LocalRanks(runner(tmp_path), 2).start(ranked("time.sleep(60)"), attempt(tmp_path))
    assert started.wait(0.3) is None
    started.cancel()
    assert {one.ended.by for one in ends(started).values()} == {EndedBy.CANCEL}


def test_nothing_is_adopted_where_no_rank_was_started(tmp_path: Path) -> None:
    assert LocalRanks(runner(tmp_path), 2).adopt(ranked("pass"), attempt(tmp_path)) is None


def free_port() -> int:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.mark.long
def test_the_stacks_of_all_ranks_are_taken_before_any_is_ended(tmp_path: Path) -> None:
    """Rank 0 sees the hang; rank 1 prints on and would never be looked at, and is ended as a peer."""
    code = "while True:\n    print(time.time(), flush=True) if rank else None\n    time.sleep(0.1)\n"
    folder = attempt(tmp_path)
    invocation = ranked(code, watch=Watch(output_idle_s=3.0), placement=QUICKLY, timeout_s=90.0)
    seen = ends(LocalRanks(runner(tmp_path), 2).start(invocation, folder), 80.0)
    assert (seen[0].ended.by, seen[1].ended.by) == (EndedBy.WATCH, EndedBy.PEER)
    for rank in seen:
        assert "python" in (folder / f"localhost-{rank}" / "hang.txt").read_text()
    assert "another rank hung" in (folder / "localhost-1" / "hang.txt").read_text()


def test_silence_of_the_ranks_that_serve_no_request_is_no_hang(tmp_path: Path) -> None:
    driver = ServerDriver(replay="requests.jsonl", ready=Ready(http="http://127.0.0.1:1/"))
    invocation = ranked("pass", watch=Watch(output_idle_s=3.0, gpu_idle_s=9.0), driver=driver)
    both = of_ranks(invocation, ranks=2, nodes=2, master="n0", port=20001)
    assert both.first.watch == invocation.watch
    assert (both.others.watch.output_idle_s, both.others.watch.gpu_idle_s) == (None, 9.0)
    assert of_ranks(
        ranked("pass", watch=Watch(output_idle_s=3.0)), ranks=2, nodes=2, master="n0", port=20001
    ).others.watch.output_idle_s
