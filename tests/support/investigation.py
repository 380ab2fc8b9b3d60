"""A fixed policy that walks the tools as an agent would, and a core as large as those that it is for."""

from __future__ import annotations

from typing import Any, Final

from tests.builders.core_builder import (
    BlockSpec,
    CoreSpec,
    DeviceSpec,
    LaunchSpec,
    SmSpec,
    WarpSpec,
    build_core,
    sample_module,
)
from tests.support.agent import Agent

RUN: Final = (("run_report", "run"), ("next_steps", "path"))


def investigate(ask: Agent, path: str) -> str:
    """Walk the tools by what the answers say, and return all that was shown.

    The policy knows a path and nothing else: a log is told from a core and from a run by its name.
    """
    if path.endswith(".log"):
        return ask("triage", logs=[path]).text + ask("next_steps", path=path).text
    if path.endswith("runs"):
        listed = ask("runs", folder=path)
        run = f"{path}/{listed.document['runs'][0]['run']}"
        return listed.text + "".join(ask(tool, **{key: run}).text for tool, key in RUN)
    opened = ask("open_core", path=path)
    told = opened.text
    numbers = [number for number, core in enumerate(opened.document["cores"]) if core["faults"]]
    shown = ask("faults", path=path, core=numbers[0]) if numbers else ask("warps", path=path)
    told += shown.text
    entries: list[dict[str, Any]] = shown.document["faults" if numbers else "warps"]
    frame = next((entry["chain"][0] for entry in entries if entry["chain"]), None)
    if frame:
        told += ask("source", file=frame["file"], line=frame["line"]).text
    return told + ask("next_steps", path=path).text


def busy_core(exception: int = 6) -> bytes:
    """Return a core of all SMs of a device: warps at many places, one of which has the exception; 0 is a hang."""
    warps = [WarpSpec(offset=16 * (number % 20), barrier_scope=3 * (number > 3)) for number in range(8)]
    last = WarpSpec(offset=0x150, error_offset=0x140 if exception else None, exception=exception)
    blocks = [BlockSpec(block=(sm, 0, 0), sm=sm, warps=[*warps, *([last] if sm == 77 else [])]) for sm in range(132)]
    device = DeviceSpec(
        modules=[sample_module()],
        launches=[LaunchSpec(grid=(132, 1, 1), block=(288, 1, 1))],
        blocks=blocks,
        sms={77: SmSpec(exception=exception, error_offset=0x140)} if exception else {},
    )
    return build_core(CoreSpec(devices=[device]))
