"""Profiles are read with places, extend each other, and their schemas are the published ones."""

import json
from pathlib import Path

import jsonschema
import pytest

from tests.support.golden import assert_file
from tests.support.image_library import shipped
from vdbg_env.build.build import profile_name, read_image_library
from vdbg_env.common import yaml_source
from vdbg_env.common.resources import SHIPPED_DATA
from vdbg_env.common.yaml_source import BadDocument
from vdbg_env.image import knowledge, profile
from vdbg_env.image.profile import ImageSpec, ProfileFile, read_spec

KNOWN = shipped().profiles
CHILD = "schema: vdbg-env/image/v1\nname: mine\nsummary: my own\nextends: sample\n"


def mine(text: str) -> ProfileFile:
    return ProfileFile(file="mine.yaml", text=text.encode())


def child(more: str = "") -> ImageSpec:
    return read_spec(mine(CHILD + more), KNOWN)


def complaint(text: str) -> str:
    with pytest.raises(BadDocument) as caught:
        read_spec(mine(text), KNOWN)
    return "\n".join(caught.value.details)


def test_a_profile_inherits_key_by_key_and_replaces_lists() -> None:
    found = child('packages:\n  build: [cmake]\nbuild:\n  arch: "8.0"\n')
    parent = shipped().spec("sample")
    assert found.packages.build == ("cmake",)
    assert found.packages.apt == parent.packages.apt
    assert (found.build.arch, found.build.system) == (("8.0",), "cmake")
    assert found.base == parent.base


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CHILD + "sorce: vllm==1\n", "mine.yaml:5:1: unknown key 'sorce' (did you mean 'source'?)"),
        (CHILD + "build:\n  sytem: cmake\n", "mine.yaml:6:3: unknown key 'sytem' (did you mean 'system'?)"),
        (
            CHILD + "build:\n  system: make\n",
            "mine.yaml:6:11: 'make' is not one of vllm, cmake",
        ),
        (CHILD + "build:\n  arch: 9.0\n", 'mine.yaml:6:9: write the version in quotes, "9.0": as a number it'),
        (CHILD + "build:\n  memory_per_job_gib: many\n", "mine.yaml:6:23: a number is needed here, not 'many'"),
        (CHILD + "build:\n  memory_per_job_gib: 0\n", "mine.yaml:6:23: 0 is not more than 0"),
        (CHILD + "base:\n  digest: sha256:beef\n", "mine.yaml:6:11: 'sha256:beef' is not a digest: sha256: and 64"),
        (CHILD + "base: debian\n", "mine.yaml:5:7: a mapping is needed here, not a text"),
        (CHILD + 'summary2: "a"\nsummary2: "b"\n', "mine.yaml:6:1: duplicate key 'summary2', first given on line 5"),
        (CHILD + "build:\n\tarch: x\n", "mine.yaml:6:1: a tab is used for indentation"),
        (CHILD + 'environment: {A: "x\\ny"}\n', "mine.yaml:5:18: this value contains a control character"),
        (CHILD + "environment: {A-B: x}\n", "mine.yaml:5:15: 'A-B' is not the name of an environment variable"),
        (CHILD + "packages: {apt: [--force-yes]}\n", "mine.yaml:5:18: '--force-yes' is not an apt package"),
        (CHILD + "source: vllm=1\n", "mine.yaml:5:9: the source 'vllm=1' follows no known spelling"),
        (CHILD.replace("sample", "smaple"), "mine.yaml:4:10: no profile is called 'smaple' (did you mean 'sample'?)"),
        (CHILD.replace("sample", "mine"), "mine.yaml:4:10: profiles extend each other in a circle: mine -> mine"),
        (CHILD.replace("image/v1", "image/v9"), "mine.yaml:1:9: 'vdbg-env/image/v9' is not one of vdbg-env/image/v1"),
        ("- a\n", "mine.yaml:1:1: a profile is a mapping of keys to values"),
        ("schema: vdbg-env/image/v1\nname: mine\n", "mine.yaml:1:1: the key 'summary' is missing"),
    ],
)
def test_what_is_wrong_is_told_at_its_place(text: str, told: str) -> None:
    assert complaint(text).startswith(told)


def test_a_profile_names_one_architecture_or_several() -> None:
    assert child('build:\n  arch: "8.0"\n').build.arch == ("8.0",)
    assert child('build:\n  arch: ["8.0", "9.0a"]\n').build.arch == ("8.0", "9.0a")
    assert "'90' is not a compute capability" in complaint(CHILD + 'build:\n  arch: ["8.0", "90"]\n')
    assert "at least one entry is needed here" in complaint(CHILD + "build:\n  arch: []\n")


def test_a_circle_of_profiles_is_found_however_long() -> None:
    known = {a: mine(CHILD.replace("mine", a).replace("sample", b)) for a, b in ("ab", "bc", "ca")}
    with pytest.raises(BadDocument) as caught:
        read_spec(known["a"], known)
    assert "in a circle: a -> b -> c -> a" in caught.value.details[0]


def test_every_file_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    read = yaml_source.read

    def counted(text: bytes | str, name: str) -> yaml_source.YamlSource:
        parsed.append(name)
        return read(text, name)

    monkeypatch.setattr(yaml_source, "read", counted)
    library = read_image_library()
    for _ in range(3):
        library.spec("sample")
        profile_name(library.profile("sample"))
    profiles = [name for name in parsed if "knowledge" not in name]
    assert len(profiles) == len(set(profiles)) == 2, "sample, and what it extends"


@pytest.mark.parametrize(
    ("file", "schema"),
    [(profile.SCHEMA_FILE, profile.json_schema()), (f"knowledge/../{knowledge.SCHEMA_FILE}", knowledge.json_schema())],
)
def test_the_published_schema_is_the_one_checked_against(file: str, schema: dict[str, object]) -> None:
    assert_file((SHIPPED_DATA / "images" / file).resolve(), json.dumps(schema, indent=2) + "\n")


# The tables below knowledge/flags have a schema of their own.
FILES = sorted(path for path in (SHIPPED_DATA / "images").rglob("*.yaml") if path.parent.name != "flags")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_shipped_file_follows_its_published_schema(path: Path) -> None:
    named = path.read_text().splitlines()[0].partition("$schema=")[2]
    schema = json.loads((path.parent / named).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml_source.read(path.read_bytes(), path.name).value, schema)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_shipped_file_names_its_schema_in_its_first_line(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    start = "# yaml-language-server: $schema="
    assert first.startswith(start)
    assert (path.parent / first.removeprefix(start)).resolve().is_file()
