"""Take credentials out of recorded requests: headers, addresses and bodies.

Names, shapes and the rules of all text show them. A client sends a server more than the server prints:
here a weak hint is enough (`key=`, `code=`), and of headers only those stay that a replay needs. What is replaced keeps
its place and its type, so that the request still parses.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

import zstandard

from vdbg_env.record.redactor import Redactor, finder_of, is_sensitive_name

# Of one connection (RFC 9110, section 7.6.1), and what a client makes anew for each request.
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
)
# What an inference server reads besides credentials. A replay reads the answer's text to find errors in streams, so it
# must not ask for a compressed one: no Accept-Encoding.
KEPT_HEADERS = frozenset((
    "accept", "accept-language", "content-encoding", "content-language", "content-type", "prefer", "priority",
    "anthropic-beta", "anthropic-version", "openai-beta", "traceparent", "x-correlation-id", "x-data-parallel-rank",
    "x-request-id",
))  # fmt: skip
_KEPT_PARAMETERS = frozenset(("boundary", "charset", "q", "type", "version", "start", "start-info"))
_REDACTED = "[redacted value]"
_MOST_EXPANDED = 64 << 20  # bytes of a body that was compressed
_CHUNK = 1 << 16
_NAMES = frozenset(("name", "key", "id", "field", "header", "variable", "var", "env"))
_VALUES = frozenset(("value", "val", "values"))
_FORM = re.compile(r"[^\s=&;{}\"<>]{1,200}=[^\s&;{}\"<>]*(?:[&;][^\s=&;{}\"<>]{0,200}(?:=[^\s&;{}\"<>]*)?)*\s*")
_PARAMETER = re.compile(r"(?<=[?&;])([\w.%\[\]-]{1,100})=([^&\s\"'`<>#;\\]+)")
_OPENERS_OF_JSON = ("{", "[", '"')


# Names.


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset((
    "password", "passwords", "passwd", "passphrase", "passcode", "pass", "pwd", "pw", "secret", "secrets",
    "credential",
    "credentials", "creds", "cred", "authorization", "authorisation", "authentication", "auth", "bearer", "jwt",
    "cookie",
    "cookies", "otp", "totp", "pin", "sas", "sig", "signature", "hmac", "assertion", "csrf", "xsrf", "dpop", "dsn",
    "webhook", "token", "apikey", "apikeys", "ticket", "sid", "session", "sessionid", "jsessionid", "phpsessid",
    "samlresponse", "samlrequest", "netrc", "passkey", "mnemonic", "serviceaccountjson", "seedphrase",
))  # fmt: skip
_SECRET_ENDS = (
    "password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey", "secretkey", "credential",
    "credentials", "sessionid", "authorization", "connectionstring", "connstring", "accesskeyid", "keyid",
)  # fmt: skip
# With these a name is of tokens as models have them, or says something about a secret and is none.
_OF_TOKENS = frozenset((
    "count", "limit", "budget", "type", "types", "ids", "url", "uri", "file", "path", "dir", "method", "mode", "policy",
    "length", "name", "enabled", "required", "memory", "params", "healing", "usage", "choice", "position", "endpoint",
))  # fmt: skip
_OF_MODELS = frozenset(
    ("eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "prompt", "special", "image", "audio")
)
_OF_CODES = frozenset(
    ("mfa", "otp", "totp", "recovery", "verification", "backup", "sms", "pin", "auth", "authorization")
)
_KEYS_OF_NOTHING = frozenset(
    ("public", "primary", "foreign", "cache", "sort", "partition", "group", "order", "routing")
)
# In an address or a form, where a single word is all that there is.
_SECRET_PARAMETERS = frozenset(("key", "code", "psk"))


@lru_cache(maxsize=4096)
def is_name_of_secret(name: str, *, parameter: bool = False) -> bool:
    """Whether a field, a header or, with `parameter`, a parameter of an address or a form of this name is a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if parameter and _SECRET_PARAMETERS & set(words):
        return True
    if words[-1] in _OF_TOKENS:
        return words[-1] == "url" and "webhook" in words
    if words[-1] == "token" and _OF_MODELS & set(words):
        return False
    if is_sensitive_name(re.sub(r"[^A-Za-z0-9]+", "_", name)):
        return True
    if words[-1] in {"key", "keys"}:
        return len(words) > 1 and not _KEYS_OF_NOTHING & set(words)
    if words[-1] in {"code", "codes"}:
        return bool(_OF_CODES & set(words))
    if words[-1] == "tokens":
        return bool({"api", "auth", "access", "bearer", "refresh"} & set(words))
    if words[-1] == "id" and "token" in words:
        return False
    joined = "".join(words)
    return bool(_SECRET_WORDS & {*words, joined}) or joined.endswith(_SECRET_ENDS)


def is_opaque(value: str) -> bool:
    """Whether a value has 20 letters and digits in a row: a key, never a model's name or a UUID."""
    return any(
        re.search("[0-9]", run) and re.search("[A-Za-z]", run) for run in re.findall(r"[A-Za-z0-9+%]{20,}", value)
    )


# Requests.


class RequestRedactor:
    """Takes credentials out of the parts of a request."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def headers(self, headers: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return the headers that a replay sends again: those that are known to be needed."""
        given = list(headers)
        named = {w.strip().lower() for name, value in given if name.lower() == "connection" for w in value.split(",")}
        kept = KEPT_HEADERS - named
        return {name: self._header(name.lower(), value) for name, value in given if name.lower() in kept}

    def _header(self, name: str, value: str) -> str:
        if name in {"accept", "content-type"}:
            first, *parameters = value.split(";")
            kept = [p for p in parameters if p.partition("=")[0].strip().lower() in _KEPT_PARAMETERS]
            value = ";".join([first, *kept])
        return self._redactor.text(value)

    def url(self, url: str) -> str:
        """Return a path and a query without the parameters that are credentials."""
        if (found := re.match(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*", url)) is not None:
            url = url[found.end() :] or "/"
        path, mark, query = url.partition("?")
        path = re.sub(r"([;/&])([^;/=&?]+)=([^;/?&]*)", self._of_path, path)
        parts = re.split(r"([&;])", query)
        kept = ""
        for at in range(0, len(parts), 2):
            parameter = self._parameter(parts[at])
            if parameter is not None:
                kept += (parts[at - 1] if at and kept else "") + parameter
        return self._redactor.text(path + (mark if kept or not query else "") + kept)

    def _of_path(self, found: re.Match[str]) -> str:
        name = unquote(found[2])
        return found[1] if is_name_of_secret(name, parameter=True) else found[0]

    def _parameter(self, text: str) -> str | None:
        """Return a parameter of an address as it is kept; None for one that is a credential."""
        coded, _, value = text.partition("=")
        name, plain = unquote_plus(coded), unquote_plus(value)
        if is_name_of_secret(name, parameter=True) or is_opaque(plain) or is_opaque(name):
            return None
        again = unquote(plain)
        if self.text(plain) != plain or self.text(again) != again or (plain != value and self._has_parameter(again)):
            return None
        return text

    @staticmethod
    def _has_parameter(text: str) -> bool:
        """Whether an address inside a parameter has a credential."""
        names = re.findall(r"[?&;]([^=&;?]{1,200})=", text)
        return any(is_name_of_secret(name, parameter=True) for name in names)

    def json(self, value: Any) -> Any:
        """Return a JSON value without credentials; raises RecursionError for one that is too deep."""
        return self._value(value, "")

    def _value(self, value: Any, key: str) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return self._object(value, key)
            case list():
                if key.lower().replace("-", "_").endswith("headers"):
                    return [self._pair(inner) for inner in value]
                return self._list(value, key)
        return value

    def _list(self, value: list[Any], key: str) -> list[Any]:
        """Return a list: of words as a command line, of pairs as names and values."""
        if value and all(isinstance(inner, list) and len(inner) == 2 for inner in value):
            return [
                [name, _without(inner)]
                if isinstance(name, str) and is_name_of_secret(name)
                else self._value([name, inner], key)
                for name, inner in value
            ]
        if len(value) > 1 and all(isinstance(word, str) for word in value) and any(w[:1] == "-" for w in value):
            value = list(self._redactor.argv(value))
        return [self._value(inner, key) for inner in value]

    def _object(self, value: dict[str, Any], key: str) -> dict[str, Any]:
        """Return an object: fields by their names, headers by those that are kept, pairs of a name and a value."""
        if key.lower().replace("-", "_").endswith("headers"):
            return {
                self.text(name): self._value(inner, name) if name.lower() in KEPT_HEADERS else _without(inner)
                for name, inner in value.items()
            }
        secret = any(n.lower() in _NAMES and isinstance(v, str) and is_name_of_secret(v) for n, v in value.items())
        fields = key in {"properties", "patternProperties", "$defs", "definitions"}
        out = {}
        for name, inner in value.items():
            if fields and isinstance(inner, dict):
                out[self.text(name)] = self._schema(inner, secret=is_name_of_secret(name))
            elif is_name_of_secret(name) or (secret and name.lower() in _VALUES):
                out[self.text(name)] = _without(inner)
            elif name in {"code", "state"} and "grant_type" in value:
                out[name] = _without(inner)
            else:
                out[self.text(name)] = self._value(inner, name)
        return out

    def _schema(self, value: dict[str, Any], *, secret: bool) -> dict[str, Any]:
        """Return the description of a field: what it may be stays, the values that are given for a secret do not."""
        if not secret or not {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "format"} & set(value):
            return {
                self.text(name): _without(inner) if secret else self._value(inner, name)
                for name, inner in value.items()
            }
        given = {"default", "const", "example", "examples"}
        return {
            self.text(name): _without(inner) if name in given else self._value(inner, name)
            for name, inner in value.items()
        }

    def _pair(self, value: Any) -> Any:
        """Return one of a list of headers: a pair, a name and a value, or a line."""
        match value:
            case [str() as name, inner]:
                return [name, self._value(inner, name) if name.lower() in KEPT_HEADERS else _without(inner)]
            case {"name": str() as name, "value": inner} if name.lower() not in KEPT_HEADERS:
                return value | {"value": _without(inner)}
            case str():
                name, colon, _ = value.partition(":")
                return f"{name}: {_REDACTED}" if colon and is_name_of_secret(name) else self.text(value)
        return self._value(value, "")

    def text(self, text: str) -> str:
        """Return a text without credentials: JSON inside of it by its values, also line by line, the rest by rules."""
        if text.lstrip()[:1] in _OPENERS_OF_JSON and len(text) > 2:
            redacted = self._json_text(text)
            if redacted is not None:
                return redacted
        if "\n" in text and ("{" in text or "%7B" in text):
            text = "".join(map(self._line, text.splitlines(keepends=True)))
        return self._redactor.text(_PARAMETER.sub(_in_an_address, text) if "://" in text else text)

    def _json_text(self, text: str) -> str | None:
        """Return a text that is one JSON value, unchanged where nothing is to be taken out; None for another text."""
        try:
            document = json.loads(text)
            redacted = self.json(document)
        except (ValueError, RecursionError):
            return None
        if redacted == document and not _names_twice(text):
            return text
        return json_text(redacted)

    def _line(self, line: str) -> str:
        """Return a line: an event of a stream, or one of several JSON values."""
        found = re.match(r"\s*(?:data:\s*)?(?=[{\[])", line)
        redacted = self._json_text(line[found.end() :].rstrip("\r\n")) if found else None
        if found is None or redacted is None:
            return line
        return line[: found.end()] + redacted + line[len(line.rstrip("\r\n")) :]

    def form(self, text: str) -> str:
        """Return a form; its fields stay, without the values that are credentials."""
        parts = re.split(r"([&;])", text)
        return "".join(self._field(part) if at % 2 == 0 else part for at, part in enumerate(parts))

    def _field(self, text: str) -> str:
        coded, equals, value = text.partition("=")
        plain = unquote_plus(value)
        if equals and is_name_of_secret(unquote_plus(coded), parameter=True):
            return f"{coded}={quote(_REDACTED)}"
        redacted = self.text(plain)
        return text if redacted == plain else f"{coded}={quote(redacted)}"

    # Bodies.

    def body(self, data: bytes, content_type: str = "", encoding: str = "") -> bytes | None:
        """Return the bytes of a body without credentials, None for one that cannot be looked into.

        One that was compressed is compressed again where something was taken out.
        """
        codings = [coding.strip().lower() for coding in encoding.split(",") if coding.strip().lower() != "identity"]
        if not any(codings):
            return self._plain(data, content_type)
        if len(codings) > 1 or (coder := _CODERS.get(codings[0])) is None:
            return None
        expand, compress = coder
        try:
            plain = expand(data)
        except (zlib.error, zstandard.ZstdError, ValueError, EOFError):
            return None
        redacted = None if plain is None else self._plain(plain, content_type)
        return redacted if redacted is None else data if redacted == plain else compress(redacted)

    def _plain(self, data: bytes, content_type: str) -> bytes:
        kind, _, parameters = content_type.partition(";")
        kind = kind.strip().lower()
        if kind.startswith("multipart/") and (found := re.search(r'boundary="?([^";,\s]+)', parameters)):
            return self._parts(data, found[1].encode("utf-8", "surrogateescape"))
        for coding in dict.fromkeys(("utf-8", json.detect_encoding(data))):
            try:
                text = data.decode(coding, "strict")
            except UnicodeDecodeError:
                continue
            if "\0" not in text:
                return self._text_of_body(text, kind).encode(coding)
        if b"\0" not in data:
            return self._text_of_body(data.decode("latin-1"), kind).encode("latin-1", "backslashreplace")
        return self._redactor.replace(data, finder_of(self._redactor.literals, strict=True).find(data))

    def _text_of_body(self, text: str, kind: str) -> str:
        mark, text = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
        is_form = kind == "application/x-www-form-urlencoded" or (kind in {"", "text/plain"} and _FORM.fullmatch(text))
        return mark + (self.form(text) if is_form and not text.lstrip().startswith("{") else self.text(text))

    def _parts(self, data: bytes, boundary: bytes) -> bytes:
        """Return a form of several parts: fields go by their names, files are looked into."""
        parts = data.split(b"--" + boundary)
        for at, part in enumerate(parts):
            head, blank, content = part.partition(b"\r\n\r\n")
            if not blank:
                continue
            text = head.decode("utf-8", "surrogateescape")
            end = b"\r\n" if content.endswith(b"\r\n") else b""
            content = content.removesuffix(end)
            name = re.search(r'\bname="?([^";\r\n]*)', text)
            kind = re.search(r"(?im)^content-type:[ \t]*(.*?)\r?$", text)
            if name and is_name_of_secret(name[1], parameter=True):
                content = _REDACTED.encode()
            else:
                content = self._plain(content, kind[1] if kind else "text/x-field")
            parts[at] = head + blank + content + end
        return (b"--" + boundary).join(parts)


def _in_an_address(found: re.Match[str]) -> str:
    """Return a parameter of an address; one that is a credential has a value that addresses may have."""
    return f"{found[1]}=redacted" if is_name_of_secret(unquote(found[1]), parameter=True) else found[0]


def _without(value: Any) -> Any:
    """Return a value without its texts and numbers; whether something is on or off stays."""
    match value:
        case bool() | None:
            return value
        case str():
            return _REDACTED if value else value
        case int() | float():
            return 0
        case dict():
            return {name: _without(inner) for name, inner in value.items()}
        case list():
            return [_without(inner) for inner in value]
    return _REDACTED


def json_text(document: Any) -> str:
    """Return JSON that can be written as UTF-8: a lone surrogate is escaped."""
    text = json.dumps(document, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(document)
    return text


def _names_twice(text: str) -> bool:
    """Whether an object has a name more than once: a reader takes the last, and the text has all."""
    twice = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal twice
        twice = twice or len({name for name, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=look)
    return twice


def _expand_zlib(data: bytes, bits: int) -> bytes | None:
    """Return what a body expands to; None where that is too large. Raises zlib.error."""
    out = bytearray()
    while data:
        expander = zlib.decompressobj(bits)
        while not expander.eof:
            piece = expander.decompress(data, _CHUNK)
            out += piece
            data = expander.unconsumed_tail
            if len(out) > _MOST_EXPANDED:
                return None
            if not piece and not data and not expander.eof:
                raise zlib.error("it is cut short")
        data = expander.unused_data
    return bytes(out)


def _compress_zlib(data: bytes, bits: int) -> bytes:
    compressor = zlib.compressobj(wbits=bits)
    return compressor.compress(data) + compressor.flush()


def _expand_zstd(data: bytes) -> bytes | None:
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as source:
        out: bytes = source.read(_MOST_EXPANDED + 1)
    return out if len(out) <= _MOST_EXPANDED else None


_CODERS: Mapping[str, tuple[Callable[[bytes], bytes | None], Callable[[bytes], bytes]]] = {
    "gzip": (lambda data: _expand_zlib(data, 31), lambda data: _compress_zlib(data, 31)),
    "x-gzip": (lambda data: _expand_zlib(data, 31), lambda data: _compress_zlib(data, 31)),
    "deflate": (lambda data: _expand_zlib(data, 15), lambda data: _compress_zlib(data, 15)),
    "zstd": (_expand_zstd, zstandard.ZstdCompressor().compress),
}
