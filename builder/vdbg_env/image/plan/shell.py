"""Turn a step's template into commands; every value in it is quoted, which no template can forget."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from vdbg_env.common.errors import VdbgError
from vdbg_env.image.text import one_line

if TYPE_CHECKING:
    from jinja2 import Environment


CONTINUED = "\0"  # occurs nowhere else: values with control characters are refused


def words(value: object) -> str:
    """Return a value as words of POSIX shell: text as one word, a sequence as several.

    Raises BadInput for control characters, which no word can hold on one line.
    """
    match value:
        case str():
            return shlex.quote(one_line(value, f"the value {value[:40]!r}"))
        case int() | float():
            return str(value)
        case list() | tuple():
            return " ".join(words(item) for item in value)
        case _:
            raise VdbgError(f"a template uses {value!r}, which is not text")


class ShellTemplates:
    """The templates of the build steps, by file name, read from text that is passed in."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def commands(self, name: str, **values: object) -> tuple[str, ...]:
        """Return the commands of template `name`, one to a line, without empty lines.

        A line that ends in a backslash continues in the next, and keeps its break.
        Jinja's `finalize` quotes: it gets every value, and no text of the template.
        """
        text = self._environment.get_template(name).render(values)
        lines = text.replace("\\\n", CONTINUED).splitlines()
        return tuple(line.replace(CONTINUED, "\\\n") for line in lines if line)

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import DictLoader, Environment, StrictUndefined

        return Environment(
            loader=DictLoader(dict(self.texts)),
            undefined=StrictUndefined,
            finalize=words,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
