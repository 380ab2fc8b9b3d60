"""The published schemas of the room: every document keeps to its schema, and every field is met."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gpucore.code_map import CodeMap, Location, parse_place
from gpucore.core import decode_core
from gpucore.dwarf import BorrowedLines, LinesByName, OtherHeaders, Place, SourceFrame
from tests.builders.core_builder import CUBINS
from tests.support.schemas import Contract
from tests.unit.crash.test_core import CORES, everything_core
from tests.unit.crash.test_why import asking_core, polling_core
from vdbg_env.crash.core import Core, cores_json, explained
from vdbg_env.crash.dump import DumpFile, DumpReport, DumpStatus, DumpTarget, PipeState, ProcessDump, dump_json
from vdbg_env.crash.dumps import DumpList, Export, Prune, dumps_json
from vdbg_env.crash.files import BinaryFiles, SourceFiles
from vdbg_env.crash.locate import locate, locate_json
from vdbg_env.crash.places import Explainer
from vdbg_env.crash.triage import triage_json, triage_logs
from vdbg_env.record.dump_files import Dump, Exported, Removal

LOGS = Path(__file__).parents[2] / "data" / "logs"
OTHER = OtherHeaders(project="CUTLASS", used="4.2.1", wanted="4.4.0")
FRAME = SourceFrame(function="kern", file="inline_chain.cu", line=3, headers=OTHER)
SOURCES = {("inline_chain.cu", 3): "  *at = 1;"}
BORROWED = BorrowedLines(build="vLLM 0.33.0", pack="a.lines", chain=(FRAME,), others=(("another", (FRAME,)),))


def borrowing(location: Location | None) -> Location:
    assert location
    return replace(location, chain=(FRAME,), siblings=((FRAME,),), borrowed=BORROWED, ptx_line=7)


def without_formulas(contract: Contract) -> set[tuple[str, ...]]:
    """Return the fields that were never met, but for those of formulas, which need many kernels, and of owners.

    The owner of an address is met in test_memory_map.py.
    """
    others = ("Address", "Formula", "Owner", "Region", "MemoryMap", "owner")
    return {at for at in contract.never_met() if not at[0].startswith(others)}


def absent(hung: Core) -> Core:
    """Return a core whose first group also lacks a warp at its barrier, as no one wait does."""
    (wait,) = hung.waits
    assert wait
    barrier = {"number": 4, "threads": 96, "whole_block": False, "there": 64, "may_have_arrived": False}
    return replace(hung, waits=(replace(wait, document={**wait.document, "absent": 1, "barrier": barrier}),))


def test_core() -> None:
    contract = Contract("core-v1")
    readings = [
        explained(decode_core(data, file=f"rank-{rank}/{name}.nvcudmp", registers=True, parameters=True), data)
        for rank, (name, data) in enumerate([*CORES.items(), ("all", everything_core())])
    ]
    fault = readings[0].faults[0]
    launch = readings[0].launches[0]
    group = readings[0].warp_groups[0]
    rare = replace(
        readings[0],
        faults=(replace(fault, kernel="_ZN4vllm1kEv", location=borrowing(fault.location), cluster_target=(1, 0, 0)),),
        launches=(replace(launch, grid=launch.grid._replace(parent_grid_id=3)),),
        warp_groups=(replace(group, location=borrowing(group.location), barrier_words="waiting"),),
    )
    others = [
        replace(readings[0], faults=(replace(fault, kernel=kernel),)) for kernel in ("nvjet_a", "_ZN3cub1kEv", "marlin")
    ]
    others.append(replace(readings[0], faults=(replace(fault, kernel="_ZN5faiss1kEv", location=None),)))
    hangs = [polling_core(), asking_core(0x7FFE0E00003FFF80)]
    hung = [explained(decode_core(data, file="hang.nvcudmp", registers=True), data) for data in hangs]
    for reading in [*readings, rare, *others, *hung, absent(hung[1])]:
        contract.check(json.loads(cores_json([reading], SOURCES)))
    contract.check(json.loads(cores_json(readings, SOURCES)))
    assert without_formulas(contract) == set()


def test_locate(tmp_path: Path) -> None:
    contract = Contract("locate-v1")
    core = tmp_path / "core.nvcudmp"
    core.write_bytes(CORES["fault"])
    for place, file in (("kern+0x140", CUBINS / "inline_chain_sm90.cubin"), ("0x7fffd9001140", core)):
        found = locate(parse_place(place), [str(file)], BinaryFiles(), SourceFiles([str(CUBINS)]))
        contract.check(json.loads(locate_json(found)))
    (one,) = found.candidates
    rare = replace(
        found, sources=SOURCES, candidates=(replace(one, cubin="kern.cu", location=borrowing(one.location)),)
    )
    contract.check(json.loads(locate_json(rare)))
    assert without_formulas(contract) == set()


def test_addresses() -> None:
    contract = Contract("core-v1", "Address")
    explainer = Explainer()
    for file in sorted(CUBINS.glob("*.cubin")):
        code = CodeMap(file.read_bytes())
        for function in code.functions:
            for offset in range(function.start, function.start + function.size, 16):
                found = explainer.place(code, Place(section=function.section, offset=offset))
                if found:
                    contract.check(json.loads(json.dumps(found.document)))
    met = {"space", "base", "formula", "index", "loads", "guards", "not_known", "how_known"}
    assert not {("Address", name) for name in met} & contract.never_met()
    assert explainer.notes == ()


def test_all_schemas_describe_an_address_alike() -> None:
    core, place = Contract("core-v1").schema["$defs"], Contract("locate-v1").schema["$defs"]
    assert {name: core[name] for name in core if name.startswith(("Address", "Formula"))} == {
        name: place[name] for name in place if name.startswith(("Address", "Formula"))
    }


def test_triage() -> None:
    contract = Contract("triage-v1")
    for log in sorted((LOGS / "dev").glob("*.log"))[::2]:
        found = triage_logs([str(log)])
        contract.check(json.loads(triage_json(found, None)))
    named = LinesByName(function="k", offset=16, archs=("sm_90",), build="vLLM", pack="a.lines", chain=(FRAME,))
    contract.check(json.loads(triage_json(replace(found, lines=(named,), title="a title", fix="a fix"), None)))
    assert contract.never_met() == {("Frame", "text")}, "the source of a line that a log names is not looked for"


def test_dump() -> None:
    contract = Contract("dump-v1")
    target = DumpTarget(pid=7, name="w", namespace_pid=1, state=PipeState.READY, pipe="/p")
    file = DumpFile(path="/d/c.nvcudmp", reachable="/proc/7/root/d/c.nvcudmp", size=9, complete=True)
    processes = [ProcessDump(target=target, status=DumpStatus.WRITTEN, file=file, written=1)]
    processes += [ProcessDump(target=target, status=status, why="a reason") for status in DumpStatus]
    for driver in ("580.159.04", "590.44", None):
        report = DumpReport(pid=7, processes=tuple(processes), not_armed=2, driver=driver)
        contract.check(json.loads(dump_json(report)))
    assert contract.never_met() == set()


def test_dumps() -> None:
    contract = Contract("dumps-v1")
    dump = Dump(path="a.nvcudmp", size=9, modified=1.0, kind="unreadable", problem="it is closed")
    removal = Removal(dump=dump, why="older than 7d")
    copied = Exported(path="a.nvcudmp", size=9, sha256="0" * 64)
    for found in (
        DumpList(place="/d", now=2.0, dumps=(dump,)),
        Prune(place="/d", removed=True, removals=(removal,)),
        Export(place="/d", target="/t", files=(copied,)),
    ):
        contract.check(json.loads(dumps_json(found)))
    assert contract.never_met() == set()
