"""`vdbg-env images list | show | new | lint | schema`: the build profiles."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import click

from vdbg_env.build.build import DEFAULT_PROFILE, open_profile, read_image_library, user_profiles
from vdbg_env.common import console
from vdbg_env.common.console import json_text
from vdbg_env.common.errors import BadInput
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import BadDocument
from vdbg_env.image import knowledge, profile
from vdbg_env.image.knowledge import ImageLibrary
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import SCHEMA_FILE, BuildRequest, ImageSpec, ProfileFile, copied_profile, extending_profile
from vdbg_env.record.run_directory import write_new


@click.group("images")
def images_command() -> None:
    """List, show, write and check build profiles.

    \b
    Example:
      vdbg-env images list
      vdbg-env images show sample
      vdbg-env images new our-vllm
      vdbg-env images lint ./my-profile.yaml
    """


@images_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_profiles(as_json: bool) -> int:
    """List the shipped profiles and your own.

    \b
    Example:
      vdbg-env images list --json
    """
    library = read_image_library(user_profiles())
    rows = [(name, _checked(library, name), library.profiles[name]) for name in sorted(library.profiles)]
    if as_json:
        print(json_text(profiles_json(rows)), end="")
    else:
        width = max(len(name) for name, _, _ in rows)
        for name, found, file in rows:
            text = (
                found.summary if isinstance(found, ImageSpec) else f"WRONG: {found.what}; vdbg-env images lint {name}"
            )
            console.show(f"{name:<{width}}  {'' if file.shipped else '(yours) '}{text}\n")
        print(f"your own profiles: {user_profiles()}/*.yaml", file=sys.stderr)
    return 0


@images_command.command("show")
@click.argument("profile")
def show(profile: str) -> int:
    """Show a profile in full, as JSON.

    It is merged with what it extends.

    \b
    Example:
      vdbg-env images show sample
    """
    name, library = open_profile(profile, user_profiles())
    print(json.dumps(library.spec(name).model_dump(by_alias=True, mode="json", exclude_defaults=True), indent=2))
    return 0


@images_command.command("new")
@click.argument("name")
@click.option("--from", "original", metavar="PROFILE", help="Copy this profile, comments included.")
def new(name: str, original: str | None) -> int:
    """Write a profile to edit into your own folder.

    Without --from it is a short one that extends the default profile. Nothing is overwritten.

    \b
    Example:
      vdbg-env images new our-vllm
      vdbg-env images new our-vllm --from vllm-cu129
    """
    schema_file = str(SHIPPED_DATA / "images" / SCHEMA_FILE)
    if original is None:
        text = extending_profile(name, DEFAULT_PROFILE, schema_file)
    else:
        known, library = open_profile(original, user_profiles())
        text = copied_profile(name, library.profile(known), schema_file)
    path = user_profiles() / f"{name}.yaml"
    write_new(path, text, next_step="export VDBG_IMAGES=DIR, a folder that you own")
    print(path)
    console.note(f"next: edit it, then vdbg-env images lint {name}")
    return 0


@images_command.command("lint")
@click.argument("profiles", nargs=-1)
def lint(profiles: tuple[str, ...]) -> int:
    """Check profiles, by name or file, or all.

    Each is planned too, as for a build.

    \b
    Example:
      vdbg-env images lint ./my-profile.yaml
    """
    names = profiles or tuple(sorted(read_image_library(user_profiles()).profiles))
    wrong: list[BadInput] = []
    for wanted in names:
        try:
            name, library = open_profile(wanted, user_profiles())
            found = library.spec(name)
            warnings = plan(found, BuildRequest(profile=name), library).warnings
            console.show(f"{wanted}: ok\n" + "".join(f"  warning: {text}\n" for text in warnings))
        except BadInput as error:
            wrong.append(error)
    if wrong:
        raise _all_together(wrong)
    return 0


@images_command.command("schema")
@click.option("--knowledge", "of_knowledge", is_flag=True, help="Print the schema of the tables in knowledge/ instead.")
def schema(of_knowledge: bool) -> int:
    """Print the JSON Schema of profiles, for editors.

    \b
    Example:
      vdbg-env images schema > image-v1.schema.json
    """
    print(json.dumps(knowledge.json_schema() if of_knowledge else profile.json_schema(), indent=2))
    return 0


def profiles_json(rows: Iterable[tuple[str, ImageSpec | BadInput, ProfileFile]]) -> dict[str, object]:
    """Return profiles as docs/schemas/images-v1.schema.json describes them, and the error of a wrong one."""
    return {
        "schema": "vdbg-env/images/v1",
        "profiles": [
            {
                "name": name,
                "file": file.file,
                "shipped": file.shipped,
                **(
                    {"error": found.what}
                    if isinstance(found, BadInput)
                    else {
                        "summary": found.summary,
                        "base": found.base.image,
                        "cuda": found.toolchain.cuda,
                        "error": None,
                    }
                ),
            }
            for name, found, file in rows
        ],
    }


def _checked(library: ImageLibrary, name: str) -> ImageSpec | BadInput:
    try:
        return library.spec(name)
    except BadInput as error:
        return error


def _all_together(wrong: list[BadInput]) -> BadInput:
    if len(wrong) == 1:
        return wrong[0]
    complaints = tuple(c for error in wrong if isinstance(error, BadDocument) for c in error.complaints)
    others = tuple(error.what for error in wrong if not isinstance(error, BadDocument))
    details = (*others, *(line for complaint in complaints for line in complaint.lines()))
    return BadInput(f"{len(wrong)} profiles are wrong", next_step="fix the places named", details=details)
