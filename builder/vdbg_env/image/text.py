"""Refuse text that cannot be written on one line; everything else is allowed and quoted where it is written."""

from __future__ import annotations

from vdbg_env.common.errors import BadInput


def one_line(value: str, what: str) -> str:
    """Return `value` when every character of it is printable.

    A control character (a line break above all) is the one thing no Dockerfile, shell or manifest can quote on a
    single line, so it is refused by name rather than escaped. Raises BadInput.
    """
    bad = next((c for c in value if not c.isprintable()), None)
    if bad is None:
        return value
    raise BadInput(
        f"{what} holds the control character {bad.encode('unicode_escape', 'surrogatepass').decode()}",
        cause="text pasted with a line break, or a file name with one",
        next_step="take the character out",
    )
