"""`vdbg-env core`, `locate` and `dump`: read GPU cores, find lines, and have a hung program write its cores."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from gpucore.arch import as_target
from gpucore.arming import CORE_SIZES, CoreSize, arming, as_env_file, as_exports
from gpucore.code_map import parse_place
from vdbg_env.cli.options import Mapping, lines_option, memory_option, path_map_option, source_root_option
from vdbg_env.common import console
from vdbg_env.common.console import progress_bar
from vdbg_env.common.errors import BadInput
from vdbg_env.crash.files import SourceFiles
from vdbg_env.engine.targets import Targets

if TYPE_CHECKING:
    from vdbg_env.crash.line_packs import PackedLines
    from vdbg_env.crash.memory_files import Owners
    from vdbg_env.crash.memory_map import MemoryMap


@click.command("core")
@click.argument("targets", nargs=-1, required=True, metavar="FILE|FOLDER...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/core/v1).")
@click.option("--registers", is_flag=True, help="Show the registers of each fault's first thread.")
@click.option("--parameters", is_flag=True, help="Show the parameters and constant banks of each launch.")
@click.option("--all", "everything", is_flag=True, help="Show every fault and every group of warps.")
@lines_option
@memory_option
@source_root_option
@path_map_option
def core_command(
    targets: tuple[str, ...],
    as_json: bool,
    registers: bool,
    parameters: bool,
    everything: bool,
    line_packs: tuple[str, ...],
    memory: str | None,
    source_roots: tuple[str, ...],
    path_maps: tuple[Mapping, ...],
) -> int:
    """Read GPU core dumps: exception, kernel, thread, source line, inline chain, and where all other warps are.

    Needs no GPU, driver or debugger. With dumps of several ranks, those with an exception are shown first and each of
    the others in one line. A memory map next to the core, or one given by --memory, names the tensor at a bad address.

    Exit status: 0 no exception; 3 an exception; 4 no exception, but a dump is truncated or could not be read; 2 nothing
    could be read.

    \b
    Example:
      vdbg-env core core_1717171717_node7_4242.nvcudmp
      vdbg-env core --source-root ~/src/vllm /dumps
      vdbg-env core --lines vllm-0.33.0.lines core_1717171717_node7_4242.nvcudmp
      vdbg-env core --json rank*.nvcudmp.gz | jq '(.cores // [.])[].faults'
    """
    from vdbg_env.crash.core import cores_json, cores_text, read_cores

    sources = SourceFiles(source_roots, path_maps)
    packs = _packs(line_packs)
    maps = _maps(memory) if memory else None
    read = read_cores(
        targets,
        sources,
        packs,
        packs_named=line_packs,
        registers=registers,
        parameters=parameters,
        maps=maps,
        side_by_side=True,
    )
    for path, error in read.problems:
        console.note(f"{path}: not read: {error.what}")
    if as_json:
        click.echo(cores_json(read.readings, read.sources), nl=False)
    else:
        click.echo(cores_text(read.readings, read.sources, everything=everything), nl=False)
    _note_missed(sources)
    if any(reading.faults for reading in read.readings):  # an exception outweighs what could not be read
        return 3
    return 4 if read.problems or any(not reading.core.complete for reading in read.readings) else 0


def _note_missed(sources: SourceFiles) -> None:
    """Say that the sources are not where the user said: that lines have no text is no other sign of it."""
    if sources.missed:
        console.note(f"note: {sources.missed} was not found by --source-root or --path-map")


def _packs(named: tuple[str, ...]) -> Callable[[], PackedLines]:
    """Return what opens the line packs; those that are named are opened now, to tell at once that one is missing."""

    @cache
    def opened() -> PackedLines:
        from vdbg_env.crash.line_packs import packed_lines  # a sixth of what `core` loads

        return packed_lines(named)

    if named:
        opened()
    return opened


def _kernels(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    from vdbg_env.crash.locate import complete_kernel

    typed = os.environ.get("COMP_WORDS", "").split()  # click parses no arguments while an option has no value yet
    names = complete_kernel([word for word in typed if Path(word).is_file()], begun)
    in_bash = os.environ.get("_VDBG_ENV_COMPLETE") == "bash_complete"  # zsh and fish quote what they insert
    return [shlex.quote(name) for name in names] if in_bash else names


@click.command("locate")
@click.argument("place", metavar="PLACE")
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--kernel", "-k", metavar="NAME", shell_complete=_kernels, help="The function that an offset is relative to."
)
@click.option("--arch", metavar="SM", help="Search one architecture only, such as sm_90 or 9.0.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/locate/v1; vdbg-env/owner/v1 without FILE)."
)
@lines_option
@memory_option
@source_root_option
@path_map_option
def locate_command(
    place: str,
    files: tuple[str, ...],
    kernel: str | None,
    arch: str | None,
    as_json: bool,
    line_packs: tuple[str, ...],
    memory: str | None,
    source_roots: tuple[str, ...],
    path_maps: tuple[Mapping, ...],
) -> int:
    """Find the source line and the whole inline chain of an instruction.

    PLACE is an address in a GPU core dump, an offset into --kernel, or a function and offset as compute-sanitizer or
    cuda-gdb print them. NAME may be mangled, demangled or bare. FILE is a GPU core dump, library, object file, wheel,
    .cubin, .fatbin or a folder of these. With --memory and no FILE, PLACE is a data address.

    Exit status: 0 found; 4 found without line info, or with answers that differ; 2 not found.

    \b
    Example:
      vdbg-env locate 0x7fffd9001140 core.nvcudmp
      vdbg-env locate 0x7f2001f52800 --memory latest
      vdbg-env locate kern libkernels.so
      vdbg-env locate 0x140 --kernel 'kern<float>' libkernels.so
      vdbg-env locate 'kern(float*, int)+0x120 [in file.cu:6]' libkernels.so
    """
    from vdbg_env.crash.locate import InNoCode, locate, locate_json, locate_text

    sources = SourceFiles(source_roots, path_maps)
    packs = _packs(line_packs)
    query, kept = parse_place(place, kernel), as_target(arch) if arch else None
    maps = _maps(memory) if memory else ()
    if not files:
        if not maps:
            raise click.UsageError("Missing argument 'FILE...' (or --memory).")
        if query.name is not None:
            raise click.UsageError("--memory without FILE takes an address, such as 0x7f2001f52800.")
        owners = _ask(maps, query.value)
        assert owners
        return _show(owners, as_json=as_json)
    try:
        with progress_bar() as tell:
            report = locate(query, files, Targets(), sources, packs, maps=maps, arch=kept, tell=tell)
    except InNoCode as error:
        owners = _ask(maps, query.value)
        if owners is None or owners.best.where == "far":
            raise
        click.echo(f"{error.what}, but in the memory map", err=True)
        return _show(owners, as_json=as_json)
    click.echo(locate_json(report) if as_json else locate_text(report), nl=False)
    _note_missed(sources)
    return 4 if report.ambiguous or not report.candidates[0].location.chain else 0


def _maps(named: str) -> tuple[MemoryMap, ...]:
    from vdbg_env.crash.memory_files import memory_maps  # loaded where it is asked for

    return memory_maps(named, os.environ)


def _ask(maps: Sequence[MemoryMap], address: int) -> Owners | None:
    from vdbg_env.crash.memory_files import ask  # loaded where a map is given

    return ask(maps, address) if maps else None


def _show(owners: Owners, *, as_json: bool) -> int:
    from vdbg_env.crash.memory_files import owners_json, owners_text

    click.echo(owners_json(owners) if as_json else owners_text(owners), nl=False)
    return 0


def _pid(_context: click.Context, _argument: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    if text.isdecimal() and int(text):
        return int(text)
    raise click.BadParameter(f"{text!r} is not a process ID: pgrep -af {shlex.quote(text)}")


@click.command("dump")
@click.argument("pid", callback=_pid, required=False)
@click.option(
    "--timeout", default=600.0, show_default=True, type=click.FloatRange(0), help="Seconds to wait for all dumps."
)
@click.option("--no-wait", is_flag=True, help="Trigger the dumps and return without waiting for them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/dump/v1).")
@click.option("--yes", is_flag=True, help="Do not ask where PID is the first process of a machine or a container.")
@click.option("--arm", is_flag=True, help="Print the environment to start a program with, and exit.")
@click.option(
    "--format", "form", type=click.Choice(["export", "env"]), default="export", show_default=True,
    help="With --arm: lines for a shell, or a file for docker run --env-file.",
)  # fmt: skip
@click.option(
    "--folder", default=lambda: str(Path.cwd()), help="With --arm: the folder to write dumps to. [default: here]"
)
@click.option(
    "--core", "size", type=click.Choice(CORE_SIZES), default="default", show_default=True,
    help="With --arm: what a dump holds: registers and code; also shared and local memory; or all memory.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="The same as --core full.")
def dump_command(
    pid: int | None,
    timeout: float,
    no_wait: bool,
    as_json: bool,
    yes: bool,
    arm: bool,
    form: Literal["export", "env"],
    folder: str,
    size: CoreSize,
    full: bool,
) -> int:
    """Make a hung program write GPU core dumps, and wait until they are complete.

    PID and the processes below it write one each, also inside a container. Driver 580 then ends each of them (SIGABRT);
    of other drivers that is not known. They must have been started with the environment that --arm prints. Run this as
    the same user or as root.

    The first process of a machine or a container has all others below it: there --yes, or a person, has to agree.

    Exit status: 0 every dump is written; 4 some are; 1 none is; 2 no such process, or none with that environment.

    \b
    Example:
      eval "$(vdbg-env dump --arm --folder /dumps)"; vllm serve MODEL &
      vdbg-env dump $!
      vdbg-env dump --arm --format env > cuda.env    # for docker run --env-file
    """
    from vdbg_env.crash.dump import DumpStatus, check_first_process, dump, dump_json, dump_text

    if arm:
        variables = arming(folder, size="full" if full else size)
        click.echo(as_exports(variables) if form == "export" else as_env_file(variables), nl=False)
        return 0
    if pid is None:
        raise click.UsageError("Missing argument 'PID' (or --arm).")
    if (asked := check_first_process(pid)) and not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise BadInput(
                asked,
                cause="no one can be asked here",
                next_step=f"the PID of the program, or vdbg-env dump --yes {pid}",
            )
        if not click.confirm(f"{asked}. Dump them all?", err=True):
            console.note("no dump was asked for")
            return 1
    report = dump(pid, 0 if no_wait else timeout, tell=console.note)
    click.echo(dump_json(report) if as_json else dump_text(report), nl=False)
    good = [p.status in {DumpStatus.WRITTEN, DumpStatus.FIRED} for p in report.processes]
    return 0 if all(good) else 4 if any(good) else 1
