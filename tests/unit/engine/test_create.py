"""The engine's refusals in plain words, and what is left of a container's files on the host."""

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import pytest

from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.engine.containers import (
    create_error,
    dropped_limits,
    host_options,
    refused_limit,
    start_error,
    tool_container,
    without_set_ids,
)
from vdbg_env.image.settings import DumpVolume, RunSettings

SETTINGS = RunSettings(image="debug:1", user="ghost", command=("python3", "-c", ""))


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            'OCI runtime create failed: exec: "python3": executable file not found in $PATH: unknown',
            BadInput,
            "debug:1 has no python3",
        ),
        ("unable to find user ghost: no matching entries in passwd file", BadInput, "has no user 'ghost'"),
    ],
)
def test_a_first_process_that_cannot_start_is_explained(text: str, kind: type[Exception], words: str) -> None:
    error = start_error(text, SETTINGS)
    assert isinstance(error, kind)
    assert words in str(error)
    assert start_error("something new", SETTINGS) is None


def test_a_folder_the_engines_machine_lacks_is_named() -> None:
    text = '400 Bad Request ("invalid mount config for type "bind": bind source path does not exist: /data/runs")'
    error = create_error(text)
    assert isinstance(error, HostNotAble)
    assert error.what == "the engine's machine does not have '/data/runs'"
    assert create_error("something else") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("runc: error setting rlimit type 8: operation not permitted", "memlock"),
        ("error setting rlimits for ready process: error setting rlimit type 4: operation not permitted", "core"),
        ("crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied", "memlock"),
    ],
)
def test_a_refused_limit_is_recognised_from_runc_and_from_crun(text: str, name: str) -> None:
    assert refused_limit(text) == name
    assert refused_limit("something else") is None


@pytest.mark.parametrize(
    ("podman", "network", "mode"),
    [(False, "default", None), (True, "default", "private"), (False, "none", "none"), (True, "none", "none")],
)
def test_podman_gives_the_network_that_its_own_command_gives(
    podman: bool, network: Literal["default", "none"], mode: str | None
) -> None:
    settings = replace(SETTINGS, network=network, seccomp="default", dumps=None)
    assert host_options(Mock(is_podman=podman), settings).get("network_mode") == mode


@pytest.mark.parametrize(
    ("podman", "has", "dropped"),
    [
        (True, None, ["core", "stack", "memlock"]),
        (True, [{"Name": "RLIMIT_CORE", "Soft": -1, "Hard": -1}, {"Name": "stack"}], ["memlock"]),
        (False, None, []),
    ],
    ids=["rootless Podman", "some", "Docker"],
)
def test_limits_that_podman_leaves_out_without_a_word_are_named(
    podman: bool, has: list[dict[str, object]] | None, dropped: list[str]
) -> None:
    client = Mock(**{"inspect_container.return_value": {"HostConfig": {"Ulimits": has}}})
    engine = Mock(is_podman=podman, client=client)
    assert [limit.name for limit in dropped_limits(engine, "id", SETTINGS)] == dropped


def test_a_second_mount_at_the_place_of_dumps_is_explained() -> None:
    error = create_error('400 Client Error: Bad Request ("Duplicate mount point: /dumps")')
    assert isinstance(error, BadInput) and error.what == "two things would be mounted at /dumps"
    assert "dump volume" in (error.cause or "") and "--dumps FOLDER" in (error.next_step or "")


def test_a_container_for_one_program_has_no_capability_and_no_network() -> None:
    settings = tool_container("debug:1", ["true"], "look-inside").settings
    assert (settings.capabilities, settings.network, settings.gpu.by, settings.dumps) == ((), "none", "none", None)


def test_set_uid_bits_that_a_container_left_in_a_dump_folder_are_stripped(tmp_path: Path) -> None:
    (tmp_path / "older").write_text("")
    (tmp_path / "older").chmod(0o4755)
    os.utime(tmp_path / "older", (0, 0))
    outside = tmp_path.parent / "outside"
    outside.write_text("")
    with without_set_ids(DumpVolume(source=str(tmp_path), kind="bind")):
        (tmp_path / "sub").mkdir()
        shell = tmp_path / "sub" / "shell"
        shell.write_text("")
        shell.chmod(0o6755)
        outside.chmod(0o4755)
        (tmp_path / "link").symlink_to(outside)
    assert stat.S_IMODE(shell.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "older").stat().st_mode) == 0o4755
    assert stat.S_IMODE(outside.stat().st_mode) == 0o4755
