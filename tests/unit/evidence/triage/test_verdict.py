"""The root among cascades: the traps, one by one."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.command_line import vdbg_env
from tests.support.triage import LOGS, corpus, triage_bytes
from vdbg_env.crash.triage import runbook_to_start
from vdbg_env.evidence.triage_verdict import Triage
from vdbg_env.record.runs import INDEX

PREFIX = "(EngineCore pid=7) ERROR 11-03 23:14:03 [core.py:1] "
IMA = PREFIX + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
NCCL = "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error\n"
NOISE = "".join(f"(APIServer pid=1) INFO 11-03 23:13:5{i % 10} [x.py:1] request {i} ok\n" for i in range(2000))
BEGUN = "".join(NOISE.splitlines(keepends=True)[:5])
ANSWERED = 'INFO:     127.0.0.1:41234 - "POST /v1/completions HTTP/1.1" 200 OK\n'


def triage(*texts: str, **more: tuple[str, ...]) -> Triage:
    return triage_bytes(*(text.encode() for text in texts), **more)  # type: ignore[arg-type]


def test_the_failure_of_nccl_gives_way_to_the_access_that_caused_it_whichever_came_first() -> None:
    assert triage(NCCL + IMA).failure.name == "illegal-memory-access"
    assert triage(IMA + NCCL).failure.name == "illegal-memory-access"
    assert triage(NCCL).failure.name == "nccl-failure"


def test_an_effect_is_told_as_one() -> None:
    (other,) = triage(NCCL + IMA).alternatives
    assert (other.failure, other.effect) == ("nccl-failure", True)


@pytest.mark.parametrize("before", [450, 10_000, 1_000_000])
def test_of_a_long_line_the_part_around_the_words_is_shown(before: int) -> None:
    root = triage(
        "x" * before + " CUDA error: an illegal memory access was encountered " + "y" * before + "\n"
    ).root_cause
    assert root
    assert "CUDA error: an illegal memory access" in root.text
    assert len(root.text) <= 600


def test_line_numbers_are_right_far_into_a_log() -> None:
    root = triage(NOISE * 30 + IMA).root_cause
    assert root is not None
    assert root.line == 2000 * 30 + 1


def test_logs_of_several_ranks_are_weighed_together() -> None:
    verdict = triage(NCCL, IMA.replace("EngineCore", "Worker_TP5"), names=("rank0.log", "rank5.log"))
    assert verdict.root_cause is not None
    assert (verdict.root_cause.file, verdict.root_cause.line, verdict.rank) == ("rank5.log", 1, 5)


def test_a_custom_all_reduce_alone_is_said_to_be_a_messenger() -> None:
    verdict = triage(
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'an illegal memory access was encountered'\n"
    )
    assert verdict.failure.name == "illegal-memory-access"
    assert any("not the cause" in note for note in verdict.notes)
    assert verdict.confidence < triage(IMA).confidence


def test_a_kernel_that_the_driver_names_is_given() -> None:
    verdict = triage(
        "coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)\n"
        "coredump:   - Device: 0\n"
        "coredump:   #0\t0x7462c3bac620\t_Z7mykernelPi\n"
    )
    assert verdict.kernel == "_Z7mykernelPi"


def test_the_kernel_of_a_sanitizer_report_is_given() -> None:
    verdict = triage("========= Invalid __global__ read of size 4 bytes\n=========     at foo(int *)+0x70 in a.cu:4\n")
    assert verdict.kernel == "foo(int *)"


def test_what_comes_after_an_orderly_shutdown_is_no_bug_but_is_told() -> None:
    verdict = triage("INFO:     Shutting down\n" + IMA)
    assert verdict.failure.name == "not-a-gpu-failure"
    assert verdict.alternatives[0].failure == "illegal-memory-access"


def test_a_shutdown_that_a_crash_brought_about_is_not_orderly() -> None:
    text = PREFIX + "EngineCore encountered a fatal error.\nINFO:     Shutting down\n" + IMA
    assert triage(text).failure.name == "illegal-memory-access"


def test_a_second_run_in_the_same_log_begins_afresh() -> None:
    text = "INFO:     Shutting down\nINFO 11-03 23:14:03 [api_server.py:1] vLLM API server version 0.33.0\n" + IMA
    assert triage(text).failure.name == "illegal-memory-access"


def test_an_exception_that_ended_the_engine_is_the_root_though_it_is_no_failure_of_the_gpu() -> None:
    verdict = triage(PREFIX + "EngineCore failed to start.\n" + PREFIX + "ValueError: unknown option\n")
    assert (verdict.failure.name, verdict.root_cause and verdict.root_cause.line) == ("not-a-gpu-failure", 2)


def test_an_engine_that_died_without_a_word_is_unknown_and_says_what_is_missing() -> None:
    verdict = triage(PREFIX + "EngineCore failed to start.\n")
    assert verdict.failure.name == "unknown"
    assert any("engine died" in note for note in verdict.notes)
    assert any("every rank" in note for note in verdict.notes)


def test_an_abort_alone_says_what_it_may_be() -> None:
    verdict = triage(
        "ERROR 11-03 23:14:03 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -6), shutting down.\n"
    )
    assert verdict.failure.name == "host-crash"
    assert verdict.confidence < 0.55
    assert verdict.failed is True
    assert [a.failure for a in verdict.alternatives] == ["illegal-memory-access"]


@pytest.mark.parametrize("width", [80, 100, 132, 157])
def test_a_log_wrapped_hard_at_any_width_is_read(width: int) -> None:
    text = (LOGS / "dev" / "ima-v1-enginecore.log").read_text()
    folded = "\n".join(line[i : i + width] for line in text.splitlines() for i in range(0, max(1, len(line)), width))
    verdict = triage(folded + "\n")
    assert verdict.root_cause is not None
    shown = folded.splitlines()[verdict.root_cause.line - 1]
    assert verdict.failure.name == "illegal-memory-access"
    assert "(EngineCore pid=154) ERROR" in shown


def test_windows_line_ends_change_nothing() -> None:
    root = triage(("fine\n" + IMA).replace("\n", "\r\n")).root_cause
    assert root is not None
    assert (root.line, root.text) == (2, IMA.split("] ", 1)[1].strip())


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from([line for log in corpus()[::3] for line in log.read().splitlines(keepends=True)])
        | st.binary(max_size=80),
        max_size=40,
    )
)
def test_any_bytes_give_an_answer(pieces: list[bytes]) -> None:
    verdict = triage_bytes(b"".join(pieces), chunk=97)
    assert 0 <= verdict.confidence <= 1
    assert verdict.root_cause is not None or verdict.failure.name in {"not-a-gpu-failure", "unknown"}


def test_the_command_says_what_where_and_what_next(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("fine\n" + IMA)
    ran = vdbg_env("triage", str(log))
    assert ran.status == 3
    assert ran.stdout.startswith("illegal-memory-access ")
    assert f"{log}:2" in ran.stdout
    assert "next: vdbg-env runbook illegal-memory-access" in ran.stdout


def test_the_document_keeps_its_promise(tmp_path: Path) -> None:
    log = tmp_path / "server.log.gz"
    log.write_bytes(gzip.compress(IMA.encode()))
    ran = vdbg_env("triage", "--json", str(log))
    document = json.loads(ran.stdout)
    assert ran.status == 3
    assert {"schema", "class", "runbook", "confidence", "root_cause", "rank", "kernel", "alternatives", "notes"} <= set(
        document
    )
    assert document["root_cause"]["line"] == 1
    assert document["schema"] == "vdbg-env/triage/v1"


def test_a_folder_gives_all_its_logs_and_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / "stderr").write_text(NCCL)
    (tmp_path / "rank_1.log").write_text(IMA)
    (tmp_path / "weights.safetensors").write_bytes(b"Fatal Python error: Segmentation fault\n")
    document = json.loads(vdbg_env("triage", "--json", str(tmp_path)).stdout)
    assert len(document["logs"]) == 2
    assert document["root_cause"]["file"].endswith("rank_1.log")


def test_a_benign_log_ends_well(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(NOISE + ANSWERED)
    assert vdbg_env("triage", str(log)).status == 0


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", NOISE.encode(), b"hello\nworld\n",
     b"INFO:     Shutting down\nINFO:     Application shutdown complete.\n"],
    ids=["empty", "a-line-end", "noise", "words", "only-a-shutdown"],
)  # fmt: skip
def test_a_log_that_shows_neither_a_failure_nor_work_is_neither_well_nor_a_failure(tmp_path: Path, text: bytes) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(text)
    assert vdbg_env("triage", str(log)).status == 4


@pytest.mark.parametrize("name", ["bad-flag", "port-in-use", "no-model", "no-config-file", "engine-killed"])
def test_a_failed_start_is_a_failure_though_the_gpu_has_no_part_in_it(name: str) -> None:
    assert vdbg_env("triage", str(LOGS / "real-vllm" / f"{name}.log")).status == 3


def test_a_guess_is_no_failure_that_was_found(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("(EngineCore pid=1) ERROR 11-03 23:14:03 [core.py:1] EngineCore encountered a fatal error.\n")
    assert vdbg_env("triage", str(log)).status == 4


def test_what_is_unknown_is_shown_without_a_confidence(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("some words\n")
    assert "confidence" not in vdbg_env("triage", str(log)).stdout
    log.write_text(IMA)
    assert "confidence 9" in vdbg_env("triage", str(log)).stdout


@pytest.mark.parametrize(
    ("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("a\nb\n", 2), (NOISE * 3, 6000)]
)
def test_lines_are_counted_with_and_without_a_last_line_break(text: str, lines: int) -> None:
    assert [log.lines for log in triage(text).logs] == [lines]


@pytest.mark.parametrize(
    "said", ["no CUDA error: out of memory was seen", "finished without any errors: CUDA error: out of memory"]
)
def test_a_sentence_that_denies_an_error_is_none(said: str) -> None:
    verdict = triage(f"step 1\n{said}\nstep 2\n")
    assert verdict.failure.name == "unknown"


def test_a_message_far_behind_the_start_of_its_line_is_found() -> None:
    error = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    for before in (70_000, 300_000, 900_000):
        verdict = triage("first\n" + "x" * before + " " + error + "\nlast\n")
        assert verdict.failure.name == "illegal-memory-access"
        assert verdict.root_cause is not None
        assert verdict.root_cause.line == 2


def test_a_device_without_an_end_is_refused() -> None:
    refused = vdbg_env("triage", "/dev/zero")
    assert (refused.status, "give a log file" in refused.stderr) == (2, True)
    assert vdbg_env("triage", "/dev/null").status == 4


def test_an_empty_log_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("")
    (tmp_path / "rank_1.log").write_text(IMA)
    notes = json.loads(vdbg_env("triage", "--json", str(tmp_path)).stdout)["notes"]
    assert [note for note in notes if "no text" in note] == [f"{tmp_path / 'rank_0.log'} holds no text"]
    (tmp_path / INDEX).write_bytes(b"\0" * 64)
    for rank in range(2, 9):
        (tmp_path / f"rank_{rank}.log").write_text("")
    notes = json.loads(vdbg_env("triage", "--json", str(tmp_path)).stdout)["notes"]
    assert f"{tmp_path / 'rank_0.log'} and 7 more files hold no text" in notes
    assert not any(INDEX in note for note in notes), "it is ours"


def test_where_every_log_is_empty_nothing_is_sure(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("")
    document = json.loads(vdbg_env("triage", "--json", str(tmp_path)).stdout)
    assert (document["class"], document["confidence"]) == ("unknown", 0.0)


def test_a_log_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    ran = vdbg_env("triage", str(tmp_path / "nothing.log"))
    assert (ran.status, "does not exist" in ran.stderr) == (2, True)


def test_an_archive_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    log = tmp_path / "x.log.gz"
    whole = gzip.compress(IMA.encode() + b"".join(str(i * i).encode() for i in range(9000)))
    log.write_bytes(whole[:-3000])
    ran = vdbg_env("triage", str(log))
    assert ran.status == 3
    assert "only what could be read" in ran.stdout


def test_a_compressed_log_that_holds_nothing_readable_is_bad_input(tmp_path: Path) -> None:
    log = tmp_path / "x.log.gz"
    log.write_bytes(b"\x1f\x8b" + b"\x00" * 40)
    assert vdbg_env("triage", str(log)).status == 2


@pytest.mark.parametrize(
    ("name", "started"),
    [
        ("illegal-memory-access", "illegal-memory-access"),
        ("mine", "mine"),
        ("device-side-assert", "illegal-memory-access"),
        ("model-load", None),
        (None, None),
    ],
)
def test_only_a_runbook_that_is_at_hand_is_started(name: str | None, started: str | None) -> None:
    assert runbook_to_start(name, {"illegal-memory-access", "mine"}) == started


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ("nccl-failure", "RuntimeError: NCCL Error 3: internal error"),
        ("nccl-failure", "nccl.NcclError: NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error"),
        (
            "triton-compile",
            "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/t/main.c', '-O3', '-lcuda']' returned 1.",
        ),
        ("version-mismatch", "Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open"),
        ("model-load", "RuntimeError: PytorchStreamReader failed reading zip archive: no central directory"),
        ("host-crash", "  traceback : Signal 11 (SIGSEGV) received by PID 4711"),
        ("host-crash", "loading weights\nKilled"),
        ("out-of-memory", "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("driver-problem", "[1.0] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=1, Uncontained: LTC TAG"),
        ("driver-problem", "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x0)"),
        ("unknown", "NVRM: Xid (PCI:0009:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x0)"),
        ("unknown", "hello\nworld"),
    ],
)
def test_wordings_that_others_published_are_known(failure: str, text: str) -> None:
    assert triage(text + "\n").failure.name == failure


def test_an_exception_that_names_the_gpu_in_new_words_is_less_sure_than_another() -> None:
    assert triage("RuntimeError: CUDA is broken in a new way\n").confidence < triage("KeyError: 'x'\n").confidence


def test_hardware_outranks_what_it_brought_about_whichever_was_written_first() -> None:
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    assert triage(IMA + ecc).failure.name == "driver-problem"
    assert triage(ecc + IMA).failure.name == "driver-problem"


def test_what_the_run_survived_is_no_root_unless_a_process_had_died() -> None:
    broken = PREFIX + "triton.compiler.errors.CompilationError: at 3:1\n"
    tokens = "INFO 11-03 23:14:09 [loggers.py:1] Avg generation throughput: 81.0 tokens/s, Running: 1 reqs\n"
    assert triage(broken).failure.name == "triton-compile"
    assert triage(broken + tokens).failure.name == "not-a-gpu-failure"
    assert triage(broken + PREFIX + "EngineCore encountered a fatal error.\n" + tokens).failure.name == "triton-compile"


def test_the_answer_is_the_same_when_progress_is_far_from_what_it_clears() -> None:
    tokens = "INFO 11-03 23:14:09 [loggers.py:1] Avg generation throughput: 81.0 tokens/s, Running: 1 reqs\n"
    text = (PREFIX + "ValueError: a request was too long\n" + NOISE * 20 + tokens + NOISE * 20).encode()
    for chunk in (1 << 12, 1 << 20):
        assert triage_bytes(text, chunk=chunk).failure.name == "not-a-gpu-failure"
        assert triage_bytes(text, chunk=chunk).root_cause is None


@pytest.mark.parametrize("between", [0, 600, 6000])
def test_the_effects_of_an_exception_may_be_printed_any_number_of_lines_after_it(between: int) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "train.py", line 9, in step\nValueError: 4080 tokens, not 4096\n'
    )
    other = '[rank1]:   File "layers.py", line 20, in forward\n' * between
    effect = "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote error\n"
    verdict = triage(raised + other + effect)
    assert (verdict.failure.name, verdict.root_cause and verdict.root_cause.line) == ("not-a-gpu-failure", 3)


def test_of_a_class_for_two_ends_the_one_is_said_that_is_meant() -> None:
    assert triage_bytes(ANSWERED.encode()).said == "the run went well"
    failed = triage_bytes(b"Traceback (most recent call last):\nKeyError: 'block 7'\n")
    assert (failed.failure.name, failed.said) == ("not-a-gpu-failure", "probably not a GPU failure")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Received SIGTERM, shutting down", "SIGTERM ended it; the log shows no work before that"),
        ("KeyboardInterrupt: terminated", "SIGTERM ended it; the log shows no work before that"),
        ("KeyboardInterrupt", "SIGINT ended it; the log shows no work before that"),
        ("INFO:     Shutting down", "it shut down in order; the log shows no work before that"),
    ],
)
def test_a_server_that_was_ended_before_it_served_did_not_go_well(line: str, said: str) -> None:
    begun = "(APIServer pid=1) INFO 11-03 23:12:01 [api_server.py:2101] vLLM API server version 0.33.0\n"
    ended = f"(APIServer pid=1) INFO 11-03 23:13:00 [launcher.py:110] {line}\n"
    verdict = triage(begun + ended)
    assert (verdict.failure.name, verdict.said, verdict.failed) == ("not-a-gpu-failure", said, None)
    assert verdict.root_cause and verdict.root_cause.line == 2
    served = triage(begun + ANSWERED + ended)
    assert (served.said, served.failed, served.root_cause) == ("the run went well", False, None)


REQUEST = """\
(APIServer pid=1) ERROR:    Exception in ASGI application
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/app/uvicorn/protocols/http/h11_impl.py", line 403, in run_asgi
(APIServer pid=1) {raised}
"""
DISCONNECTS = [
    "starlette.requests.ClientDisconnect",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "asyncio.exceptions.CancelledError",
    "anyio.BrokenResourceError",
    "h11._util.LocalProtocolError: Can't send data when our state is ERROR",
    "RuntimeError: No response returned.",
    "RuntimeError: Unexpected message received: http.request",
]


@pytest.mark.parametrize(
    "log",
    [
        '  File "/srv/a.py", line 6, in check\n    check(err, "{0}")\nRuntimeError: {0}\n',
        'E     File "/srv/a.py", line 6, in check\nE       check(err, "{0}\\nmore")\nE   RuntimeError: {0}\n',
        '    def test_x():\n>       check(err, "{0}")\nE       RuntimeError: {0}\n',
    ],
)
def test_the_source_that_a_traceback_quotes_is_not_the_root_line(log: str) -> None:
    root = triage(log.format("CUDA error: an illegal memory access was encountered")).root_cause
    assert root and root.line == 3
    prefixed = log.replace("{0}", "CUDA error: invalid device function").replace("\n", "\n(EngineCore_0 pid=1) ")
    root = triage("(EngineCore_0 pid=1) " + prefixed).root_cause
    assert root and root.line == 3


@pytest.mark.parametrize("address", ["('0.0.0.0', 31000)", "('::', 31000, 0, 0)"])
def test_the_port_that_is_in_use_is_named(address: str) -> None:
    said = triage(f"ERROR:    [Errno 98] error while attempting to bind on address {address}: address already in use")
    assert said.fix and "'sport = :31000'" in said.fix


def test_the_process_is_that_of_the_line_that_multiprocessing_prints_before_a_traceback() -> None:
    head = 'Traceback (most recent call last):\n  File "/srv/a.py", line 6, in f\n    g()\n'
    raised = head + "RuntimeError: CUDA error: out of memory\n"
    log = "INFO 11-27 12:00:00 [x.py:1] a\nProcess EngineCore_0:\n"
    assert triage(log + raised).process == "EngineCore_0"
    again = raised + "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert triage(log + again.replace("CUDA error: out of memory", "x") + raised).process == "EngineCore_0"
    assert triage(log + "ERROR 11-27 12:00:01 [x.py:1] b\n" + raised).process is None, "another's line is between"


@pytest.mark.parametrize("raised", DISCONNECTS)
def test_a_log_of_a_server_that_ends_with_a_clients_disconnect_shows_no_failure(raised: str) -> None:
    verdict = triage(ANSWERED + REQUEST.format(raised=raised))
    assert (verdict.failed, verdict.root_cause) == (False, None)
    assert "log0:2 is of a request that failed, which a server gets over" in verdict.notes[0]
    own = triage(ANSWERED + REQUEST.format(raised="ValueError: 4080 tokens, not 4096"))
    assert own.failed, "a fault of the server's own is still told"


@pytest.mark.parametrize("raised", DISCONNECTS)
def test_a_request_that_failed_because_the_engine_died_does_not_hide_that(raised: str) -> None:
    verdict = triage(
        ANSWERED + IMA + PREFIX + "EngineCore encountered a fatal error.\n" + REQUEST.format(raised=raised)
    )
    assert verdict.failure.name == "illegal-memory-access"
    died = PREFIX + "EngineCore encountered a fatal error.\n" + PREFIX + "ValueError: 4080 tokens, not 4096\n"
    root = triage(ANSWERED + REQUEST.format(raised=raised) + died).root_cause
    assert root and "4080 tokens" in root.text


def test_a_run_that_worked_and_whose_last_line_is_an_unknown_error_did_not_surely_go_well() -> None:
    last = "(APIServer pid=1) ERROR 11-03 23:14:10 [lease.py:7] lost the lease, exiting\n"
    verdict = triage(ANSWERED + last)
    assert (verdict.failed, verdict.confidence) == (None, 0.4)
    assert verdict.root_cause and verdict.root_cause.line == 2
    assert triage(ANSWERED + last + ANSWERED).failed is False


def test_an_unknown_error_after_which_a_log_continues_in_order_is_a_guess() -> None:
    """A server that starts logs one about a part that it can do without; the log may be cut before it serves."""
    error = "(EngineCore pid=7) ERROR 11-03 23:14:03 [fa_utils.py:57] Cannot use FA version 2 is not supported\n"
    assert triage(error).failed
    verdict = triage(error + NOISE[:400])
    assert (verdict.failed, verdict.confidence, verdict.root_cause and verdict.root_cause.line) == (None, 0.4, 1)


@pytest.mark.parametrize(
    "after",
    [
        "",
        "\n",
        NOISE[:60],
        "(EngineCore pid=7) INFO 11-03 23:14:03 [x.py:1] a\n(EngineCore pid=7) WARNING 11-03 23:14:03 [x.py:1] b\n",
        NOISE[:60] + "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:03<00:00,  3.91s/it]\n",
    ],
)
def test_an_unknown_error_of_a_logger_in_a_log_that_was_in_order_until_it_is_a_guess(after: str) -> None:
    """A log of a server that is read while it starts ends at any line."""
    error = "(EngineCore pid=7) ERROR 11-03 23:14:03 [fa_utils.py:57] Cannot use FA version 2 is not supported\n"
    verdict = triage(BEGUN + error + after)
    assert (verdict.failed, verdict.confidence, verdict.root_cause and verdict.root_cause.line) == (None, 0.4, 6)


@pytest.mark.parametrize(
    "error",
    [
        "ERROR - no worker became healthy in 300 s\n",  # without a time: the last words of a program
        PREFIX + "cannot read the plan\nat step 4 of 9\n",
        "./serve.sh: line 6: vllm-serve: command not found\n",
    ],
)
def test_a_log_in_order_that_ends_with_the_last_words_of_a_program_shows_that_it_failed(error: str) -> None:
    verdict = triage(BEGUN + error)
    assert verdict.failed and verdict.root_cause and verdict.root_cause.line == 6


@pytest.mark.parametrize("later", ["", NOISE[:400], "exporting the nodes\n" * 80])
@pytest.mark.parametrize(
    "left_out", ["will not be available. Install it and start again", "is disabled", "are disabled"]
)
def test_an_optional_part_that_was_not_found_is_no_failure(left_out: str, later: str) -> None:
    said = "Checking for nodes at: None\nnodes-extra not found. Their editors {}.\n"
    verdict = triage(said.format(left_out) + later)
    assert (verdict.failed, verdict.failure.name) == (None, "unknown")
    assert verdict.root_cause and verdict.root_cause.line == 2, "it is still shown"
    assert triage(said.format("cannot be made: fatal error") + "exporting\n").failed
    assert triage(f"ValueError: the plan was not found, and writing one {left_out}\n").failed


@pytest.mark.parametrize(
    "stamp", ["[Tue Oct 27 06:00:00 2026]", "Oct 27 06:00:00 node1 kernel:", "2026-10-27T06:00:00 node1 kernel:"]
)
def test_a_fault_of_the_gpu_from_the_week_before_is_left_out(stamp: str) -> None:
    fault = f"{stamp} NVRM: Xid (PCI:0000:01:00): 79, pid=9, name=python3, GPU has fallen off the bus.\n"
    verdict = triage(fault, IMA, names=("dmesg.txt", "server.log"))
    assert verdict.failure.name == triage(fault + IMA).failure.name == "illegal-memory-access"
    assert verdict.notes[0] == "dmesg.txt:1 is over a day older than the first time in the logs, and is left out"
    same_day = fault.replace("Oct 27", "Nov  3").replace("10-27", "11-03")
    assert triage(same_day, IMA).failure.name == triage(fault).failure.name == "driver-problem"


@pytest.mark.parametrize("lines", [3, 60])
def test_lines_of_one_format_and_length_are_not_one_line_that_was_wrapped(lines: int) -> None:
    """The shell's word was taken for the rest of the line before, and no failure was found."""
    root = triage(
        "".join(f"epoch {n:03}/100 loss 1.{n:04} lr 0.0010 time 12.3 s memory 71.2 GiB\n" for n in range(lines))
        + "Killed\n"
    ).root_cause
    assert root and (root.line, root.text) == (lines + 1, "Killed")


def test_lines_of_two_containers_are_not_one_line_that_was_wrapped() -> None:
    """Lines of access are of one length, as those are that a terminal cut."""
    failed = "a-1  | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    served = 'b-1  | INFO:     127.0.0.1:55652 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    other = "a-1  | ".ljust(len(served) - 1, "x") + "\n"
    verdict = triage(failed + (served + other + served) * 9)
    assert verdict.failure.name == "out-of-memory"


@pytest.mark.parametrize(
    "begun", ["INFO:     Started server process [7]", "[2026-11-27 03:40:00] server_args=ServerArgs(model_path='x')"]
)
def test_the_failure_of_a_server_that_was_started_again_is_not_one_of_the_shutdown_before(begun: str) -> None:
    ended = ANSWERED + "INFO:     Shutting down\nINFO:     Application shutdown complete.\n"
    assert triage(ended + IMA).failed is False
    assert triage(ended + begun + "\n" + IMA).failure.name == "illegal-memory-access"


def test_of_an_extension_that_could_not_be_built_the_reason_is_shown_and_not_that_ninja_failed() -> None:
    """What FlashInfer raises has the output of ninja below it."""
    failed = PREFIX + "RuntimeError: Ninja build failed. Ninja output:\n"
    reason = PREFIX + "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\n"
    root = triage(failed + PREFIX + "FAILED: batch_prefill.cuda.o\n" + reason).root_cause
    assert root and root.line == 3
    alone = triage(failed)
    assert (alone.failure.name, alone.root_cause and alone.root_cause.line) == ("triton-compile", 1)


def test_the_exception_that_the_driver_names_counts_and_not_that_it_began_to_tell_of_one() -> None:
    """What driver 580 printed on an H100: a hundred lines stand between the two, and the address was aligned badly."""
    log = (Path(__file__).parents[3] / "data" / "driver_progress_misaligned_h100_r580.txt").read_bytes()
    verdict = triage_bytes(log)
    assert verdict.failure.name == "misaligned-address"
    assert verdict.root_cause and "WARP_MISALIGNED_ADDRESS" in verdict.root_cause.text
    assert not verdict.alternatives
    begun = log.splitlines()[0] + b"\nAborted (core dumped)\n"
    assert triage_bytes(begun).failure.name == "illegal-memory-access", "alone it is all that is known"


@pytest.mark.parametrize(
    "said",
    [
        "[09:01:45.744341] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_INVALID_ADDRESS_SPACE (7)",
        "RuntimeError: CUDA error: operation not supported on global/shared address space",
        "CUDA Exception: Warp Invalid Address Space",
        "[  378.8] NVRM: Xid (PCI:0000:00:06): 13, pid=7, name=launch, Graphics SM Warp Exception on (GPC 1, TPC 6, "
        "SM 0): Invalid Address Space",
    ],
)
def test_an_address_in_the_window_of_shared_memory_is_a_wild_one(said: str) -> None:
    """All that an H100 with driver 580 named so were reads and writes by an index that was 2 GiB too far."""
    verdict = triage(said)
    assert (verdict.failure.name, verdict.failure.runbook) == ("illegal-memory-access", "illegal-memory-access")
    assert not verdict.alternatives


def test_a_dump_that_ended_without_an_exception_is_no_illegal_access() -> None:
    """What driver 580 prints where a dump of a hang was asked for."""
    log = (Path(__file__).parents[3] / "data" / "driver_progress_misaligned_h100_r580.txt").read_bytes()
    without = b"".join(line for line in log.splitlines(True) if b"Detected an exception" not in line)
    assert b"Starting GPU coredump" in without and b"coredump: All done" in without
    assert triage_bytes(without).failure.name == "unknown"
    assert triage_bytes(log + without).failure.name == "misaligned-address"


@pytest.mark.parametrize("error", ["RuntimeError: CUDA error", "torch.AcceleratorError: CUDA driver error"])
def test_an_error_of_cuda_that_no_rule_knows_is_not_called_the_programs_own(error: str) -> None:
    verdict = triage(f"{PREFIX}{error}: context is destroyed\n")
    assert (verdict.failure.name, verdict.failed) == ("unknown", None)
    assert verdict.root_cause and "context is destroyed" in verdict.root_cause.text


@pytest.mark.parametrize(
    "before",
    ["HEAD is now at 7c1e2ab ", 'Commit message: "', "XFAIL tests/test_errors.py::test_access - "],
)
def test_an_error_in_the_title_of_a_commit_or_that_a_test_expects_is_no_failure(before: str) -> None:
    assert triage(f"{before}Fix CUDA error: an illegal memory access was encountered\n").failed is None
