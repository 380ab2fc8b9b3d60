"""What the logs of real vLLM servers that died say around the line that decided."""

from pathlib import Path

import pytest

from vdbg_env.evidence.deaths import Load, native_stack, read_load, seconds_between, traceback_of
from vdbg_env.evidence.log_line import unwrap
from vdbg_env.evidence.python_text import read_tracebacks

LOGS = Path(__file__).parents[2] / "data" / "logs" / "real-vllm"


def test_what_was_served_and_scheduled_is_read_without_prompts() -> None:
    load = read_load((LOGS / "sigkill.log").read_bytes().splitlines())
    assert load == Load(
        answered=1,
        failed=1,
        vllm="0.32.0",
        scheduled="1 new request, prompts of 31 tokens, 0 requests under way, 31 tokens in this step, "
        "1 running and 0 waiting, KV cache 0.1 % full",
    )


def test_a_log_that_says_none_of_it_gives_none() -> None:
    assert read_load([b"killed", b"Dumping scheduler stats: kv_cache_usage=1.2.3"]) == Load()


def test_the_native_stack_of_a_segfault_is_found() -> None:
    stack = native_stack((LOGS / "segfault.log").read_text().splitlines())
    assert "Segfault encountered" in stack[0]
    assert any("ffi_call" in frame for frame in stack)
    assert len(stack) < 45
    assert native_stack((LOGS / "no-fault.log").read_text().splitlines()) == []


@pytest.mark.parametrize(("decided", "is_one"), [("ValueError: no such expert", True), ("Killed", False)])
def test_the_traceback_that_a_line_ends_is_its_own(decided: str, is_one: bool) -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 3, in f', "ValueError: no such expert"]
    found = traceback_of(unwrap(decided), read_tracebacks(map(unwrap, lines)))
    assert (found is not None) is is_one


def test_the_time_between_two_lines_is_that_of_their_stamps() -> None:
    first, last = (unwrap(f"INFO 11-23 {time} [a.py:1] x") for time in ("07:07:32", "07:08:21"))
    assert seconds_between(first, last) == 49.0
    assert seconds_between(last, first) is None
    assert seconds_between(first, unwrap("no stamp")) is None
