import pytest

from vdbg_env.build.progress import explain_failure


def explain(
    *tail: str, code: int | None = 1, message: str = "", jobs: int | None = 8, title: str = "RUN x"
) -> tuple[str, str | None]:
    return explain_failure(title=title, code=code, message=message, tail=tail, jobs=jobs)


@pytest.mark.parametrize(
    ("last_line", "cause", "next_step"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus", "8 compilers at once", "--jobs 4"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "8 compilers at once", "--jobs 4"),
        ("write error: No space left on device", "disk", "docker system df"),
        ("SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed", "certificate", "--ca-bundle"),
        (
            "E: List directory /var/lib/apt/lists/partial is missing. - Acquire (13: Permission denied)",
            "a user who is not root",
            "USER root",
        ),
        ("E: Unable to lock the administration directory (/var/lib/dpkg/), are you root?", "not root", "USER root"),
        ("Temporary failure resolving 'deb.example.org'", "no network", "--network host"),
    ],
)
def test_a_known_last_line_is_explained(last_line: str, cause: str, next_step: str) -> None:
    found = explain(last_line)
    assert cause in found[0]
    assert next_step in (found[1] or "")


def test_one_job_that_was_killed_gets_no_advice_to_lower_the_jobs() -> None:
    cause, next_step = explain(code=137, jobs=1)
    assert "137" in cause
    assert "--jobs" not in (next_step or "")


def test_a_full_disk_is_told_before_the_kill_it_may_have_led_to() -> None:
    assert "disk" in explain("No space left on device", "Killed", code=137)[0]


def test_a_missing_program_is_named() -> None:
    assert "nvcc" in explain("/bin/sh: 1: nvcc: not found", code=127)[0]


def test_a_base_image_that_cannot_be_pulled_is_told_by_the_step_that_failed() -> None:
    cause, next_step = explain(title="FROM registry.example/x", code=None, message="dial tcp: connection refused")
    assert "base image" in cause and "connection refused" in cause
    assert next_step


def test_what_no_rule_knows_is_told_in_the_engines_own_words() -> None:
    assert explain(code=None, message="dockerfile parse error on line 3")[0] == "dockerfile parse error on line 3"
    assert "exit status 5" in explain(code=5)[0]
