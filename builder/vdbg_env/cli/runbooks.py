"""`vdbg-env runbooks`: what runbooks there are, what they say, and whether they are right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from vdbg_env.common import console, yaml_source
from vdbg_env.common.console import json_text
from vdbg_env.common.errors import BadInput, quoted, unreadable
from vdbg_env.common.programs import Programs
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.evidence.knowledge import explain_name, is_name
from vdbg_env.record.run_directory import replacement, write_new
from vdbg_env.report import runbooks
from vdbg_env.run.failure_pages import failure_pages, render_all
from vdbg_env.run.library import runbook_library
from vdbg_env.run.stale import installed_vllm, name_complaints
from vdbg_env.runbook.model import SCHEMA_FILE, json_schema
from vdbg_env.runbook.parse import formatted, skeleton

_FILES = click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Look in this runbook file first; repeatable.",
)
_VLLM = click.option(
    "--vllm", metavar="VERSION", help="The vLLM release to check against. [default: the one installed here]"
)
_JSON = click.option("--json", "as_document", is_flag=True, help="Print JSON.")


@click.group("runbooks")
def runbooks_command() -> None:
    """List, show, write, check and explain runbooks.

    \b
    Example:
      vdbg-env runbooks list
      vdbg-env runbooks new mine
      vdbg-env runbooks lint ./mine.yaml
    """


@runbooks_command.command("list")
@_FILES
@_JSON
def list_command(files: tuple[Path, ...], as_document: bool) -> int:
    """List the runbooks, yours and the shipped ones.

    Yours are those of --file, ./runbooks and your configuration folder.

    \b
    Example:
      vdbg-env runbooks list --json
    """
    library = runbook_library(files)
    found = [(entry, library.load_entry(entry)) for entry in library.entries]
    if as_document:
        click.echo(json_text(runbooks.list_json((entry.origin, entry.path, x) for entry, x in found)), nl=False)
        return 0
    width = max((len(x.name) for _, x in found), default=0)
    for entry, x in found:
        console.show(f"{x.name:{width}}  {x.title}" + ("\n" if entry.origin == "shipped" else f"  ({entry.path})\n"))
    return 0


@runbooks_command.command("show")
@click.argument("name")
@_FILES
@_JSON
def show_command(name: str, files: tuple[Path, ...], as_document: bool) -> int:
    """Show a runbook's inputs, steps and outcomes.

    \b
    Example:
      vdbg-env runbooks show illegal-memory-access
    """
    runbook = runbook_library(files).load(name)
    if as_document:
        click.echo(json_text(runbooks.show_json(runbook)), nl=False)
    else:
        console.show(runbooks.runbook_text(runbook))
    return 0


@runbooks_command.command("lint")
@click.argument("targets", nargs=-1)
@_FILES
@_JSON
@_VLLM
def lint_command(targets: tuple[str, ...], files: tuple[Path, ...], as_document: bool, vllm: str | None) -> int:
    """Check names, paths, expressions and tools.

    Exit status: 0 no problem; 2 at least one.

    Flags and variables are checked against a vLLM release: --vllm, or else the installed one, or else the newest known.
    One that the release does not have is a problem.

    \b
    Example:
      vdbg-env runbooks lint
      vdbg-env runbooks lint ./mine.yaml
      vdbg-env runbooks lint --vllm 0.24.0
    """
    results = runbook_library(files).lint(targets)
    complaints = [complaint for _, found in results for complaint in found]
    release = vllm or installed_vllm(Programs())
    complaints += name_complaints((entry.path for entry, found in results if not found), release)
    if as_document:
        click.echo(json_text(runbooks.lint_json(complaints, len(results))), nl=False)
    else:
        for complaint in complaints:
            click.echo("\n".join(complaint.lines()))
        click.echo(_count(len(results), "runbook") + " checked, " + _count(len(complaints), "problem") + " found")
    return 2 if complaints else 0


@runbooks_command.command("schema")
def schema_command() -> int:
    """Print the JSON Schema of runbook files, for editors.

    \b
    Example:
      vdbg-env runbooks schema > runbook-v1.schema.json
    """
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0


@runbooks_command.command("docs")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@_FILES
def docs_command(folder: Path, files: tuple[Path, ...]) -> int:
    """Write the runbooks as pages to follow by hand.

    \b
    Example:
      vdbg-env runbooks docs docs/failures
    """
    pages = render_all(failure_pages(runbook_library(files)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}", next_step="choose another folder") from error
    click.echo(f"{_count(len(pages) - 1, 'page')} and an index in {folder}")
    return 0


@runbooks_command.command("explain", context_settings={"ignore_unknown_options": True})  # a flag of vLLM is a name
@click.argument("names", nargs=-1, required=True, metavar="NAME [STEP]")
@_FILES
@_VLLM
def explain_command(names: Sequence[str], files: tuple[Path, ...], vllm: str | None) -> int:
    """Explain a runbook, step, rule, variable or flag.

    NAME is a runbook, a shared step, the rule of a finding (VDBG007), or a variable or flag of vLLM, CUDA, PyTorch or
    NCCL.

    \b
    Example:
      vdbg-env runbooks explain illegal-memory-access coredump
      vdbg-env runbooks explain gpu-coredump
      vdbg-env runbooks explain VDBG007
      vdbg-env runbooks explain VLLM_TRACE_FUNCTION
      vdbg-env runbooks explain --vllm 0.24.0 -- --watchdog-config
      vdbg-env runbooks explain -- --enforce-eager
    """
    library = runbook_library(files)
    if len(names) == 1 and is_name(names[0]):
        told = None
        if names[0].startswith("VDBG") and "_" not in names[0]:
            told = runbooks.rule_text(map(library.load_entry, library.entries), names[0])
        console.show(told or explain_name(names[0], vllm=vllm or installed_vllm(Programs())))
        return 0
    if " " in names[0] or names[0].isdecimal() or names[0].lower() == "xid":
        raise BadInput("a line of a log, such as an Xid, is not explained here", next_step="dmesg | vdbg-env triage -")
    if len(names) > 2:
        raise click.UsageError("explain takes a runbook, and one of its steps")
    if len(names) == 1 and names[0] in library.steps.names and names[0] not in {x.name for x in library.entries}:
        console.show(runbooks.shared_step_text(library.steps, names[0]))
        return 0
    runbook = library.load(names[0])
    if len(names) == 1:
        console.show(runbooks.description_text(runbook))
        return 0
    text = runbooks.step_text(runbook, names[1])
    if text is None:
        raise BadInput(
            f"runbook {runbook.name!r} has no step {names[1]!r}",
            next_step=f"vdbg-env runbooks show {runbook.name}",
            details=("its steps: " + ", ".join(step.id for step in runbook.steps),),
        )
    console.show(text)
    return 0


@runbooks_command.command("new")
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path(), metavar="[FOLDER]")
def new_command(name: str, folder: Path) -> int:
    """Write NAME.yaml, a runbook to start from.

    It is written to FOLDER, or here. Nothing is overwritten.

    \b
    Example:
      vdbg-env runbooks new my-crash
      vdbg-env runbooks new my-crash ~/.config/vdbg-env/runbooks
    """
    text = skeleton(name, str(SHIPPED_DATA / "runbooks" / SCHEMA_FILE))
    path = folder / f"{name}.yaml"
    write_new(path, text, next_step="choose another folder")
    console.show(f"{path}\n")
    console.note(f"next: edit it, then vdbg-env runbooks lint {quoted(path if folder.parts else f'./{path}')}")
    return 0


@runbooks_command.command("fmt")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--check", is_flag=True, help="Write nothing; status 2 when a file would change.")
def fmt_command(files: tuple[Path, ...], check: bool) -> int:
    """Format runbooks: put their keys in one order.

    Comments, quotes and line breaks stay. A file is written only if its meaning is unchanged.

    \b
    Example:
      vdbg-env runbooks fmt ./my-crash.yaml
      vdbg-env runbooks fmt --check runbooks/*.yaml
    """
    texts = {path: (_read(path), formatted(yaml_source.read(_read(path), str(path))).encode()) for path in files}
    changed = [path for path, (before, after) in texts.items() if before != after]
    for path in changed:
        if not check:
            _write(path, texts[path][1])
        console.show(f"{path}: {'would be' if check else 'was'} put in order\n")
    return 2 if check and changed else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def _write(path: Path, text: bytes) -> None:
    try:
        with replacement(path.resolve()) as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", next_step="look at its permissions") from None
