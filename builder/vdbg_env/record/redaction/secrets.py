"""Find secrets in bytes: by their published prefixes, by the name before them, and values known in advance.

Each rule has needles, plain words that every match begins with, and its pattern is tried only at a needle (see
`search`). NamedTuple and not dataclass: the supervisor imports this at every step's start, and `dataclasses`
would double its start-up time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from vdbg_env.record.redaction.literals import LiteralFinder
from vdbg_env.record.redaction.search import LOOKBACK, LineByLine, OnePass
from vdbg_env.record.redaction.whole_text import WholeText

MIN_LITERAL = 6  # a shorter known value ("1", "true") would blacken the whole log
OVERLAP = 8192  # no secret needs more bytes than this to be recognised as one
_BEFORE = 64  # bytes before a needle that may have a say: the dashes of a flag, the `api_` of a key


class Span(NamedTuple):
    """One secret: its half-open byte range, its kind, and where that begins which must be seen to know it.

    That is the words that give it away (`password=`), and LOOKBACK bytes before them where the rule looks back.
    """

    start: int
    end: int
    kind: str
    context: int


class SecretRule(NamedTuple):
    """Group `secret` of `pattern`, matched where a needle stands, is what must not be kept.

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
_NOT_A_VALUE = r"(?!none\b|null\b|true\b|false\b|\[?redacted[ \]]|\*\*\*|\$\{|<)"
_WORD = r"[^\s\"'`,;&<>(){}\[\]\\]{6,}"
_VALUE = rf"(?P<secret>{_NOT_A_VALUE}{_WORD})"
_QUOTED = r"(?<=\")[^\s\"\\][^\"\\\n]{5,400}(?=\\?\")|(?<=')[^\s'\\][^'\\\n]{5,400}(?=\\?')"
_WORDS = rf"(?P<secret>{_NOT_A_VALUE}(?:{_QUOTED}|{_WORD}))"  # a passphrase is several words
_ASSIGN = r"\\?[\"']?\]?\s{0,4}(?:=>|[=:])\s{0,4}(?:\[\s{0,2})?" + _COLOUR + r"\\?[\"']?"
_NAME = (
    r"(?:token|secret[\w-]{0,40}|passw(?:or)?d[\w-]{0,20}|pwd(?=[\"']?\s{0,4}[=:]\s{0,4}[\"']?[^/\s\"'])|credentials?"
    r"|(?:(?<=api[_-])|(?<=api)|(?<=access[_-])|(?<=access)|(?<=account[_-])|(?<=account)|(?<=private[_-])"
    r"|(?<=encryption[_-])|(?<=signing[_-])|(?<=master[_-])|(?<=shared[_-]))key|passphrase"
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
        r"authorization" + _ASSIGN + r"(?>(?:(?:bearer|basic|token)\s{1,4})?)" + _VALUE,
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
        "token secret passw pwd credential key passphrase pass",
        _NAME + r"(?:" + _ASSIGN + r"|(?P<flag>[\"']?,?\s{1,4}[\"']?(?!--)))" + _WORDS,
    ),
)

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
    r"|ACCOUNT_?KEY|PRIVATE_KEY|ENCRYPTION_?KEY|SIGNING_KEY|MASTER_KEY|SHARED_KEY|(?-i:[A-Z0-9]+_KEY$)"
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
    """Yield the secrets of a command line; some are known by the words before them alone."""
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
    """Whether a value is none that only its owner knows, though it stands where a secret may."""
    if value.lower() in _PLAIN_WORDS:
        return True
    return bool(_COUNT.fullmatch(value)) and not _MAY_BE_A_NUMBER.search(name)


def _found(text: str) -> Iterator[str]:
    """Yield what the rules find in a text: of an address the password, also as it is without percent signs."""
    from urllib.parse import unquote  # not at the supervisor's start

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
    """Return every form in which values may be found (see `encodings`), longest first."""
    from vdbg_env.record.redaction.encodings import encoded_forms  # not in the supervisor, which is given the forms

    kept = {v.strip() for v in values if len(v.strip()) >= MIN_LITERAL}
    forms = {form for value in kept for form in encoded_forms(value) if len(form) >= MIN_LITERAL}
    return tuple(sorted(forms, key=lambda f: (-len(f), f)))


class SecretFinder:
    """Finds secrets by RULES, and known values; keep one for all that is searched, because it remembers lines.

    A `strict` one is for binary files: of the rules only those with a distinctive prefix count.
    """

    def __init__(self, literals: tuple[bytes, ...] = (), *, strict: bool = False) -> None:
        known = self.known = LiteralFinder(literals)
        self._rules = tuple((rule, needle) for rule in RULES if rule.strict or not strict for needle in rule.needles)
        needles = tuple(needle for _, needle in self._rules)
        try:
            self._search: OnePass | LineByLine = OnePass(known, needles)
        except ImportError:
            self._search = LineByLine(known, needles)
        self.open_end = self._search.open_end

    def find(self, data: bytes, before: bytes = b"") -> list[Span]:
        """Return the secrets in `data`, in order and without overlap; `before` is the byte ahead of it."""
        joined = WholeText(data)
        found = self._search.find(data, joined, before)
        spans = [Span(start, end, "known-value", start) for start, end in found.values]
        by_rules = self._rule_spans(joined.plain, found.needles)
        spans += by_rules if joined.plain is data else (_in_data(joined, span) for span in by_rules)
        spans += self._rule_spans(data, found.in_codes)
        return _merged(spans) if spans else spans

    def _rule_spans(self, data: bytes, hits: Iterable[tuple[int, int]]) -> Iterator[Span]:
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
                yield Span(*found.span("secret"), rule.kind, max(0, at - _BEFORE))


@lru_cache(maxsize=4)
def finder_of(literals: tuple[bytes, ...], *, strict: bool = False) -> SecretFinder:
    """Return a finder, which takes two milliseconds to make: a workload may leave a hundred thousand files."""
    return SecretFinder(literals, strict=strict)


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Compile a pattern when its needle is first seen: all at once would be a quarter of the supervisor's start."""
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _in_data(joined: WholeText, span: Span) -> Span:
    """Return where a span of the text without codes is in the data, with the codes inside of it."""
    start, last, context = map(joined.in_data, (span.start, span.end - 1, span.context))
    return Span(start, last + 1, span.kind, context)


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
