"""Flags of a place that steps do not run in are refused before anything starts."""

import pytest

from tests.support.command_line import vdbg_env


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("runbook", "host-crash", "--submit-arg=-p x", "--", "x"),
            "--submit-arg is for ranks of Slurm: add --on slurm",
        ),
        (("runbook", "host-crash", "--scratch-limit", "1g", "--", "x"), "--scratch-limit is for ranks of Slurm"),
        (("runbook", "host-crash", "--on", "slurm", "--setup", "/etc/profile", "--", "x"), "add --submit"),
        (("runbook", "host-crash", "--on", "slurm", "--scratch-limit", "1g", "--", "x"), "add --scratch DIR"),
        (("runbook", "host-crash", "--nodes", "2", "--", "x"), "add --on slurm"),
        (("triage", "--run", "--on", "slurm", "x.log", "--", "x"), "vdbg-env runbook NAME --on slurm starts more"),
        (("runbook", "host-crash", "--on", "k8s", "--", "x"), "no longer starts pods itself"),
        (("triage", "--run", "--on", "k8s", "x.log", "--", "x"), "no longer starts pods itself"),
    ],
)
def test_flags_that_do_not_fit_are_refused(words: tuple[str, ...], said: str) -> None:
    ran = vdbg_env(*words)
    assert ran.status == 2
    assert said in " ".join(ran.stderr.split())
