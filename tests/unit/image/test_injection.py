"""No text in any field of a request or of a profile makes another instruction, another command or another word."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.dockerfile_reader import Read, read_dockerfile
from tests.support.image_library import shipped
from vdbg_env.common.errors import VdbgError
from vdbg_env.image.manifests import apptainer, compose, kubernetes
from vdbg_env.image.plan import dockerfile
from vdbg_env.image.planner import plan
from vdbg_env.image.profile import BuildRequest, GitRef, ImageSpec, PipIndex, Sdist, Site
from vdbg_env.image.settings import RunSettings

HARMLESS = "harmless-1"
FIELDS: dict[str, Callable[[dict[str, Any], dict[str, Any], str], None]] = {
    "summary": lambda spec, wish, text: spec.update(summary=text),
    "environment": lambda spec, wish, text: spec.update(environment={"SOME_NAME": text}),
    "cmake_args": lambda spec, wish, text: spec["build"].update(cmake_args=[text]),
    "prepare": lambda spec, wish, text: spec["build"].update(prepare=[["echo", text]]),
    "requirement": lambda spec, wish, text: spec["packages"].update(build=[text]),
    "wheel": lambda spec, wish, text: spec["toolchain"].update(wheels=[text]),
    "apt": lambda spec, wish, text: spec["packages"].update(apt=[text]),
    "path": lambda spec, wish, text: spec["base"].update(path=text),
    "image": lambda spec, wish, text: spec["base"].update(image=text),
    "tool": lambda spec, wish, text: spec.update(tools=[{"name": "t", "argv": ["t", text], "expect": text}]),
    "base": lambda spec, wish, text: wish.update(base=text),
    "arch": lambda spec, wish, text: wish.update(arch=(text,)),
    "target": lambda spec, wish, text: wish.update(target=text),
    "index": lambda spec, wish, text: wish.update(site=Site(pip=PipIndex(index_url=f"https://h/{text}"))),
    "trusted host": lambda spec, wish, text: wish.update(site=Site(pip=PipIndex(trusted_hosts=(text,)))),
    "apt mirror": lambda spec, wish, text: wish.update(site=Site(apt_mirror=f"https://h/{text}")),
    "git reference": lambda spec, wish, text: wish.update(source=GitRef(url="https://h/r", ref=text)),
    "git address": lambda spec, wish, text: wish.update(source=GitRef(url=text, ref="main")),
    "sdist": lambda spec, wish, text: wish.update(source=Sdist(project="p", version=text)),
}

nasty = st.text(st.sampled_from(" '\"\\$`;&|<>(){}#!*?[]~=%^@:,.-\n\t\0aE1O<F"), max_size=12)
texts = st.one_of(nasty, st.text(max_size=12))


def written(field: str, text: str) -> tuple[str, list[Read]] | None:
    """Return the Dockerfile with `text` in one field, or None when the text is refused."""
    values = copy.deepcopy(shipped().spec("sample").model_dump(by_alias=True, mode="json"))
    wish: dict[str, Any] = {"profile": "sample"}
    FIELDS[field](values, wish, text)
    try:
        spec = ImageSpec.model_validate(values)
        decided = plan(spec, BuildRequest(**wish), shipped())
        rendered = dockerfile(decided)
        assert apptainer(decided).count("\n%") == 5
    except (VdbgError, ValidationError):
        return None
    return rendered, read_dockerfile(rendered)


@cache
def written_harmless(field: str) -> tuple[str, list[Read]]:
    found = written(field, HARMLESS if field != "arch" else "8.0")
    assert found is not None
    return found


def shape(read: list[Read], text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the instructions with `text` taken out of their words, and the plan's digest with it."""
    neutral = "<it>"
    return [
        (
            r.keyword,
            tuple(neutral if w.startswith("dev.vdbg-env.plan.digest=") else w.replace(text, neutral) for w in r.words),
        )
        for r in read
    ]


@pytest.mark.parametrize("field", FIELDS)
def test_a_harmless_text_is_taken_or_refused_for_its_form(field: str) -> None:
    refused = {"arch"}
    assert (written(field, HARMLESS) is None) == (field in refused)


@given(st.sampled_from(sorted(FIELDS)), texts)
@example("cmake_args", "<<EOF")
@example("cmake_args", "'; RUN evil; '")
@example("environment", '"\\$(evil)\\')
@example("environment", "{{ name }}")
@example("prepare", "x\nRUN evil")
@example("summary", 'x" \\')
@example("tool", "#comment")
@example("path", "$HOME")
@example("trusted host", "11\\\n")
def test_no_text_breaks_out_of_its_place(field: str, text: str) -> None:
    found = written(field, text)
    if found is None or not text.strip():
        return
    rendered, read = found
    assert rendered.isascii() or not text.isascii()
    harmless = written_harmless(field)
    # A text that stands in the file anyway (a letter, a flag) cannot be taken out again: count words instead.
    plain = harmless[1]
    assert [(r.keyword, len(r.words)) for r in read] == [(r.keyword, len(r.words)) for r in plain]
    if len(text) > 3 and text not in harmless[0]:
        assert shape(read, text) == shape(plain, HARMLESS)


@given(
    st.one_of(
        nasty, st.text(st.sampled_from("${}()#: -|>&*!%@'\"`\n\t1yY=~,[]\x7f\u0085\u2028\u202e\x1b"), max_size=12)
    )
)
@example("a\n# not a comment: 1\n")
@example("${HOME} $$ $(HOME) {{ 7*7 }}")
@example("\n  - x\n")
@example("\n\x85")
def test_no_text_breaks_out_of_a_manifest(text: str) -> None:
    """Compose and Kubernetes have the text itself: neither reads it as another key, nor fills a variable in."""
    settings = RunSettings(image="debug:1", env=(("SOME_NAME", text),), command=("run", text))
    (service,) = yaml.safe_load(compose(settings))["services"].values()
    assert _filled_in(service["environment"]["SOME_NAME"]) == text
    assert [_filled_in(word) for word in service["command"]] == ["run", text]
    pod = next(iter(yaml.safe_load_all(kubernetes(settings))))
    (container,) = pod["spec"]["containers"]
    assert [_filled_in(one["value"]) for one in container["env"] if one["name"] == "SOME_NAME"] == [text]
    assert [_filled_in(word) for word in container["args"]] == ["run", text]


def _filled_in(text: str) -> str:
    """Return what is left when variables are filled in; fails where there is one."""
    assert "$" not in text.replace("$$", ""), text
    return text.replace("$$", "$")
