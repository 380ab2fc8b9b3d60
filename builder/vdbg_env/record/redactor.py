"""Take secrets out of everything before it reaches the disk: streams, argument lists, environments, documents, files.

A stream is looked at in whole lines, so a secret cut by a chunk's border is seen whole; a line too long to hold goes
out all but its last bytes. What cannot be redacted is withheld: an error here costs output, never a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vdbg_env.record.secrets import OVERLAP, SecretFinder, Span, flags_of_secrets, is_sensitive_name

LINE_LIMIT = 64 << 10  # bytes of one line that are held back until its end
_AT_ONCE = 1 << 18  # bytes that are searched at once: a text may be nothing but secrets
_TOKEN_END = re.compile(rb"[\s\"'`,;&<>(){}\[\]]")
_PEM_END = re.compile(rb"-----END [A-Z ]{0,30}PRIVATE KEY-----|(?<=\n)(?=[^A-Za-z0-9+/=\r\n-])")
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")
_BACKSLASHES = re.compile(rb"(?<!\\)\\(?:\\\\)*\Z")  # an odd number: the next byte belongs to them
_PEM_LIMIT = 64 << 10
_IPV4 = re.compile(rb"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.]|/\d)")
_IPV6 = re.compile(rb"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){3,7}(?::?[0-9a-fA-F]{1,4}){1,4}(?![\w:])")
_OWN_ADDRESSES = {b"127.0.0.1", b"0.0.0.0", b"255.255.255.255"}


class Pseudonyms(NamedTuple):
    """Consistent stand-ins for hosts and IP addresses; the same `key` gives the same name in every run and file.

    The key must not be next to the record: with it, all IPv4 addresses could be tried out.
    """

    key: bytes
    hosts: tuple[str, ...] = ()

    def replace(self, text: bytes) -> bytes:
        """Return `text` with every known host name and every address (but this machine's own loopback) replaced."""
        return self._replaced(text, self._name)

    def replace_in_place(self, data: bytes) -> bytes:
        """Do the same to a part of a binary file: pseudonyms are cut, or filled with `*`, to the length of the name."""
        return self._replaced(data, lambda kind, name: self._name(kind, name)[: len(name)].ljust(len(name), b"*"))

    def _replaced(self, text: bytes, stand_in: Callable[[bytes, bytes], bytes]) -> bytes:
        def address(found: re.Match[bytes]) -> bytes:
            return found[0] if found[0] in _OWN_ADDRESSES else stand_in(b"ip", found[0])

        for host in sorted(self.hosts, key=len, reverse=True):
            name = host.encode()
            if name in text:
                text = re.sub(rb"(?<![\w.-])" + re.escape(name) + rb"(?![\w-])", stand_in(b"host", name), text)
        if text.count(b".") >= 3:
            text = _IPV4.sub(address, text)
        return _IPV6.sub(address, text) if text.count(b":") >= 4 else text

    def _name(self, kind: bytes, value: bytes) -> bytes:
        import hmac  # not at start-up: few runs ask for pseudonyms, and it takes a tenth of the supervisor's start

        return kind + b"-" + hmac.digest(self.key, kind + b":" + value.lower(), "sha256").hex()[:8].encode()


class Redactor:
    """Takes secrets out of values, and of any number of streams (`stream`).

    `literals` are forms of known values (`secret_values`), `pseudonyms` replaces hosts and addresses.
    """

    def __init__(self, literals: tuple[bytes, ...] = (), pseudonyms: Pseudonyms | None = None) -> None:
        self.literals = literals
        self.finder = SecretFinder(literals)
        self.pseudonyms = pseudonyms

    def data(self, data: bytes) -> bytes:
        """Return `data`, a whole text, with every secret replaced by a word that says what kind it was."""
        if len(data) <= _AT_ONCE:
            return self.replace(data, self.finder.find(data))
        stream = self.stream()
        parts = [stream.feed(data[at : at + _AT_ONCE]) for at in range(0, len(data), _AT_ONCE)]
        return b"".join([*parts, stream.finish()])

    def replace(self, data: bytes, spans: Sequence[Span], *, json: bool = False) -> bytes:
        """Return `data` with `spans` replaced, and with pseudonyms where they are asked for; `json` stays JSON."""
        if spans:
            parts, at = [], 0
            for span in spans:
                word = b"[redacted %s]" % span.kind.encode()
                parts += [data[at : span.start], _in_json(data, span, word) if json else word]
                at = span.end
            data = b"".join([*parts, data[at:]])
        return self.pseudonyms.replace(data) if self.pseudonyms else data

    def text(self, text: str) -> str:
        """Return `text` redacted; a lone surrogate, as JSON may hold one, stays."""
        try:
            return self.data(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return an argument list redacted; the value after a flag such as `--api-key` is one too."""
        kept: list[str] = []
        secrets = flags_of_secrets(argv)
        curl = any(word.rpartition("/")[2] in {"curl", "wget"} for word in argv)
        for position, argument in enumerate(argv):
            before = argv[position - 1] if position else ""
            if curl and before in {"-u", "-U", "--user", "--proxy-user"} and ":" in argument:
                kept.append(f"{self.text(argument.partition(':')[0])}:[redacted value]")
                continue
            kept.append("[redacted value]" if position in secrets else self.text(argument))
        return tuple(kept)

    def env(self, env: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return an environment redacted: sensitive names lose their value, the others what is secret in theirs."""
        return {name: self._variable(name, value) for name, value in env.items()}

    def _variable(self, name: str, value: str | None) -> str | None:
        if not value:
            return value
        return "[redacted value]" if is_sensitive_name(name) else self.text(value)

    def document(self, value: object) -> object:
        """Return a JSON value with every text in it redacted, keys left as they are."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {
                    key: "[redacted value]"
                    if isinstance(v, str) and v and is_sensitive_name(str(key))
                    else self.document(v)
                    for key, v in value.items()
                }
            case list() | tuple():
                return [self.document(v) for v in value]
        return value

    def stream(self, *, json: bool = False) -> StreamRedactor:
        """Return a redactor for one stream of bytes, given in chunks; with `json` for one that is to stay JSON."""
        return StreamRedactor(self, json=json)


class StreamRedactor:
    """Redacts one stream: `feed` returns what may be written now, `finish` the rest.

    Bytes are held back until their line ends, at most LINE_LIMIT of them; a secret that outgrows even that is dropped
    up to its end. An error inside withholds the bytes it struck and says how many.
    """

    def __init__(self, redactor: Redactor, *, json: bool = False) -> None:
        self._redactor = redactor
        self._json = json
        self._held = b""
        self._until: re.Pattern[bytes] | None = None  # inside a secret that began in bytes already written
        self._swallowed = 0

    def feed(self, chunk: bytes) -> bytes:
        """Return the redacted bytes that are safe to write after `chunk`."""
        data = self._held + chunk if self._held else chunk
        return self._guarded(data, lambda: self._split(data, end=False))

    def finish(self) -> bytes:
        """Return what was still held back when the stream ended."""
        data = self._held
        return self._guarded(data, lambda: self._split(data, end=True))

    def _guarded(self, data: bytes, split: Callable[[], tuple[bytes, bytes]]) -> bytes:
        try:
            ready, self._held = split()
        except Exception as error:  # fail closed: whatever went wrong, these bytes are not written
            self._held = b""
            return b"[redaction failed (%s): %d bytes withheld]\n" % (type(error).__name__.encode(), len(data))
        return ready

    def _split(self, data: bytes, *, end: bool) -> tuple[bytes, bytes]:
        """Return what may be written, redacted, and what must still be held."""
        if self._until is not None:
            data = self._after_swallowing(data, self._until)
            if self._until is not None:
                return b"", b"" if end else data
        cut = len(data) if end else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        forced = not end and len(data) - cut > LINE_LIMIT
        if forced:
            cut = len(data)
        head = data[:cut]
        if cut == 0:
            return b"", data
        spans = _with_open_key(head, self._redactor.finder.find(head))
        if forced:
            cut = self._forced_cut(head, spans)
            head, spans = data[:cut], [s for s in spans if s.start < cut]
        elif spans and _is_open_key(head, spans[-1]):
            self._until, self._swallowed = _PEM_END, 0
        return self._redactor.replace(head, spans, json=self._json), data[cut:]

    def _forced_cut(self, head: bytes, spans: list[Span]) -> int:
        """Return where a line too long to hold may be cut: never between a secret and the words that give it away."""
        cut = len(head) - OVERLAP
        for span in spans:
            if span.context < cut < span.end or (span.context < cut and span.end == len(head)):
                cut = span.end
                if cut == len(head):
                    self._until, self._swallowed = _PEM_END if span.kind == "private-key" else _TOKEN_END, 0
        return cut

    def _after_swallowing(self, data: bytes, until: re.Pattern[bytes]) -> bytes:
        """Drop bytes up to the end of the secret that is being dropped; what is returned has yet to be looked at."""
        found = until.search(data)
        if found:
            self._until = None
            return data[found.end() :] if found[0].startswith(b"-----") else data[found.start() :]
        if until is _TOKEN_END:
            return b""
        self._swallowed += len(data)
        if self._swallowed > _PEM_LIMIT:
            self._until = None  # no private key is this long: the mark was text about keys
        return data[-64:]  # the end mark itself may be cut by the border


def _in_json(data: bytes, span: Span, word: bytes) -> bytes:
    """Return what may replace a secret in JSON: a number for a number, and half of an escape is kept whole."""
    secret = data[span.start : span.end]
    if _NUMBER.fullmatch(secret):
        return b"0"
    begun, cut = (_BACKSLASHES.search(text) for text in (data[max(0, span.start - 64) : span.start], secret))
    return (b"n" if begun else b"") + word + (b"\\" if cut else b"")


def _with_open_key(head: bytes, spans: list[Span]) -> list[Span]:
    """Return `spans` with a private key whose end is not in `head` reaching to the end of `head`."""
    for position, span in enumerate(spans):
        if span.kind == "private-key" and b"-----END" not in head[span.start : span.end]:
            return [*spans[:position], span._replace(end=len(head))]
    return spans


def _is_open_key(head: bytes, span: Span) -> bool:
    return span.kind == "private-key" and span.end == len(head) and b"-----END" not in head[span.start :]
