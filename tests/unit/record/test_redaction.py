"""Secrets never reach the disk, wherever the chunks are cut, and nothing else is touched."""

import base64
import itertools
import random
import re
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdbg_env.record import redactor
from vdbg_env.record.masking import mask_file
from vdbg_env.record.redactor import Pseudonyms, Redactor, SecretFinder, as_literals, is_sensitive_name, secret_values

HF = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + base64.encodebytes(random.Random(1).randbytes(600)).decode()
    + "-----END RSA PRIVATE KEY-----\n"
)


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        (f"Using token {HF} from the environment", HF),
        ("OPENAI_API_KEY=sk-proj-4f6e8d0c2b1a39485766", "sk-proj-4f6e8d0c2b1a39485766"),
        ("aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"),
        ("key AKIAIOSFODNN7EXAMPLE used", "AKIAIOSFODNN7EXAMPLE"),
        ("git clone https://bob:hunter22@example.org/x.git", "hunter22"),
        ("git clone https://ghp_abcdefghijklmnopqrst0123@example.org/x.git", "ghp_abcdefghijklmnopqrst0123"),
        ("Authorization: Bearer abcdefgh.ijkl-mnop", "abcdefgh.ijkl-mnop"),
        ("Namespace(model='m', api_key=['local-abc123'], max_tokens=100)", "local-abc123"),
        ('{"password": "correct-horse"}', "correct-horse"),
        ("vllm serve m --api-key local-abc123", "local-abc123"),
        ("['vllm', '--api-key', 'local-abc123']", "local-abc123"),
        ("GET https://b.s3.test/o?X-Amz-Signature=0123456789abcdef0123", "0123456789abcdef0123"),
        ("DB_PASSWORD: s3cr3t-value", "s3cr3t-value"),
        ("password: Permission-denied1", "Permission-denied1"),
    ],
)
def test_a_secret_is_taken_out_and_its_kind_is_told(line: str, secret: str) -> None:
    redacted = Redactor().text(line)
    assert secret not in redacted
    assert "[redacted " in redacted


@pytest.mark.parametrize(
    "line",
    [
        "Avg prompt throughput: 512 tokens/s, max_tokens=4096, prompt_token_ids: [1, 2, 3]",
        "tokenizer='meta-llama/Llama-3', token=None, trust_remote_code=False, api_key=None",
        'File "/usr/lib/python3/dist-packages/x.py", line 3, in forward',
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "see https://example.org/docs/errors.html and mail me@example.org",
        "the secret is to keep the password short; a token was lost",
        "/etc/passwd: Permission denied",
        "cat: /var/run/secrets/token: Input/output error",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...>>(long, ...)",
    ],
)
def test_text_without_secrets_is_left_alone(line: str) -> None:
    assert Redactor().text(line) == line


def test_redacting_twice_changes_nothing_more() -> None:
    once = Redactor().text(f"HF_TOKEN={HF} https://u:password1@h/ --api-key abcdefgh\n{PEM}")
    assert Redactor().text(once) == once


def test_names_by_which_variables_hold_secrets() -> None:
    secret = ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "VLLM_API_KEY", "GITHUB_TOKEN"]
    plain = ["PATH", "PWD", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM", "CUDA_COREDUMP_FILE", "MAX_TOKENS", "XAUTHORITY"]
    assert [n for n in secret + plain if is_sensitive_name(n)] == secret


def test_an_environment_keeps_its_names_and_loses_its_secrets() -> None:
    env = Redactor().env(
        {"HF_TOKEN": "x", "PROXY": "http://u:password1@proxy:3128", "CUDA_LAUNCH_BLOCKING": "1", "A": None}
    )
    assert env == {
        "HF_TOKEN": "[redacted value]",
        "PROXY": "http://[redacted url-credentials]@proxy:3128",
        "CUDA_LAUNCH_BLOCKING": "1",
        "A": None,
    }


def test_the_value_after_a_secret_flag_goes() -> None:
    assert Redactor().argv(["vllm", "--api-key", "x", "--hf-token", "--port", "8000"]) == (
        *("vllm", "--api-key", "[redacted value]", "--hf-token", "--port", "8000"),
    )


def test_values_of_sensitive_variables_go_wherever_they_show() -> None:
    redactor = Redactor(
        secret_values({"MY_SECRET": "pl@in/word", "HOME": "/root", "X_KEY_PASSWORD": "two\nlines-of-it"})
    )
    assert redactor.text("it said pl@in/word, also pl%40in%2Fword and lines-of-it in /root") == (
        "it said [redacted known-value], also [redacted known-value] and [redacted known-value] in /root"
    )


def planted(seed: int, count: int) -> tuple[bytes, list[bytes], tuple[bytes, ...]]:
    """A log with `count` secrets of every kind, the secrets alone, and those that are known in advance."""
    rng = random.Random(seed)

    def word(length: int) -> str:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=length))

    forms = [
        ("token {}", "hf_", 34),
        ("OPENAI_API_KEY={}", "sk-", 32),
        ("url https://user:{}@host/path", "", 12),
        ("Authorization: Bearer {}", "", 40),
        ('"password": "{}",', "", 10),
        ("literal {} shows", "lit-", 16),
        ("vllm serve --api-key {} --port 1", "", 16),
    ]
    lines, secrets, literals = [], [], []
    for _ in range(count):
        form, prefix, length = rng.choice(forms)
        secret = prefix + word(length)
        lines.append(word(rng.randrange(200)) + " " + form.format(secret))
        secrets.append(secret.encode())
        if secret.startswith("lit-"):
            literals.append(secret)
    ends = [rng.choice(["\n", "\r", "\r\n", " "]) for _ in lines]
    return "".join(a + b for a, b in zip(lines, ends, strict=True)).encode(), secrets, as_literals(literals)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1, 7, 63, 1000, 8191]))
def test_no_secret_survives_being_cut_by_a_chunks_border(seed: int, size: int) -> None:
    log, secrets, literals = planted(seed, 12)
    stream = Redactor(literals).stream()
    out = b"".join([*(stream.feed(log[i : i + size]) for i in range(0, len(log), size)), stream.finish()])
    assert [s for s in secrets if s in out] == []
    assert out.count(b"[redacted ") >= len(secrets) - 1


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=4000), cuts=st.lists(st.integers(0, 4000), max_size=6))
def test_bytes_without_secrets_come_out_exact(data: bytes, cuts: list[int]) -> None:
    if SecretFinder().find(data):
        return
    stream = Redactor().stream()
    places = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    out = b"".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(places))
    assert out + stream.finish() == data


def test_a_line_without_end_passes_in_constant_memory_and_exact() -> None:
    rng = random.Random(3)
    data = bytes(b for b in rng.randbytes(400_000) if b not in b"\r\n")
    stream = Redactor().stream()
    out = b""
    for at in range(0, len(data), 10_000):
        out += stream.feed(data[at : at + 10_000])
        assert at + 10_000 - len(out) <= redactor.LINE_LIMIT + 10_000
    assert out + stream.finish() == data


@pytest.mark.parametrize("offset", [0, 1, 50_000, 65_000, 65_530, 65_536, 70_000])
def test_a_secret_in_an_endless_line_is_found_wherever_it_stands(offset: int) -> None:
    data = b"." * offset + b" token=" + HF.encode() + b" " + b"." * 150_000
    stream = Redactor().stream()
    out = b"".join([*(stream.feed(data[i : i + 4096]) for i in range(0, len(data), 4096)), stream.finish()])
    assert HF[3:].encode() not in out
    assert out.count(b".") == offset + 150_000


def test_a_secret_longer_than_all_that_is_held_is_dropped_to_its_end() -> None:
    data = b"password=" + b"x" * 500_000 + b" and more\n"
    stream = Redactor().stream()
    out = b"".join([*(stream.feed(data[i : i + 50_000]) for i in range(0, len(data), 50_000)), stream.finish()])
    assert out == b"password=[redacted value] and more\n"


@pytest.mark.parametrize("size", [1, 17, 64, 300, 5000])
def test_a_private_key_goes_with_all_its_lines(size: int) -> None:
    text = f"before\n{PEM}after\n".encode()
    stream = Redactor().stream()
    out = b"".join([*(stream.feed(text[i : i + size]) for i in range(0, len(text), size)), stream.finish()])
    assert out == b"before\n[redacted private-key]\nafter\n"


def test_an_error_in_the_redactor_withholds_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> list[object]:
        raise RecursionError

    monkeypatch.setattr(SecretFinder, "find", broken)
    stream = Redactor().stream()
    assert stream.feed(f"token={HF}\n".encode()) == b"[redaction failed (RecursionError): %d bytes withheld]\n" % len(
        f"token={HF}\n"
    )
    assert stream.finish() == b""


def test_pseudonyms_are_the_same_everywhere_and_tell_nothing() -> None:
    key = b"k" * 32
    names = Pseudonyms(key, ("node7", "node7.cluster.test"))
    text = "node7: connect 10.20.30.40:29500 from node7.cluster.test (fe80:0:0:0:1:2:3:4), 127.0.0.1, version 12.4.1"
    once = Redactor(pseudonyms=names).text(text)
    assert "node7" not in once
    assert "10.20" not in once
    assert "fe80" not in once
    assert "127.0.0.1, version 12.4.1" in once
    assert Redactor(pseudonyms=names).text(text) == once
    assert Redactor(pseudonyms=Pseudonyms(b"other" * 8, names.hosts)).text(text) != once


def test_a_document_is_redacted_in_depth() -> None:
    document = {"argv": ["a", f"--x={HF}"], "env": {"API_KEY": "short"}, "n": 3, "list": [{"url": "http://a:bbbb@c/"}]}
    assert Redactor().document(document) == {
        "argv": ["a", "--x=[redacted hf-token]"],
        "env": {"API_KEY": "[redacted value]"},
        "n": 3,
        "list": [{"url": "http://[redacted url-credentials]@c/"}],
    }


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), window=st.sampled_from([8192, 10_000, 1 << 20]))
def test_files_are_masked_in_place_and_keep_their_length(
    tmp_path_factory: pytest.TempPathFactory, seed: int, window: int
) -> None:
    log, secrets, literals = planted(seed, 200)
    path = tmp_path_factory.mktemp("mask") / "artifact.log"
    path.write_bytes(log)
    assert mask_file(path, literals, window=window) >= 190
    masked = path.read_bytes()
    assert len(masked) == len(log)
    assert [s for s in secrets if s in masked] == []
    assert mask_file(path, literals, window=window) == 0


def test_a_binary_file_loses_only_what_is_surely_secret(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(b"\x7fELF\0\0 a://b@c " + HF.encode() + b"\0known-literal\0")
    mask_file(path, (b"known-literal",))
    assert path.read_bytes() == b"\x7fELF\0\0 a://b@c " + b"*" * len(HF) + b"\0" + b"*" * 13 + b"\0"


class Counted:
    """A pattern that counts how often it is tried."""

    tried: ClassVar[list[int]] = []

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern

    def match(self, data: bytes, at: int) -> re.Match[bytes] | None:
        self.tried.append(at)
        return self._pattern.match(data, at)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where patterns were tried."""
    compiled = redactor._compiled
    monkeypatch.setattr(redactor, "_compiled", lambda pattern: Counted(compiled(pattern)))
    Counted.tried.clear()
    return Counted.tried


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("word", [b"sk-", b"xoxb-", b"nvapi-", b"github_pat_", b"AIza"])
def test_a_secret_is_matched_once_however_often_its_prefix_is_in_it(
    word: bytes, strict: bool, tried: list[int]
) -> None:
    found = SecretFinder(strict=strict).find(word * 1000)
    assert [(span.start, span.end) for span in found] == [(0, 1000 * len(word))]
    assert len(tried) <= 4


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("rest", [b"", b".short", b"/" + b"a" * 9])
def test_a_token_that_never_ends_is_looked_through_once(rest: bytes, strict: bool, tried: list[int]) -> None:
    assert SecretFinder(strict=strict).find(b"-eyJ" * 10_000 + rest) == []
    assert len(tried) <= 4


def test_a_token_after_one_that_never_ends_is_found() -> None:
    token = b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
    data = b"-eyJ" * 10_000 + b" " + token + b"\n"
    assert [data[span.start : span.end] for span in SecretFinder().find(data)] == [token]


def test_a_private_key_ends_at_its_own_end() -> None:
    key = b"-----BEGIN RSA PRIVATE KEY-----\nMIIB-x\nabc\n-----END RSA PRIVATE KEY-----"
    text = b"-----BEGIN RSA PRIVATE KEY-----\n" * 3 + key + b"\nafter"
    assert [text[s.start : s.end] for s in SecretFinder().find(text)][-1] == key


def test_a_private_key_that_is_cut_off_before_the_next_one_is_masked_too() -> None:
    text = b"-----BEGIN PRIVATE KEY-----\nMIIBcutoff\n" + PEM.encode() + b"----- a line of dashes\nafter\n"
    left = text
    for span in reversed(SecretFinder().find(text)):
        left = left[: span.start] + left[span.end :]
    assert left == b"\n----- a line of dashes\nafter\n"
