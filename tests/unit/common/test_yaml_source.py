"""YAML is read with places, by the 1.2 core schema, and refuses what would surprise."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from vdbg_env.common import yaml_source
from vdbg_env.common.console import error_text
from vdbg_env.common.errors import VdbgError
from vdbg_env.common.yaml_source import MAX_COMPLAINTS, BadDocument, read, validate


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: str = ""
    size: int = 0


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    inner: dict[str, Inner] = {}
    many: list[Inner] = []


def refusal(text: str | bytes) -> str:
    with pytest.raises(BadDocument) as caught:
        yaml_source.validate(Outer, yaml_source.read(text, "f.yaml"))
    return "\n".join(caught.value.details)


def test_scalars_stay_what_the_author_wrote() -> None:
    source = yaml_source.read("a: [22:22, 0644, yes, on, 'true', true, 1e3, 0x1F, 0o17, ~, 3.10, -4, 1e999]", "f")
    assert source.value == {"a": ["22:22", 644, "yes", "on", "true", True, 1000.0, 31, 15, None, 3.1, -4, "1e999"]}


def test_places_are_those_of_the_text() -> None:
    source = yaml_source.read("a:\n  b: 1\n  c: [x, y]\n", "f")
    assert source.place(("a", "b")) == (2, 6)
    assert source.place(("a", "b"), key=True) == (2, 3)
    assert source.place(("a", "c", 1)) == (3, 10)
    assert source.place(("a", "nowhere")) == (2, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: x\nnmae: y\n", "f.yaml:2:1: unknown key 'nmae' (did you mean 'name'?)\n    nmae: y\n    ^"),
        ("name: x\nname: y\n", "f.yaml:2:1: duplicate key 'name', first given on line 1\n    name: y\n    ^"),
        ("name: x\ninner:\n  a: {colur: red}\n", "f.yaml:3:7: unknown key 'colur' (did you mean 'colour'?)"),
        ("name: x\nmany:\n  - sise: 1\n", "f.yaml:3:5: unknown key 'sise' (did you mean 'size'?)"),
        ("name: x\nmany:\n  - size: big\n", "f.yaml:3:11: a whole number is needed here, not 'big'"),
        ("inner: {}\n", "f.yaml:1:1: the key 'name' is missing"),
        ("name:\n\t- x\n", "f.yaml:2:1: a tab is used for indentation"),
        ("name: &x y\nmany: *x\n", "f.yaml:2:7: aliases (*name) are not allowed"),
        ("<<: {name: x}\n", "f.yaml:1:1: merge keys (<<) are not allowed"),
        ("name: !!python/object:os.system x\n", "f.yaml:1:7: tags are not allowed"),
        ("? [a]\n: b\n", "f.yaml:1:3: a key must be plain text"),
        ("", "f.yaml:1:1: the file is empty"),
        ("a: 1\n---\nb: 2\n", "f.yaml:1:1: one document is expected"),
        ("name: [x\n", "f.yaml:2:1: did not find expected ',' or ']'"),
        (b"name: ok\nx: \xff\n", "f.yaml:2:1: not UTF-8 text"),
        ("name: \x07\n", "f.yaml:1:1: unacceptable character #x0007: control characters are not allowed"),
        pytest.param("[" * 100, "f.yaml:1:65: nested deeper than 64 levels", id="deep"),
    ],
)
def test_complaints_name_the_place(text: str | bytes, expected: str) -> None:
    assert refusal(text).startswith(expected)


def test_a_depth_that_libyaml_itself_may_refuse_is_told_in_the_same_words() -> None:
    assert re.match(r"f\.yaml:1:\d+: nested deeper than 64 levels", refusal("[" * 200_000))


def test_a_bomb_of_aliases_is_refused_without_growing() -> None:
    layers = "".join(f"l{i}: &l{i} [{','.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 30))
    with pytest.raises(BadDocument):
        yaml_source.read("l0: &l0 [lol]\n" + layers, "bomb.yaml")


@given(st.binary(max_size=400))
def test_any_bytes_give_a_value_or_a_typed_error(data: bytes) -> None:
    try:
        yaml_source.read(data, "f")
    except VdbgError as error:
        assert error.what


@pytest.mark.parametrize(
    "text",
    [
        "k: 1\n" * 200_000,
        "x: [" + ",".join(["*a"] * 200_000) + "]\n",
        "{" + ",".join(f"k{i}: *x" for i in range(100_000)) + "}\n",
    ],
    ids=["duplicate keys", "aliases", "one line"],
)
def test_a_file_with_a_complaint_in_every_byte_gets_a_hundred(text: str) -> None:
    with pytest.raises(BadDocument) as caught:
        read(text, "many.yaml")
    assert len(caught.value.complaints) == MAX_COMPLAINTS
    assert len(error_text(caught.value)) < 1 << 16


def test_unknown_keys_without_end_are_a_hundred_complaints() -> None:
    class Model(BaseModel, extra="forbid"):
        name: str = ""

    with pytest.raises(BadDocument) as caught:
        validate(Model, read("".join(f"k{i}: 1\n" for i in range(10_000)), "many.yaml"))
    assert len(caught.value.complaints) == MAX_COMPLAINTS


def test_no_complaint_moves_the_cursor_or_turns_text_around() -> None:
    with pytest.raises(BadDocument) as caught:
        read("\u202ename: 1\n\u202ename: 2\n", "a\x1b]0;title\x07\nerror: forged.yaml")
    lines = [*caught.value.details, *error_text(caught.value).split("\n")]
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("error: forged") for line in lines)
