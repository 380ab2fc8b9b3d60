"""`vdbg-env runbooks new` and `runbooks fmt`: files that people write and edit."""

from __future__ import annotations

from pathlib import Path

import click

from vdbg_env.common import console, yaml_source
from vdbg_env.common.errors import BadInput, unreadable
from vdbg_env.common.resources import data_dir
from vdbg_env.record.atomic_write import replacement
from vdbg_env.runbook.model.runbook import SCHEMA_FILE
from vdbg_env.runbook.parsing.layout import formatted
from vdbg_env.runbook.parsing.skeleton import skeleton


@click.command("new")
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path(), metavar="[FOLDER]")
def new_command(name: str, folder: Path) -> int:
    """Write a runbook to start from, NAME.yaml, into FOLDER or the current one; nothing is ever overwritten.

    \b
    Example:
      vdbg-env runbooks new my-crash
      vdbg-env runbooks new my-crash ~/.config/vdbg-env/runbooks
    """
    text = skeleton(name, str(data_dir("runbooks") / SCHEMA_FILE))
    path = folder / f"{name}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(f"{path} exists already", next_step=f"edit it, or choose another name than {name}") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", next_step="choose another folder") from None
    console.show(f"{path}\n")
    console.note(f"next: edit it, then vdbg-env runbooks lint {path if folder.parts else f'./{path}'}")
    return 0


@click.command("fmt")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--check", is_flag=True, help="Write nothing; status 2 when a file would change.")
def fmt_command(files: tuple[Path, ...], check: bool) -> int:
    """Put the keys of runbooks and shared steps in one order; comments, quotes and line breaks stay as they are.

    A file is written only when it says the same as before, and whole or not at all.

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
