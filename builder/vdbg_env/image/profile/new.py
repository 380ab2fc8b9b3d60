"""Write a new profile for people to edit: a short one that extends another, or a copy with its comments."""

from __future__ import annotations

import io
import re

from vdbg_env.common.errors import BadInput
from vdbg_env.image.profile.spec import SCHEMA, ProfileFile

_SHORT = """\
# yaml-language-server: $schema={schema_file}
# What is not written here is as in {parent}: vdbg-env images show {parent}
schema: {schema}
name: {name}
summary: {parent}, as our cluster builds it
extends: {parent}
# base:
#   image: registry.example.org/ml/cuda-devel
#   digest: sha256:...
build:
  arch: "9.0"  # or a list, as in ["9.0", "10.0"]
# environment:
#   NAME: value  # null removes a variable that {parent} sets
"""


def extending_profile(name: str, parent: str, schema_file: str) -> str:
    """Return a profile that extends another one, with hints in comments."""
    return _SHORT.format(name=_checked(name), parent=parent, schema=SCHEMA, schema_file=schema_file)


def copied_profile(name: str, original: ProfileFile, schema_file: str) -> str:
    """Return a copy of a profile under another name, with all of its comments."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    _ = original.source  # refuses what only a lenient reader would accept
    document = yaml.load(original.text)
    document["name"] = _checked(name)
    out = io.StringIO()
    yaml.dump(document, out)
    lines = [line for line in out.getvalue().splitlines() if not line.startswith("# yaml-language-server:")]
    return "\n".join([f"# yaml-language-server: $schema={schema_file}", *lines, ""])


def _checked(name: str) -> str:

    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,62}", name):
        raise BadInput(f"{name!r} is not a name of small letters, digits, '.' and '-'", next_step="choose another name")
    return name
