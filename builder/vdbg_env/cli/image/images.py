"""`vdbg-env images list | show | lint | schema`: the build profiles."""

from __future__ import annotations

import json
import sys

import click

from vdbg_env.application.image.library import read_image_library
from vdbg_env.cli.options.build import read_library, user_profiles
from vdbg_env.common.errors import BadDocument, BadInput
from vdbg_env.image.plan.planner import plan
from vdbg_env.image.profile import knowledge, spec
from vdbg_env.image.profile.library import ImageLibrary, ProfileFile
from vdbg_env.image.profile.request import BuildRequest
from vdbg_env.image.profile.spec import ImageSpec


@click.group("images")
def command() -> None:
    """List, show and check the build profiles.

    \b
    Example:
      vdbg-env images list
      vdbg-env images show sample
      vdbg-env images lint ./my-profile.yaml
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_profiles(as_json: bool) -> int:
    """List the profiles that ship and those of your own folder.

    \b
    Example:
      vdbg-env images list --json
    """
    library = read_image_library(user_profiles())
    rows = [(name, _checked(library, name), library.profiles[name]) for name in sorted(library.profiles)]
    if as_json:
        profiles = [_entry(name, found, file) for name, found, file in rows]
        print(json.dumps({"schema": "vdbg-env/images/v1", "profiles": profiles}, indent=2))
    else:
        width = max(len(name) for name, _, _ in rows)
        for name, found, file in rows:
            told = (
                found.summary if isinstance(found, ImageSpec) else f"WRONG: {found.what}; vdbg-env images lint {name}"
            )
            print(f"{name:<{width}}  {'' if file.shipped else '(yours) '}{told}")
        print(f"your own profiles: {user_profiles()}/*.yaml", file=sys.stderr)
    return 0


@command.command("show")
@click.argument("profile")
def show(profile: str) -> int:
    """Show one profile in full, with what it extends laid under it, as JSON.

    \b
    Example:
      vdbg-env images show sample
    """
    name, library = read_library(profile)
    print(json.dumps(library.spec(name).model_dump(by_alias=True, mode="json", exclude_defaults=True), indent=2))
    return 0


@command.command("lint")
@click.argument("profiles", nargs=-1)
def lint(profiles: tuple[str, ...]) -> int:
    """Check profiles, by name or file; without any, all that are at hand. Each is planned too, so that it will build.

    \b
    Example:
      vdbg-env images lint ./my-profile.yaml
    """
    names = profiles or tuple(sorted(read_image_library(user_profiles()).profiles))
    wrong: list[BadInput] = []
    for wanted in names:
        try:
            name, library = read_library(wanted)
            found = library.spec(name)
            warnings = plan(found, BuildRequest(profile=name), library).warnings
            print(f"{wanted}: ok" + "".join(f"\n  warning: {text}" for text in warnings))
        except BadInput as error:
            wrong.append(error)
    if wrong:
        raise _all_together(wrong)
    return 0


@command.command("schema")
@click.option("--knowledge", "of_knowledge", is_flag=True, help="Of the files of knowledge/ instead.")
def schema(of_knowledge: bool) -> int:
    """Print the JSON Schema that an editor checks a profile against.

    \b
    Example:
      vdbg-env images schema > image-v1.schema.json
    """
    print(json.dumps(knowledge.json_schema() if of_knowledge else spec.json_schema(), indent=2))
    return 0


def _checked(library: ImageLibrary, name: str) -> ImageSpec | BadInput:
    try:
        return library.spec(name)
    except BadInput as error:
        return error


def _entry(name: str, found: ImageSpec | BadInput, file: ProfileFile) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "file": file.file, "shipped": file.shipped}
    if isinstance(found, ImageSpec):
        return entry | {"summary": found.summary, "base": found.base.image, "cuda": found.toolchain.cuda, "error": None}
    return entry | {"error": found.what}


def _all_together(wrong: list[BadInput]) -> BadInput:
    if len(wrong) == 1:
        return wrong[0]
    complaints = tuple(c for error in wrong if isinstance(error, BadDocument) for c in error.complaints)
    others = tuple(error.what for error in wrong if not isinstance(error, BadDocument))
    details = (*others, *(line for complaint in complaints for line in complaint.lines()))
    return BadInput(f"{len(wrong)} profiles are wrong", next_step="mend the places named", details=details)
