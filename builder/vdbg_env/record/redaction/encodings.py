"""The forms in which programs print or store a value: escaped, quoted, as numbers, in base64, in UTF-16."""

from __future__ import annotations

import base64
import html
import json
import shlex
from collections.abc import Iterator
from itertools import product
from urllib.parse import quote, quote_plus

_HTML_QUOTES = tuple(product(("&quot;", "&#34;"), ("&#x27;", "&#39;", "&apos;")))


def encoded_forms(value: str) -> frozenset[bytes]:
    """Return every form in which `value` may be found in a file or a stream, the plain one included."""
    raw = value.encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "replace")
    forms = {form.encode("utf-8", "surrogateescape") for form in (*_escaped(value, raw), *_as_numbers(raw, text))}
    forms |= {form for form in _base_n(raw) if len(form) >= 7}
    return frozenset(forms | _wide(text))


def _escaped(value: str, raw: bytes) -> Iterator[str]:
    """Yield the forms of source code, JSON, HTML, URLs and shells; most of a plain token are the token itself."""
    yield value
    ascii_only, literal = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
    for form in (ascii_only, literal):
        yield from (form, form.replace("/", "\\/"), json.dumps(form)[1:-1])
    yield from (repr(value)[1:-1], ascii(value)[1:-1], repr(raw)[2:-1], shlex.quote(value).strip("'"))
    escaped = html.escape(value)
    yield from (escaped, html.escape(value, quote=False), html.escape(escaped))
    yield from (escaped.replace("&quot;", double).replace("&#x27;", single) for double, single in _HTML_QUOTES)
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw), quote(raw, safe="~!*'()/:")):
        yield from (quoted, _lower_percent(quoted), quoted.replace("%", "%25"))


def _lower_percent(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def _as_numbers(raw: bytes, text: str) -> Iterator[str]:
    """Yield the forms that have a number for each character."""
    for digits in ([f"{byte:02x}" for byte in raw], [f"{byte:02X}" for byte in raw]):
        yield from (between.join(digits) for between in ("", ":", " ", "-", ", ", ","))
        yield from ("".join(mark + pair for pair in digits) for mark in ("\\x", "%", "\\\\x", "=", "&#x00"))
        yield from (between.join(f"0x{pair}" for pair in digits) for between in (", ", ",", " "))
        yield from (mark.join(("", *digits)) for mark in ("\\u00", "\\\\u00", "\\U000000"))
        yield "".join(f"\\x{{{pair}}}" for pair in digits)
    yield "".join(f"\\{byte:03o}" for byte in raw)
    yield from (between.join(str(byte) for byte in raw) for between in (", ", ",", " "))
    yield "".join(f"&#{ord(letter)};" for letter in text)
    for form in ("x", "X"):
        yield from ("".join(f"&#x{ord(letter):{form}};" for letter in text), "")


def _wide(text: str) -> set[bytes]:
    return {text.encode(f"utf-{bits}-{order}", "replace") for bits in (16, 32) for order in ("le", "be")}


def _base_n(raw: bytes) -> Iterator[bytes]:
    """Yield base64 and base32 at every alignment: of each, the characters that the value alone decides."""
    for encode, bits, group in ((base64.b64encode, 6, 3), (base64.urlsafe_b64encode, 6, 3), (base64.b32encode, 5, 5)):
        for before in range(group):
            first = -(-8 * before // bits)
            last = 8 * (before + len(raw)) // bits
            form = encode(b"\0" * before + raw)[first:last]
            yield form
            if b"/" in form or b"+" in form:
                yield form.replace(b"/", b"\\/")
                yield form.replace(b"/", b"%2F").replace(b"+", b"%2B")
