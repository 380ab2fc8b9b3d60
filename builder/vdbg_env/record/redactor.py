"""Find secrets, by prefix, by the name before them and by value, and take them out of all that reaches the disk.

Each rule has needles, plain words that every match begins with, and its pattern is tried only at a needle. All needles,
and the beginnings of all known values, are one pattern (see `common.patterns`), which RE2 searches for at the speed of
memory where this Python has it. NamedTuple and not dataclass: the supervisor imports this at every step's start, and
`dataclasses` would double its start-up time.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

MIN_LITERAL = 6  # a shorter known value ("1", "true") would blacken the whole log
OVERLAP = 8192  # no secret needs more bytes than this to be recognised as one
LOOKBACK = 64  # bytes before a needle that may have a say: the dashes of a flag, the `api_` of a key
_PREFIX = 8  # bytes of a known value that are searched for; what follows them is compared
# A log's colours, also what erases a line behind them: compilers print both.
_COLOURS = re.compile(rb"\x1b\[[0-;]{0,64}+[mK]")
_EACH_COLOUR = re.compile(b"(" + _COLOURS.pattern + b")")

_BLANKS = (b" ", b"\t", b"\v", b"\f")
# How what is between a name and its value begins: a quote, a bracket, a sign, or a blank and then one of these.
_ASSIGNED = (
    *(b"=", b":", b"\\", b'"', b"'", b"]", b"%3", b"%253"),
    *(blank + after for blank in _BLANKS for after in (b"=", b":", *_BLANKS)),
)
# Keys that are secrets, set apart or not: `api_key`, `apikey`. Others are of caches, of tables and of maps.
_KEYS = (
    *("api", "access", "account", "private", "encryption", "signing", "master", "shared", "license", "licence"),
    *("subscription", "secret", "session", "activation", "deploy", "service", "storage", "functions", "admin", "ssh"),
)
_ENDS_OF_KEYS = (b"_", b"-", *sorted({word[-1:].encode() for word in _KEYS}))
# Needles that many lines have are looked for with what must follow: `tokens/s` is on every other line of an inference
# log, `token=` and `--hf-token` are not. For each the words to look for, and where in them the needle is.
_IN_WORDS: Mapping[bytes, tuple[tuple[bytes, int], ...]] = {
    b"token": tuple((b"token" + after, 0) for after in _ASSIGNED),
    b"pass": tuple((b"pass" + after, 0) for after in _ASSIGNED),
    b"pwd": tuple((b"pwd" + after, 0) for after in _ASSIGNED),
    b"key": tuple((end + b"key" + after, len(end)) for end in _ENDS_OF_KEYS for after in _ASSIGNED),
    b"sig": ((b"sig=", 0), (b"signature=", 0)),
    b"pin": tuple((b"_pin" + after, 1) for after in _ASSIGNED),
}
_OF_FLAGS = {b"token", b"key", b"pass"}
_FLAGS = tuple(b"--" + bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz0123456789_")
_FLAG = re.compile(rb"--[\w-]{0,80}?(token|key|pass)(?![\w-])", re.IGNORECASE)


class Span(NamedTuple):
    """One secret: its half-open byte range, its kind, and where that begins which must be seen to know it.

    That is the words that give it away (`password=`), and LOOKBACK bytes before them where the rule looks back.
    """

    start: int
    end: int
    kind: str
    context: int


class SecretRule(NamedTuple):
    """Group `secret` of `pattern`, matched at a needle, is what must not be kept.

    `strict` rules are so specific that a match in a binary file is no accident. Where the pattern's group `flag` took
    part, the name must be a flag's, as in `--api-key VALUE`: prose about tokens and passwords has no secrets.

    `run` matches text that is looked through once: where the rule fails at its beginning, it fails everywhere in it.
    """

    kind: str
    needles: tuple[bytes, ...]
    pattern: bytes
    strict: bool = False
    run: bytes = b""


def _rule(kind: str, needles: str, pattern: str, *, strict: bool = False, run: str = "") -> SecretRule:
    words = tuple(n.encode() for n in needles.split())
    return SecretRule(kind, words, pattern.encode(), strict, run.encode())


# What `repr` and JSON make of a line end or a colour ends in a letter, but a word may begin behind it.
_ESCAPED = r"(?<=\\[nrtfv])|(?<=[0-9;\[]m)"
_ALONE = rf"(?:(?<![A-Za-z0-9_])|{_ESCAPED})"
_COLOUR = r"(?:\\(?:u001b|x1b|033)\[[0-9;]{0,20}m)?"
# What the system says of a file that is called `passwd` or `token` is no value of it.
_OF_A_FILE = r"permission denied|operation not permitted|input/output error|read-only file system|stale file handle"
_NOT_A_VALUE = rf"(?!none\b|null\b|true\b|false\b|\[?redacted[ \]]|\*\*\*|\$\{{|<|(?:{_OF_A_FILE})(?:[\s\"']|\Z))"
_WORD = r"[^\s\"'`,;&<>(){}\[\]\\]{6,}"
_VALUE = rf"(?P<secret>{_NOT_A_VALUE}{_WORD})"
_QUOTED = r"(?<=\")[^\s\"\\][^\"\\\n]{5,400}(?=\\?\")|(?<=')[^\s'\\][^'\\\n]{5,400}(?=\\?')"
_WORDS = rf"(?P<secret>{_NOT_A_VALUE}(?:{_QUOTED}|{_WORD}))"  # a passphrase is several words
_ASSIGN = r"\\?[\"']?\]?\s{0,4}(?:=>|[=:]|%(?:25)?3[ad])\s{0,4}(?:\[\s{0,2})?" + _COLOUR + r"\\?[\"']?"
_NAME = (
    r"(?:token|secret[\w-]{0,40}|passw(?:or)?d[\w-]{0,20}|pwd(?=[\"']?\s{0,4}[=:]\s{0,4}[\"']?[^/\s\"'])|credentials?"
    r"|(?:" + "|".join(f"(?<={word}[_-])|(?<={word})" for word in _KEYS) + r")key|passphrase"
    # Of other names only variables and flags: `pass` and `key` are words of compilers and of caches too.
    r"|(?-i:(?<=[A-Z0-9]_)(?<!PUBLIC_)(?<!PRIMARY_)(?<!FOREIGN_)(?<!CACHE_)(?:PASS|KEY))"
    r"|(?<=[;&?])pass(?==)|(?<=-)pass(?=[=\s\"',]))"
)
_OPTION = r"[^\n]{0,300}?[\s\"',]"  # what may be between a program and its option
_OPERAND = r"[\s=\"',]{0,6}(?P<secret>[^\s\"',]{4,200})"
_PORTS = r"[\s=]{1,6}(?:[0-9.]{1,15}:)?(?:[0-9]{1,5}:)?[0-9]{1,5}(?:[\s\"',]|\Z)"  # of `docker run -p 8000:8000`
_MIXED = r"(?!/)(?=[^\s\"',]{0,200}[0-9])(?=[^\s\"',]{0,200}[a-z])[^\s\"',]{6,200}"  # not `-u user:group`, nor `-u http://host`

RULES: tuple[SecretRule, ...] = (
    _rule("hf-token", "hf_", _ALONE + r"(?P<secret>hf_[a-z0-9]{16,})", strict=True),
    _rule("api-key", "sk-", rf"(?:(?<![A-Za-z0-9])|{_ESCAPED})" + r"(?P<secret>sk-[a-z0-9_-]{16,})", strict=True),
    _rule("aws-key-id", "akia asia", _ALONE + r"(?P<secret>(?-i:(?:AKIA|ASIA)[A-Z0-9]{16}))(?!\w)", strict=True),
    _rule("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", r"(?P<secret>gh[pousr]_[a-z0-9]{20,})", strict=True),
    _rule("github-token", "github_pat_", r"(?P<secret>github_pat_[a-z0-9_]{20,})", strict=True),
    _rule("gitlab-token", "glpat-", r"(?P<secret>glpat-[a-z0-9_-]{16,})", strict=True),
    _rule("slack-token", "xox", r"(?P<secret>xox[abprs]-[a-z0-9-]{10,})", strict=True),
    _rule("google-key", "aiza", r"(?P<secret>(?-i:AIza)[a-z0-9_-]{30,})", strict=True),
    _rule("ngc-key", "nvapi-", r"(?P<secret>nvapi-[a-z0-9_-]{16,})", strict=True),
    _rule("npm-token", "npm_", _ALONE + r"(?P<secret>npm_[a-z0-9]{30,})", strict=True),
    _rule("pypi-token", "pypi-", _ALONE + r"(?P<secret>pypi-[a-z0-9_-]{40,})", strict=True),
    _rule("docker-token", "dckr_", r"(?P<secret>dckr_[po]at_[a-z0-9_-]{16,})", strict=True),
    _rule("groq-key", "gsk_", _ALONE + r"(?P<secret>gsk_[a-z0-9]{30,})", strict=True),
    _rule("stripe-key", "sk_live_ sk_test_ rk_live_", r"(?P<secret>[sr]k_(?:live|test)_[a-z0-9]{16,})", strict=True),
    _rule("vault-token", "hvs.", _ALONE + r"(?P<secret>hvs\.[a-z0-9_-]{16,})", strict=True),
    _rule("google-token", "ya29.", _ALONE + r"(?P<secret>ya29\.[a-z0-9_.-]{20,})", strict=True),
    _rule("google-secret", "gocspx-", r"(?P<secret>(?-i:GOCSPX)-[a-z0-9_-]{20,})", strict=True),
    _rule("xai-key", "xai-", _ALONE + r"(?P<secret>xai-[a-z0-9]{40,})", strict=True),
    _rule("grafana-token", "glsa_", r"(?P<secret>glsa_[a-z0-9]{20,}_[a-f0-9]{8})", strict=True),
    _rule("digitalocean-token", "dop_v1_", r"(?P<secret>dop_v1_[a-f0-9]{40,})", strict=True),
    _rule("age-key", "age-secret-key-1", r"(?P<secret>age-secret-key-1[a-z0-9]{20,})", strict=True),
    _rule("tailscale-key", "tskey-", _ALONE + r"(?P<secret>tskey-[a-z]+-[a-z0-9-]{12,})", strict=True),
    _rule(
        "json-web-token",
        "eyj",
        _ALONE + r"(?P<secret>(?-i:eyJ)[a-z0-9_-]{8,}+\.[a-z0-9_-]{8,}+(?:\.[a-z0-9_-]*+)?)",
        strict=True,
        run=_ALONE + r"(?-i:eyJ)[a-z0-9_-]*+",
    ),
    _rule(
        "private-key",
        "-----begin",
        r"(?P<secret>-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
        # The text up to the key's end, or to the next key where this one was cut off; each byte is looked at once.
        r"(?:(?>(?:[^-]|-(?!----(?:BEGIN|END) [A-Z ]{0,30}PRIVATE KEY-----)){0,65536})"
        r"(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|(?=-----BEGIN )))?)",
        strict=True,
    ),
    _rule("url-credentials", "://", r"://(?P<secret>(?!\*\*\*)[^\s/@\"'<>]{1,4096})@"),
    _rule(
        "authorization",
        "authorization",
        r"authorization" + _ASSIGN + r"(?>(?:(?:bearer|basic|token|(?:x-)?api-?key|jwt|dpop|key)\s{1,4})?)" + _VALUE,
    ),
    # A header's value alone, as `Authorization: Api-Key VALUE` has it: words of prose have no digit.
    _rule(
        "api-key",
        "api-key apikey",
        _ALONE + r"api-?key[ \t]{1,4}(?P<secret>(?=[a-z._~+/=-]{0,80}[0-9])[a-z0-9._~+/=-]{8,})",
    ),
    _rule("bearer", "bearer", _ALONE + r"bearer\s{1,4}(?P<secret>[a-z0-9._~+/=-]{8,})"),
    _rule(
        "user-password",
        "curl wget",
        _ALONE + r"(?:curl|wget)\b[^\n]{0,400}?[\s\"',](?:-u|-U|--user|--proxy-user)"
        r"[\s=\"',]{0,6}[^\s:\"',-][^\s:\"',]{0,200}:(?P<secret>[^\s\"']{1,400})",
    ),
    SecretRule(
        "user-password",
        (b" -u ", b" -a "),
        rf" -[ua]\s{{1,4}}[^\s:\"']{{1,100}}:(?P<secret>{_MIXED})".encode(),
    ),
    _rule("user-password", "creds", r"creds[\s=\"',]{1,6}[^\s:\"']{1,200}:(?P<secret>[^\s\"',]{4,200})"),
    _rule(
        "user-password", "mysql mariadb", _ALONE + rf"(?:mysql|mariadb)[\w-]*{_OPTION}-p(?P<secret>[^\s\"',]{{4,200}})"
    ),
    _rule("user-password", "sshpass", rf"sshpass\b{_OPTION}-p{_OPERAND}"),
    _rule("user-password", "redis-cli", rf"redis-cli\b{_OPTION}-a{_OPERAND}"),
    _rule("user-password", "login", rf"{_ALONE}login\b{_OPTION}-p(?!{_PORTS}){_OPERAND}"),
    _rule("netrc", "login", _ALONE + r"login\s{1,20}\S{1,200}\s{1,20}password\s{1,20}(?P<secret>\S{4,400})"),
    _rule("passphrase", "-pass", r"-pass(?:in|out)?[\s=\"',]{1,6}pass:(?P<secret>[^\s\"',]{4,400})"),
    _rule("value", "--from-literal", r"--from-literal[\s=\"',]{1,6}[\w.-]{1,200}=(?P<secret>[^\s\"',]{4,4000})"),
    _rule(
        "cookie",
        "cookie",
        r"cookie" + _ASSIGN + r"(?P<secret>(?!\[redacted)[^\s\"'=;,]{1,100}=[^\s\"';,]{4,4096}(?:;[^\"'\n]{0,4096})?)",
    ),
    _rule("cookie", "curl", rf"{_ALONE}curl\b{_OPTION}(?:-b|--cookie){_OPERAND}"),
    _rule("value", "'auth' \"auth\"", r"[\"']auth[\"']\s{0,4}:\s{0,4}[\"'](?P<secret>[a-z0-9+/]{8,4000}={0,2})[\"']"),
    _rule(
        "value",
        "credential",
        r"credentials?[\"']?\s{0,4}[:=]\s{0,4}\{[^{}\n]{0,400}?[\"'](?:key|value)[\"']\s{0,4}:\s{0,4}"
        r"[\"'](?P<secret>(?!\[redacted)[^\"'\n]{6,4000})[\"']",
    ),
    _rule("webhook", "/services/t", r"/services/(?-i:T[A-Z0-9]{2,20}/B[A-Z0-9]{2,20})/(?P<secret>[a-z0-9]{16,})"),
    _rule("webhook", "/api/webhooks/", r"/api/webhooks/[0-9]{10,25}/(?P<secret>[\w-]{20,})"),
    _rule("value", "password>", r"password>(?P<secret>(?!\[redacted)[^<>\s]{4,400})</"),
    _rule("signature", "sig", r"sig(?:nature)?=(?P<secret>[a-z0-9%+/=_-]{16,})"),
    _rule(
        "value",
        "pin",
        r"(?:(?-i:(?<=[A-Z0-9]_)(?<!CPU_)(?<!CORE_)(?<!NUMA_)(?<!THREAD_)PIN)|(?<=api_)pin|(?<=user_)pin|(?<=card_)pin)"
        + _ASSIGN
        + rf"(?P<secret>[0-9]{{4,12}}(?![\w.])|{_NOT_A_VALUE}{_WORD})",
    ),
    _rule(
        "value",
        "token secret passw pwd credential key passphrase pass",
        _NAME + r"(?:" + _ASSIGN + r"|(?P<flag>[\"']?,?\s{1,4}[\"']?(?!--)))" + _WORDS,
    ),
)

# In a binary file a name must be next to its value, and the value be printable: machine code has every short word.
_PRINTED = r"(?P<secret>(?![%$*<{])[!#$%*+./0-9:=?@A-Z^_a-z|~-]{6,4000})"
IN_BINARIES: tuple[SecretRule, ...] = (
    _rule(
        "authorization",
        "authorization",
        r"authorization[\"']?[ ]?[:=][ ]?[\"']?(?>(?:(?:bearer|basic|token|api-?key)[ ]{1,2})?)" + _PRINTED,
    ),
    _rule("bearer", "bearer", r"bearer[ ]{1,2}(?=[a-z0-9._~+/=-]{0,200}[0-9])(?P<secret>[a-z0-9._~+/=-]{12,4000})"),
    _rule(
        "value",
        "password passwd passphrase secret token api_key api-key apikey access_key accesskey",
        r"(?:password|passwd|passphrase|secret|token|api[_-]?key|access_?key)"
        r"[\"']?(?:[ ]?[=:][ ]?|%3[ad])[\"']?(?!none\b|null\b|true\b|false\b)" + _PRINTED,
    ),
)  # fmt: skip
_PRINTABLE = frozenset(b"\t\r\n" + bytes(range(0x20, 0x7F)))
_WIDE = re.compile(rb"(?:[\t\r\n\x20-\x7e]\0){0,4096}[\t\r\n\x20-\x7e]?")  # ASCII in UTF-16, of either order

_URL_WORDS = re.compile(r"[:/@?&=.]+")
# What stands where a secret may, and is none: as a known value it would take its word, or its number, out of the whole
# record and out of cores. A number is a count (`--long-prefill-token-threshold 131072`), but for a password.
_PLAIN_WORDS = {
    "access", "bearer", "changeme", "default", "disabled", "enabled", "invalid", "missing",
    "optional", "password", "private", "public", "required", "secret", "string", "unknown",
}  # fmt: skip
_COUNT = re.compile(r"[-+]?[0-9][0-9.eE+-]{0,9}")
_FLAG_BEFORE = re.compile(r"--([\w-]{1,60})[\s=]{1,4}\Z")
_MAY_BE_A_NUMBER = re.compile(r"pass|pwd|secret|pin", re.IGNORECASE)
_REFERENCE = re.compile(r"[:=]?(?:\$(?:[A-Z0-9_]+\Z|[({])|(?<=:)-)")  # of a shell: $HF_TOKEN, ${NAME:-default}
_SENSITIVE_NAME = (
    r"(?:^|_|-)(?:[A-Z]*TOKEN|[A-Z]*SECRET|PASS|[A-Z]*PASSW(?:OR)?D|PASSPHRASE|PWD|API_?KEY|[A-Z]*APIKEY|ACCESS_?KEY"
    r"|ACCOUNT_?KEY|PRIVATE_KEY|ENCRYPTION_?KEY|SIGNING_KEY|MASTER_KEY|SHARED_KEY|LICEN[CS]E_?KEY|SUBSCRIPTION_?KEY"
    r"|(?-i:[A-Z0-9]+_KEY$)|(?-i:[A-Z0-9]+(?<!CPU)(?<!CORE)(?<!NUMA)(?<!THREAD)_PIN$)"
    r"|CREDENTIALS?|AUTH|AUTHORIZATION|COOKIE|DSN|WEBHOOK(?:_URL)?)(?:$|_|-)"
)
_HARMLESS_NAME = (
    r"^(?:PWD|OLDPWD)$|(?:^|_)(?:PUBLIC|PRIMARY|FOREIGN|CACHE)_KEY$|(?:_SOCK|_FILE|_PATH|_DIR|_ID|_TYPE|_METHOD)$"
    r"|^XAUTHORITY$"
)


@lru_cache(maxsize=1024)
def is_sensitive_name(name: str) -> bool:
    """Whether a variable of this name holds a secret by common use (`HF_TOKEN`, `WANDB_API_KEY`, `DB_PASSWORD`)."""
    return bool(re.search(_SENSITIVE_NAME, name, re.IGNORECASE)) and not re.search(_HARMLESS_NAME, name, re.IGNORECASE)


def secret_values(env: Mapping[str, str], argv: Sequence[str] = ()) -> tuple[bytes, ...]:
    """Return what must not be kept of an environment and a command line, as literals.

    That is each value of a sensitive name, and what the rules find in the others: the password of an address, a token
    after a flag. Of a value that spans lines it is each line, because output is looked at line by line.
    """
    sensitive = {name: value for name, value in env.items() if is_sensitive_name(name)}
    known = {line for name, value in sensitive.items() for line in value.splitlines() if not _is_plain(name, line)}
    known |= {found for value in env.values() for found in _found(value)}
    return as_literals(known | set(_of_words(argv)))


def _of_words(argv: Sequence[str]) -> Iterator[str]:
    """Yield the secrets of a command line; some are recognised by the words before them alone."""
    flags = flags_of_secrets(argv)
    for position, word in enumerate(argv):
        if position in flags and not _is_plain(flags[position], word):
            yield word
        yield from _found(word)
    yield from _found(" ".join(argv))


def flags_of_secrets(argv: Sequence[str]) -> dict[int, str]:
    """Return which words of a command line are secrets by the flag before them (`--api-key`), and that flag.

    vLLM takes several keys after one `--api-key`.
    """
    several = any(word.rpartition("/")[2] == "vllm" or word.startswith("vllm.") for word in argv)
    found: dict[int, str] = {}
    for position, word in enumerate(argv[1:], 1):
        before = argv[position - 1]
        if _is_sensitive_flag(before) and not word.startswith("--"):
            found[position] = before
        elif several and found.get(position - 1) in {"--api-key", "--api_key"} and not word.startswith("-"):
            found[position] = found[position - 1]
    return found


def _is_sensitive_flag(word: str) -> bool:
    return word.startswith("-") and "=" not in word and is_sensitive_name(word.lstrip("-").replace("-", "_"))


def _is_plain(name: str, value: str) -> bool:
    """Return whether a value in the place of a secret is an ordinary word or number."""
    if value.lower() in _PLAIN_WORDS:
        return True
    return bool(_COUNT.fullmatch(value)) and not _MAY_BE_A_NUMBER.search(name)


def _found(text: str) -> Iterator[str]:
    """Yield what the rules find in a text: of an address the password, also as it is without percent signs."""
    data = text.encode("utf-8", "surrogateescape")
    for span in finder_of(()).find(data):
        value = data[span.start : span.end].decode("utf-8", "surrogateescape")
        if span.kind == "url-credentials":
            user, colon, password = value.partition(":")
            value = password if colon else user
            if value in _URL_WORDS.split(text.replace(f"{user}:{password}@", f"{user}@")):
                continue  # `postgres:postgres@`: a word of the address itself would blacken the whole log
            yield unquote(value)
        elif span.kind == "value":
            name = data[span.context : span.start].decode("utf-8", "replace")
            flag = _FLAG_BEFORE.search(name)
            of_file = flag and re.search(_HARMLESS_NAME, flag[1].replace("-", "_"), re.IGNORECASE)
            if of_file or _is_plain(name, value) or _REFERENCE.match(name[-1:] + value):
                continue
        yield value


def as_literals(values: Iterable[str]) -> tuple[bytes, ...]:
    """Return every form in which values may be found on a line or in memory (see `forms`), longest first."""
    kept = {line.strip() for value in values for line in (value, *value.splitlines())}
    found = {form for value in kept if len(value) >= MIN_LITERAL for form in forms(value)}
    return tuple(sorted((f for f in found if len(f) >= MIN_LITERAL and b"\n" not in f), key=lambda f: (-len(f), f)))


def forms(value: str) -> set[bytes]:
    """Return the forms in which programs print or store a value: escaped, quoted, in base64, in UTF-16 and UTF-32."""
    raw = value.encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "replace")
    found = {form.encode("utf-8", "surrogateescape") for form in _escaped(value, raw)}
    found |= {form for form in _base64(raw) if len(form) > MIN_LITERAL}
    return found | {text.encode(f"utf-{bits}-le", "replace") for bits in (16, 32)}  # Python's own argv is in UTF-32


def _escaped(value: str, raw: bytes) -> Iterator[str]:
    """Yield the forms of source code, JSON, HTML, URLs and shells; most of a plain token are the token itself."""
    yield value
    for form in (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
        yield from (form, form.replace("/", "\\/"), json.dumps(form)[1:-1])
    yield from (repr(value)[1:-1], ascii(value)[1:-1], repr(raw)[2:-1], shlex.quote(value).strip("'"))
    escaped = html.escape(value)
    yield from (escaped, html.escape(value, quote=False), escaped.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        first, *rest = quoted.split("%")
        yield from (quoted, "%".join([first, *(part[:2].lower() + part[2:] for part in rest)]))


def _base64(raw: bytes) -> Iterator[bytes]:
    """Yield base64 at every alignment: of each, the characters that the value alone decides."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            yield encode(b"\0" * before + raw)[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]


class _Uncoloured:
    """Data without its colours, and where each of its bytes was: a rule sees `password=` and its value side by side."""

    def __init__(self, data: bytes) -> None:
        self.text = data
        self._ends: list[int] = []  # of the pieces between colours, in the text
        self._left_out = [0]  # bytes of colours before each piece, in the data
        if b"\x1b[" in data:
            self.text = _COLOURS.sub(b"", data)
            self._data = data

    def in_data(self, span: Span) -> Span:
        """Return where a span of the text is in the data, with the colours inside of it."""
        if len(self._left_out) == 1:
            lengths = [len(piece) for piece in _EACH_COLOUR.split(self._data)]
            self._ends = list(accumulate(lengths[:-1:2]))
            self._left_out = [0, *accumulate(lengths[1::2])]
        start, last, context = map(self._place, (span.start, span.end - 1, span.context))
        return Span(start, last + 1, span.kind, context)

    def _place(self, place: int) -> int:
        return place + self._left_out[bisect_right(self._ends, place)]


class _Begin(NamedTuple):
    """What may begin where a word was found: known values, needles by offset and number, and a flag."""

    values: tuple[bytes, ...]
    needles: tuple[tuple[int, int], ...]
    flag: bool
    wide: bool


class SecretFinder:
    """Finds secrets by RULES, and known values; `literals` are the forms of those.

    A `strict` one is for binary files: of the rules only those with a distinctive prefix count, and IN_BINARIES. It
    looks for them in UTF-16 too.
    """

    def __init__(self, literals: tuple[bytes, ...] = (), *, strict: bool = False) -> None:
        from vdbg_env.common import patterns  # not where nothing is redacted, such as in a list of runs

        rules = (*(rule for rule in RULES if rule.strict), *IN_BINARIES) if strict else RULES
        self._rules = tuple((rule, needle) for rule in rules for needle in rule.needles)
        self._of_flags = {needle: number for number, (_, needle) in enumerate(self._rules) if needle in _OF_FLAGS}
        values: dict[bytes, list[bytes]] = {}
        for literal in literals:
            values.setdefault(literal[:_PREFIX].lower(), []).append(literal)
        needles: dict[bytes, list[tuple[int, int]]] = {}
        for number, (_, needle) in enumerate(self._rules):
            for word, at in _IN_WORDS.get(needle, ((needle, 0),)):
                needles.setdefault(word, []).append((at, number))
        wide = {b"\0".join(bytes([byte]) for byte in needle) for needle in needles} if strict else set()
        flags = () if strict else _FLAGS
        words = {*values, *needles, *flags, *wide}
        self._search = patterns.any_word(sorted(words)).search
        self._small_letters = patterns.re2 is None
        self._begins: dict[bytes, _Begin] = {}
        for word in words:  # the longest word at a place is found; those that it begins with are there too
            shorter = [word[:size] for size in range(1, len(word) + 1)]
            self._begins[word] = _Begin(
                tuple(value for one in shorter for value in values.get(one, ())),
                tuple(needle for one in shorter for needle in needles.get(one, ())),
                any(one in flags for one in shorter),
                any(one in wide for one in shorter),
            )

    def find(self, data: bytes) -> list[Span]:
        """Return the secrets in `data`, in order and without overlap."""
        plain = _Uncoloured(data)
        text = plain.text
        spans: list[Span] = []
        hits: list[tuple[int, int]] = []
        at = wide_to = 0
        searched = text.lower() if self._small_letters else text
        while found := self._search(searched, at):
            at, end = found.span()  # `group` of RE2's matches takes as long as the search
            begin = self._begins.get(text[at:end].lower())
            if begin:
                spans += (Span(at, at + len(v), "known-value", at) for v in begin.values if text.startswith(v, at))
                hits += ((at + offset, number) for offset, number in begin.needles)
                name = _FLAG.match(text, at) if begin.flag else None
                if name:
                    hits.append((name.start(1), self._of_flags[name[1].lower()]))
                if begin.wide and at >= wide_to:
                    wide_to = self._add_wide(text, at, spans)
            at += 1
        if hits:
            spans += self._by_rules(text, sorted(hits))
        if not spans:
            return spans
        return _merged(spans if text is data else [plain.in_data(span) for span in spans])

    def _add_wide(self, data: bytes, at: int, spans: list[Span]) -> int:
        """Add the secrets of the text in UTF-16 around an offset, and return where that text ends."""
        start = at
        while at - start < 2 * LOOKBACK and start >= 2 and not data[start - 1] and data[start - 2] in _PRINTABLE:
            start -= 2
        found = _WIDE.match(data, start)
        end = found.end() if found else at
        for span in self.find(data[start:end:2]):
            places = (start + 2 * place for place in (span.start, span.end, span.context))
            first, last, context = places
            spans.append(Span(first, min(last, len(data)), span.kind, context))
        return end

    def _by_rules(self, data: bytes, hits: Iterable[tuple[int, int]]) -> Iterator[Span]:
        """Yield what the rules find, in linear time: a hit within a rule's last match can only end where that ends."""
        seen_to: dict[int, int] = {}
        for at, number in hits:
            if at < seen_to.get(number, 0):
                continue
            rule = self._rules[number][0]
            found = _compiled(rule.pattern).match(data, at)
            if found is None:
                run = _compiled(rule.run).match(data, at) if rule.run else None
                seen_to[number] = run.end() if run else at
            elif found.re.groups == 1 or not found["flag"] or _is_flag(data, at):
                seen_to[number] = found.end("secret")
                yield Span(*found.span("secret"), rule.kind, max(0, at - LOOKBACK))


@lru_cache(maxsize=4)
def finder_of(literals: tuple[bytes, ...], *, strict: bool = False) -> SecretFinder:
    """Return a finder, which takes two milliseconds to make: a workload may leave a hundred thousand files."""
    return SecretFinder(literals, strict=strict)


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Compile a pattern when its needle is first seen: all at once would be a quarter of the supervisor's start."""
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _is_flag(data: bytes, at: int) -> bool:
    """Whether the word around `at` begins with two dashes."""
    start = at
    while start > 0 and at - start < LOOKBACK and (data[start - 1 : start].isalnum() or data[start - 1] in b"-_"):
        start -= 1
    return data[start : start + 2] == b"--"


def _merged(spans: list[Span]) -> list[Span]:
    spans.sort()
    merged = [spans[0]]
    for span in spans[1:]:
        last = merged[-1]
        if span.start < last.end:
            merged[-1] = Span(last.start, max(last.end, span.end), last.kind, min(last.context, span.context))
        else:
            merged.append(span)
    return merged


# Take secrets out of everything before it reaches the disk: streams, argument lists, environments, documents, files.
#
# A stream is looked at in whole lines, so a secret cut by a chunk's border is seen whole; a line too long to hold goes
# out all but its last bytes. What cannot be redacted is withheld: an error here costs output, never a secret.


LINE_LIMIT = 64 << 10  # bytes of one line that are held back until its end
_AT_ONCE = 1 << 18  # bytes that are searched at once: a text may be nothing but secrets
TOKEN_END = re.compile(rb"[\s\"'`,;&<>(){}\[\]]")
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
        self.finder = finder_of(literals)
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
                    self._until, self._swallowed = _PEM_END if span.kind == "private-key" else TOKEN_END, 0
        return cut

    def _after_swallowing(self, data: bytes, until: re.Pattern[bytes]) -> bytes:
        """Drop bytes up to the end of the secret that is being dropped; what is returned has yet to be looked at."""
        found = until.search(data)
        if found:
            self._until = None
            return data[found.end() :] if found[0].startswith(b"-----") else data[found.start() :]
        if until is TOKEN_END:
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
