"""Reads the names of flags and environment variables out of vLLM's own source, without importing any of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

VARIABLE_FILES = ("vllm/envs.py",)
FLAG_FILES = ("vllm/engine/arg_utils.py", "vllm/entrypoints/")
_ARGUMENT_CLASSES = {"FrontendArgs", "BaseFrontendArgs"}


@dataclass(frozen=True, kw_only=True)
class Surface:
    """The names one release answers to: environment variables, and flags with their dashes."""

    variables: frozenset[str]
    flags: frozenset[str]


def is_wanted(path: str) -> bool:
    """Whether a file of the source distribution (path below its root) is one names are read from."""
    return path.endswith(".py") and (path in VARIABLE_FILES or path.startswith(FLAG_FILES))


def read_surface(files: Mapping[str, str]) -> Surface:
    """Return the names that the given source files define; a file that does not parse is an error of the caller's."""
    variables: set[str] = set()
    flags: set[str] = set()
    for path, text in files.items():
        tree = ast.parse(text)
        if path in VARIABLE_FILES:
            variables |= set(_dictionary_keys(tree, "environment_variables"))
        else:
            flags |= set(_added_arguments(tree)) | set(_argument_fields(tree))
    return Surface(variables=frozenset(variables), flags=frozenset(flags))


def _dictionary_keys(tree: ast.Module, name: str) -> Iterator[str]:
    """The string keys of the dictionary assigned to `name`, and of what is later put into it by key."""
    for node in ast.walk(tree):
        targets: Iterable[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = (node.target,)
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            value = getattr(node, "value", None)
            keys = value.keys if isinstance(value, ast.Dict) else []
            yield from (k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str))


def _added_arguments(tree: ast.Module) -> Iterator[str]:
    """The long names given to `add_argument`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from (name.replace("_", "-") for name in names if name.startswith("--"))


def _argument_fields(tree: ast.Module) -> Iterator[str]:
    """The fields of the classes that become flags of the server by their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in _ARGUMENT_CLASSES:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield "--" + field.target.id.replace("_", "-")
