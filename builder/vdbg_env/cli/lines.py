"""`vdbg-env lines`: line tables for code that was shipped without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gpucore.arch import as_target
from gpucore.errors import UnreadableBinary
from gpucore.line_pack import PACK_MAGIC
from gpucore.line_packs import LinePack
from vdbg_env.cli import LazyGroup
from vdbg_env.common import console
from vdbg_env.common.console import printable, size_text
from vdbg_env.common.errors import ANY_ERROR, BadInput
from vdbg_env.crash.line_packs import open_store, open_stores, write_whole
from vdbg_env.engine.targets import Targets
from vdbg_env.image.settings import parse_size
from vdbg_env.lines.packs import (
    PackRequest,
    cache_folder,
    function_lines,
    merged,
    pack_lines,
    packed_json,
    packed_text,
    packs_json,
    packs_text,
    prune,
    summarize,
    summary_text,
)

# Subcommand -> the line that `--help` shows; `build`, `push` and `pull` are the plug-in's, the others are below.
SUBCOMMANDS: dict[str, str] = {
    "pack": "Extract the line tables of a build with -lineinfo.",
    "build": "Rebuild the line tables of a released wheel.",
    "list": "List the packs in use.",
    "show": "Show what a pack contains.",
    "verify": "Check packs for damage.",
    "merge": "Merge packs into one.",
    "push": "Publish packs in a folder or a registry.",
    "pull": "Download packs from a URL or a registry.",
    "prune": "Remove the least recently used packs.",
}


@click.group("lines", cls=LazyGroup, tasks={"Commands": {name: ("", text) for name, text in SUBCOMMANDS.items()}})
def lines_command() -> None:
    """Make and share line tables for wheels that were built without them.

    A line pack holds the line tables of a build with -lineinfo, indexed by the instructions of each function. `core`,
    `locate`, `verify`, `triage` and runbooks search the packs of --lines, those of VDBG_LINES, and those in
    $XDG_DATA_HOME/vdbg-env/lines.

    \b
    Example:
      vdbg-env lines pack IMAGE -o vllm-0.33.0.lines --release "vllm 0.33.0"
      vdbg-env core --lines vllm-0.33.0.lines core.nvcudmp
      vdbg-env lines build vllm==0.33.0 --core core.nvcudmp
    """


@lines_command.command("pack")
@click.argument("targets", nargs=-1, required=True, metavar="IMAGE|LIBRARY...")
@click.option("--output", "-o", required=True, metavar="FILE", help="The pack to write, such as vllm-0.33.0.lines.")
@click.option("--release", default="", metavar="NAME", help="A name for the build, such as 'vllm 0.33.0'.")
@click.option("--plan", default="", metavar="DIGEST", help="The digest of the build plan.")
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="SM",
    help="Pack this architecture only, such as sm_90 or 9.0; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines/v1).")
def pack_command(
    targets: tuple[str, ...], output: str, release: str, plan: str, archs: tuple[str, ...], as_json: bool
) -> int:
    """Extract line tables from libraries, object files, wheels, cubins, folders or images built with -lineinfo.

    The output is reproducible. Exit status: 0 packed; 4 packed, but some files could not be read; 2 nothing has line
    info.

    \b
    Example:
      vdbg-env lines pack IMAGE -o vllm-0.33.0.lines --release 'vllm 0.33.0'
      vdbg-env lines pack kernels.cubin -o kernels.lines
    """
    request = PackRequest(targets=targets, release=release, plan=plan, archs=tuple(map(as_target, archs)))
    result = pack_lines(request, binaries=Targets(), tell=console.note)
    _write_pack(Path(output), result.data)
    click.echo(packed_json(result, output) if as_json else packed_text(result, output), nl=False)
    return 4 if result.problems else 0


def _write_pack(path: Path, data: bytes) -> None:
    """Write a pack; raises BadInput where the file is there and is no pack, such as a library or its source."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(PACK_MAGIC)) not in {PACK_MAGIC, b""}:
                raise BadInput(f"{path} is no line pack and is not replaced", next_step="-o another.lines")
    write_whole(path, data)


@lines_command.command("list")
@click.argument("stores", nargs=-1, metavar="[PACK|FOLDER|ADDRESS]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines/v1).")
def list_command(stores: tuple[str, ...], as_json: bool) -> int:
    """List the line packs of VDBG_LINES and the default folder, or of the given places.

    Exit status: 0 all are usable; 4 a place or a pack cannot be read.

    \b
    Example:
      vdbg-env lines list
      vdbg-env lines list https://lines.example/vllm
    """
    places = [open_store(name) for name in stores] or open_stores()
    found, lost = [], 0
    for store in places:
        try:
            found += [summarize(file) for file in store.packs()]
        except ANY_ERROR as error:
            console.note(f"{store.name}: {error.what}")
            lost += 1
    for summary in found:
        if summary.problem:
            console.note(f"{summary.name}: {summary.problem}")
            lost += 1
    if as_json:
        click.echo(packs_json(found), nl=False)
    else:
        click.echo(packs_text(s for s in found if not s.problem), nl=False)
        if not found:
            console.note(f"no line pack in {', '.join(store.name for store in places)}")
    return 4 if lost else 0


@lines_command.command("show")
@click.argument("packs", nargs=-1, required=True, metavar="PACK...")
@click.option(
    "--functions", is_flag=True, help="List every function: code hash, architectures, size, share with lines."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines/v1).")
def show_command(packs: tuple[str, ...], functions: bool, as_json: bool) -> int:
    """Show what packs contain: functions, and the binaries they were made from.

    \b
    Example:
      vdbg-env lines show vllm-0.33.0.lines
      vdbg-env lines show --functions vllm-0.33.0.lines | grep moe_align
    """
    found = [(file, summarize(file)) for name in packs for file in open_store(name).packs()]
    for _, summary in found:
        if summary.problem:
            raise UnreadableBinary(f"{summary.name}: {summary.problem}", next_step="get it again, or pack it again")
    if as_json:
        listed = {one.digest: list(LinePack(file.data).records()) for file, one in found if functions}
        click.echo(packs_json([summary for _, summary in found], listed), nl=False)
        return 0
    for file, summary in found:
        click.echo(summary_text(summary), nl=False)
        if functions:
            for line in function_lines(LinePack(file.data).records()):
                click.echo(line)
    return 0


@lines_command.command("verify")
@click.argument("packs", nargs=-1, required=True, metavar="PACK|FOLDER|ADDRESS...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema vdbg-env/lines/v1).")
def verify_command(packs: tuple[str, ...], as_json: bool) -> int:
    """Check packs for damage: every checksum, record and index.

    Exit status: 0 all are intact; 3 one is damaged; 4 there is no pack.

    \b
    Example:
      vdbg-env lines verify vllm-0.33.0.lines
    """
    found = [summarize(file, check=True) for name in packs for file in open_store(name).packs()]
    if as_json:
        click.echo(packs_json(found), nl=False)
    else:
        for one in found:
            says = f"damaged: {one.problem}" if one.problem else f"sound, {one.functions:,} functions"
            click.echo(printable(f"{one.name}: {says}, {size_text(one.size)}"))
    if not found:
        console.note(f"no line pack in {', '.join(packs)}; make one: vdbg-env lines pack FILE -o NAME.lines")
        return 4
    return 3 if any(one.problem for one in found) else 0


@lines_command.command("merge")
@click.argument("packs", nargs=-1, required=True, metavar="PACK|FOLDER|ADDRESS...")
@click.option("--output", "-o", required=True, metavar="FILE", help="The pack to write.")
def merge_command(packs: tuple[str, ...], output: str) -> int:
    """Merge packs into one; their order does not matter.

    Functions with the same code and lines are stored once. Where builds have the same code with different lines, both
    are kept and both are shown.

    \b
    Example:
      vdbg-env lines merge moe.lines attention.lines -o vllm-0.33.0.lines
    """
    data, summary = merged(open_store(name) for name in packs)
    _write_pack(Path(output), data)
    click.echo(summary_text(replace(summary, name=output)), nl=False)
    return 0


@lines_command.command("prune")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--max-size", required=True, metavar="SIZE", help="Keep at most this much, such as 2g; 0 removes all.")
@click.option("--yes", is_flag=True, help="Really remove; otherwise only show what would go.")
@click.option("--dry-run", is_flag=True, expose_value=False, help="The default, and no longer needed.")
def prune_command(folder: Path | None, max_size: str, yes: bool) -> int:
    """Remove the least recently used packs from the download cache, or from FOLDER, with --yes; else show them.

    Files that are no line packs stay. The cache also prunes itself, to the size in VDBG_LINES_CACHE (4g).

    \b
    Example:
      vdbg-env lines prune --max-size 1g
      vdbg-env lines prune --max-size 1g --yes
    """
    found = prune(folder or cache_folder(), parse_size(max_size, "--max-size"), remove=yes)
    for path, size in found:
        console.show(f"{'removed' if yes else 'would remove'} {path} ({size_text(size)})\n")
    if found and not yes:
        console.note("nothing was removed yet: the same command with --yes does it")
    return 0
