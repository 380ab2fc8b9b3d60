"""Damaged cores through the server: each is answered, by a document or a typed error, and the server lives on."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.builders.core_builder import exited_warps_core, hang_core, idle_core, illegal_address_core
from tests.support.agent import Agent, agent, started_agent

TOOLS = ("open_core", "faults", "warps", "registers", "next_steps", "locate")
# What the reader says of the very file is no defect; this is what the server says of its own.
DEFECT = "a defect of vdbg-env"


def damaged(seed: bytes, rng: random.Random) -> bytes:
    """Return a core with some of its bytes, its end or a whole part changed."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8), rng.randbytes(8)))
            case 2:
                del data[max(at, 64) :]
            case 3:
                data[at : at + 64] = data[:64]
            case _:
                start = rng.randrange(len(data))
                data[at : at + 256] = data[start : start + 256]
        if not data:
            return b""
    return bytes(data)


def ask_about(ask: Agent, folder: Path, count: int, rng: random.Random) -> tuple[int, list[str]]:
    """Return how many damaged cores gave an error, and what was said of those that gave a defect."""
    seeds = [illegal_address_core(), hang_core(), exited_warps_core(), idle_core(), illegal_address_core(lines=False)]
    errors, defects = 0, []
    for number in range(count):
        (folder / "core.nvcudmp").write_bytes(damaged(seeds[number % len(seeds)], rng))
        tool = TOOLS[number % len(TOOLS)]
        place = {"place": "0x7fffd9001140", "files": ["core.nvcudmp"]}
        answer = ask(tool, **(place if tool == "locate" else {"path": "core.nvcudmp"}))
        assert answer.bytes <= 4096 and isinstance(answer.document, dict)
        errors += answer.failed
        if DEFECT in answer.text:
            defects.append(f"{number} {tool}: {answer.text}")
    return errors, defects


@pytest.mark.slow
def test_some_damaged_cores(tmp_path: Path) -> None:
    with started_agent(tmp_path) as ask:
        errors, defects = ask_about(ask, tmp_path, 60, random.Random(1))
    assert not defects
    assert 0 < errors < 60


def memory_of_server(field: str) -> int:
    """Return a field of /proc/PID/status of the server that this process started, in MiB."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            text = status.read_text()
            if f"\nPPid:\t{os.getpid()}\n" in text and b"\0mcp\0" in (status.parent / "cmdline").read_bytes():
                return int(text.split(f"\n{field}:", 1)[1].split()[0]) >> 10
    raise AssertionError("the server has gone")


@pytest.mark.long
def test_two_thousand_damaged_cores(tmp_path: Path) -> None:
    rng, errors = random.Random(2), 0
    defects: list[str] = []
    resident: list[int] = []
    with started_agent(tmp_path) as ask:
        for _ in range(4):
            more, told = ask_about(ask, tmp_path, 500, rng)
            errors, defects = errors + more, defects + told
            resident.append(memory_of_server("VmRSS"))
        peak = memory_of_server("VmHWM")
        (tmp_path / "core.nvcudmp").write_bytes(illegal_address_core())
        assert ask("faults", path="core.nvcudmp").document["faults"]  # the same process
    print(f"{errors} errors of 2000; resident after each 500: {resident} MiB, at most {peak}")
    assert not defects
    assert 200 < errors < 2000
    assert resident[3] - resident[0] < 32 and peak < 512, (resident, peak)


def test_a_core_that_was_cut_is_not_told_as_one_without_an_exception(tmp_path: Path) -> None:
    (tmp_path / "core.nvcudmp").write_bytes(hang_core()[:30_000])
    with agent(tmp_path) as ask:
        for tool in ("open_core", "faults", "warps"):
            answer = ask(tool, path="core.nvcudmp")
            assert "is incomplete: what could not be read may hold exceptions" in answer.ours
            assert "has no exception" not in answer.ours
