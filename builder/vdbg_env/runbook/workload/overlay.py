"""Apply a step's delta to a command line and an environment; a command line is a list from end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vdbg_env.runbook.model import ArgvOverlay


def overlaid_argv(base: Sequence[str], overlay: ArgvOverlay) -> tuple[str, ...]:
    """Return the command line a step really starts: wrapped, with flags removed and appended.

    What is appended goes before a lone `--` of the base, because what follows one is no flag.
    """
    kept = without_flags(base, overlay.remove)
    end = kept.index("--") if "--" in kept else len(kept)
    return (*overlay.wrap, *kept[:end], *overlay.append, *kept[end:])


def without_flags(argv: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Return the command line without the named flags.

    A flag goes as `--flag=value`, as `--flag` alone, and as `--flag value` when written `--flag VALUE` in the overlay:
    only its author knows whether a flag takes a value, and guessing would eat a positional argument.
    A name that ends in a dot (`-cc.`) means the whole family of dotted flags.
    """
    with_value = {flag.split()[0] for flag in flags if len(flag.split()) > 1}
    alone = {flag.split()[0] for flag in flags}
    kept: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            kept.extend(argv[position:])
            break
        name, equals, _ = word.partition("=")
        found = _spelled(name, alone)
        if found is None:
            kept.append(word)
        elif found in with_value and not equals:
            position += 1
        position += 1
    return tuple(kept)


def overlaid_env(*deltas: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return several deltas as one: the later one wins, None unsets."""
    result: dict[str, str | None] = {}
    for delta in deltas:
        result.update(delta)
    return dict(sorted(result.items()))


def _spelled(name: str, flags: set[str]) -> str | None:
    """Return the flag that `name` is a spelling of: argparse in vLLM takes `_` for `-` in long names."""
    plain = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
    for flag in flags:
        if plain == flag or (flag.endswith(".") and plain.startswith(flag)):
            return flag
    return None
