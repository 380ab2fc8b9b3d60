"""Lines that no rule knows: which one is shown, and what a line that only passes an error on gives way to."""

import pytest

from tests.support.triage import shipped, triage_bytes
from vdbg_env.evidence.triage_verdict import SECOND_STAGE

QUIET = "".join(f"step {i} of the preparation\n" for i in range(40))
MAKE = "make: *** [Makefile:738: ggml/src/ggml-cuda/sum.o] Error 1\nmake: *** Waiting for unfinished jobs....\n"
GCC = "/usr/include/c++/11/bits/std_function.h:435:145: error: parameter packs not expanded with '...':\n"
LD = "collect2: error: ld returned 1 exit status\n"
PIP = "  RuntimeError: Error compiling objects for extension\n"


def shown(text: str) -> tuple[str, str]:
    """Return the class and the text of the line that is shown."""
    verdict = triage_bytes(text.encode())
    return verdict.failure.name, verdict.root_cause.text.strip() if verdict.root_cause else ""


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (GCC, MAKE),
        ("kernel.cu(12): error: identifier \"warpsize\" is undefined\n", "ninja: build stopped: subcommand failed.\n"),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory\n", LD + PIP),
        ("FAILED: /tmp/build/gemm_kernels.o\n", PIP),
        ("/bin/bash: line 1:   367 Killed                  cicc --c++17 attention.cu\n", PIP),
    ],
    ids=["make", "ninja", "linker", "ninja-pip", "killed-compiler"],
)  # fmt: skip
def test_what_failed_in_a_build_is_shown_not_the_tools_that_pass_it_on(cause: str, effect: str) -> None:
    assert shown(QUIET + cause + QUIET + effect)[1] == cause.strip()


def test_an_assertion_is_why_a_process_aborted() -> None:
    abort = "Aborted (core dumped)\n"
    check = "matmul.cpp:5242: MY_ASSERT(rows % 4 == 0) failed\n"
    assert shown(QUIET + check + QUIET + abort) == ("host-crash", check.strip())
    assert shown(QUIET + abort)[1] == abort.strip()


def test_a_later_error_of_a_compiler_explains_nothing_before_it() -> None:
    assert shown(QUIET + MAKE + QUIET + GCC)[1] in {MAKE.split("\n")[0], GCC.strip()}
    assert shown(PIP + QUIET + GCC)[1] == PIP.strip()


def test_the_reason_is_chosen_before_what_repeats_advises_or_warns() -> None:
    reason = "SolverError: matrix of layer 7 is singular\n"
    for other in (
        "WARNING: could not read the cache, ignoring it\n",
        "For debugging, see https://example.org/errors\n",
    ):
        assert shown(QUIET + other + reason + other) == ("not-a-gpu-failure", reason.strip())


def test_only_a_warning_is_a_guess() -> None:
    verdict = triage_bytes((QUIET + "WARNING: failed to open the cache\n" + QUIET).encode())
    assert (verdict.failure.name, verdict.failed) == ("unknown", None)


def test_a_warning_of_what_lasts_counts_and_one_of_what_a_run_survives_does_not() -> None:
    death = "ERROR 01-06 15:47:24 engine.py:366] RuntimeError: no answer\n"
    lasting = "WARNING 01-06 15:47:24 runner.py:143] CUDA error: an illegal memory access was encountered\n"
    passing = "WARNING 01-06 15:47:24 runner.py:143] CUDA out of memory, retrying with a smaller batch\n"
    assert shown(lasting + death)[0] == "illegal-memory-access"
    assert shown(passing + death)[0] == "not-a-gpu-failure"


def test_a_line_of_the_second_stage_says_so_and_names_the_clues_that_explain_only_known_ones() -> None:
    verdict = triage_bytes((QUIET + GCC + MAKE).encode())
    assert verdict.root_cause is not None
    assert (verdict.root_cause.rule, verdict.root_cause.record) == (SECOND_STAGE, None)
    clues = {clue.id for clue in shipped().clues}
    assert {name for clue in shipped().clues for name in clue.explains} <= clues


def test_the_output_of_a_failed_command_explains_the_line_that_announces_it() -> None:
    error = "src/b.cpp:1:41: error: request for member 'nope' in 'a', which is of non-class type 'int'\n"
    stopped = "ninja: build stopped: subcommand failed.\n"
    assert shown(QUIET + "FAILED: src/b.cpp.o\n/usr/bin/c++ -c src/b.cpp\n" + error + stopped)[1] == error.strip()


def test_an_exception_after_which_a_program_goes_on_in_order_is_only_a_guess() -> None:
    caught = (
        "2026-11-24 16:41:00 ERROR loader: no throughput\nTraceback (most recent call last):\n"
        '  File "load.py", line 3, in <module>\n    1 / 0\nZeroDivisionError: division by zero\n'
    )
    after = "".join(f"2026-11-24 16:42:00 INFO loader: batch {i} done\n" for i in range(60))
    assert triage_bytes((caught + after).encode()).failed is None
    assert triage_bytes((after + caught).encode()).failed is True
    assert triage_bytes((caught + after + "Killed\n").encode()).failed is True
