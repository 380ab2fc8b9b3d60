"""The entrance: help, version, wrong words, and the exit status of each."""

import pytest

from tests.support.command_line import vdbg_env
from tests.support.golden import assert_golden
from vdbg_env import __version__
from vdbg_env.cli import COMMANDS


def test_the_version_is_told() -> None:
    ran = vdbg_env("--version")
    assert (ran.status, ran.stdout) == (0, f"vdbg-env, version {__version__}\n")


def test_a_mistyped_command_is_met_with_the_nearest() -> None:
    ran = vdbg_env("verfy")
    assert ran.status == 2
    assert "No such command 'verfy'. Did you mean 'verify'?" in ran.stderr


def test_no_command_is_bad_usage() -> None:
    assert vdbg_env().status == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_with_an_example(name: str) -> None:
    ran = vdbg_env(name, "--help")
    assert ran.status == 0
    assert "Example" in ran.stdout, f"`vdbg-env {name} --help` shows no example"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_reads_as_its_golden(name: str) -> None:
    assert_golden(f"cli/{name}.txt", vdbg_env(name, "--help").stdout)


def test_the_first_page_reads_as_its_golden() -> None:
    assert_golden("cli/vdbg-env.txt", vdbg_env("--help").stdout)
