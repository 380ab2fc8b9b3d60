"""The forms in which people and programs write credentials every day, and the lines that only look like them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.triage import LOGS
from vdbg_env.record.masking import mask_file
from vdbg_env.record.redactor import Redactor, secret_values

S = "Xk7-q9Tz_4bLm2Rw"  # the secret, where its form leaves a choice
A = "Xk7q9Tz4bLm2RwYp0cVd8sGh3jNf6aKe"  # letters and digits alone
STAY_AT_MOST = 5

FORMS = [
    # Tokens with a prefix of their own.
    f"hf_{A}", f"sk-proj-{A}", f"sk-ant-api03-{A}", f"ghp_{A}", f"github_pat_{A}", f"glpat-{A[:20]}", f"nvapi-{A}{A}",
    f"xoxb-123456789012-{A}", f"AIza{A}{A[:3]}", f"npm_{A}{A[:4]}", f"pypi-AgEIcHlwaS5vcmc{A}{A}", f"dckr_pat_{A[:27]}",
    f"gsk_{A}{A[:20]}", f"sk_live_{A[:24]}", f"hvs.{A[:24]}", f"ya29.{A}{A}", f"xai-{A}{A}", f"glsa_{A}_1a2b3c4d",
    f"GOCSPX-{A[:28]}", f"dop_v1_{'0123456789abcdef' * 4}", f"AGE-SECRET-KEY-1{A.upper()}", f"tskey-auth-{A}",
    # Assignments: shell, YAML, JSON, INI, source code.
    f"HF_TOKEN={S}", f"export WANDB_API_KEY={S}", f"DB_PASSWORD: {S}", f'{{"password": "{S}"}}', f"password = {S}",
    f"{{'api_key': '{S}'}}", f"client_secret={S}", f"aws_secret_access_key = {S}", f"MYSQL_PWD={S}", f"REDIS_PASS={S}",
    f"SMTP_PASS: {S}", f"passphrase: {S}", f'passphrase="{S}"', f"encryption_key={S}", f'"encryption_key": "{S}"',
    f"SIGNING_KEY={S}", f"FERNET_KEY={S}", f"APP_MASTER_KEY: {S}", f"signing_key: {S}", f"accountKey: {S}",
    f"{{'credentials': {{'user': 'bob', 'key': '{S}'}}}}", f'"credentials": {{"id": "b", "key": "{S}"}}',
    f'{{"auths": {{"r.example": {{"auth": "{A}"}}}}}}', "password: \"correct Horse battery\"",
    "secret='two Words here'",
    "'passphrase': 'correct Horse battery'", f"[ldap]\nbind_password = {S}", f"token => {S}", f"--set db.password={S}",
    # Connection strings and addresses.
    f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={A}==;EndpointSuffix=core", f"Server=d;Uid=sa;Pwd={S};",
    f"Endpoint=sb://x;SharedAccessKeyName=r;SharedAccessKey={A}=", f"https://bob:{S}@example.org/x.git",
    f"DATABASE_URL=postgres://app:{S}@db:5432/app", f"redis://:{S}@cache:6379/0", f"https://{S}@pkgs.example/simple/",
    f"https://b.example/o?sig={A}&se=1", f"https://b.example/o?X-Amz-Signature={A}",
    f"jdbc:x://h/d?user=u&password={S}",
    f"https://api.example/v1?access_token={S}", f"https://api.example/v1?api_key={S}", f"amqp://u:{S}@mq:5672//",
    # Headers.
    f"Authorization: Bearer {S}", f"authorization: Basic {A}=", f"X-Api-Key: {S}", f"X-Auth-Token: {S}",
    f"Cookie: session={A}; theme=dark", f"Set-Cookie: sid={A}; Path=/; HttpOnly", f"{{'Cookie': 'session={A}'}}",
    f"Proxy-Authorization: Basic {A}=",
    # Command lines.
    f"vllm serve m --api-key {S}", f"vllm serve m --hf-token={S}", f"curl -u bob:{S} https://h",
    f"curl --user bob:{S} x",
    f"http -a bob:{S} GET h", f"lftp -u bob:{S} h", f"mysql -u root -p{S} db", f"mysqldump -h h -p{S} db",
    f"sshpass -p {S} ssh h", f"sshpass -p{S} ssh h", f"docker login -u bob -p {S} r.example",
    f"podman login r.example -u bob -p {S}", f"helm registry login r -u b --password {S}", f"x --registry-pass {S}",
    f"x --registry-pass={S}", f"skopeo copy --src-creds bob:{S} a b", f"redis-cli -h h -a {S} ping",
    f"openssl rsa -passin pass:{S}", f"kubectl create secret generic s --from-literal=k={S}", f"wget --password={S} u",
    f"curl -H 'X-Api-Key: {S}' u", f"curl -b 'session={A}' u", f"machine h.example login bob password {S}",
    # Addresses that are secrets, as errors of HTTP clients show them.
    f"Max retries exceeded with url: /services/T0AB1CD2E/B0AB1CD2E/{A}", f"<password>{S}</password>",
    f"POST https://discord.com/api/webhooks/112233445566778899/{A}-x",
]  # fmt: skip


def left_in_text(form: str) -> bool:
    redacted = Redactor().text(form)
    return any(secret in redacted for secret in (S, A[:16], A[:16].upper(), "Horse", "Words", "0123456789abcdef"))


@pytest.mark.parametrize("library", [True, False], ids=["one-pass", "standard-library"])
def test_at_most_five_everyday_forms_stay_in_text(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not library:
        monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    assert len(FORMS) >= 91
    assert [form for form in FORMS if left_in_text(form)][STAY_AT_MOST:] == []


@pytest.mark.parametrize(
    "line",
    [
        "docker run -u 1000:1000 --rm image", "python -u train.py:main", "chown -R app:app /srv",
        "{'pass_config': {'fuse_norm_quant': False}, 'cache_key': 'layers.0.attention'}",
        "Running pass: FixFunctionalizationPass", "passed: 312 in 4.2s", "bypass=enabled_always", "multi-pass decoding",
        "prefix cache key=layer_norm_0001 hit", "num_key_value_heads: 8, key: value_states",
        "primary_key: request_identifier",
        "eos_token: '<|endoftext|>', pad_token_id: 151643", "max_tokens=4096 tokens/s: 812.4", "sort key: timestamp",
        "cookies are not used here", "login shell of the user", "mysql -u root -h host database",
        "credentials: none found",
        "The basic idea is simple", "monkey=banana_split", "keyboard: standard-layout",
        "KEY_LENGTH=4096 CACHE_SIZE=100000",
        "docker login succeeded for registry.example", "curl -u is the flag for a user",
        "genai-perf profile -m llama -u http://localhost:8000/v1 --streaming", "rsync -a bob@host:/data/models7/x /srv",
        "podman run registry/login-service -p 8000:8000", "podman run login-service -p 127.0.0.1:80:8000 image",
        "machine learning with a login node", "GET /api/services/tokenize/BatchedRequests/abcdefghijklmnopq",
        "usage: <user> <password> </srv", "see /api/webhooks/ for a list",
    ],
)  # fmt: skip
def test_a_line_that_only_looks_like_one_is_left_alone(line: str) -> None:
    assert Redactor().text(line) == line


def test_logs_of_a_real_vllm_are_left_as_they_are() -> None:
    for path in sorted((LOGS / "real-vllm").glob("*.log")):
        assert Redactor().data(path.read_bytes()) == path.read_bytes(), path.name


OWN = {
    "DATABASE_URL": "postgres://app:db-Pass-7731@db:5432/app",
    "HTTPS_PROXY": "http://bob:proxy%2FPass-42@proxy:3128",
    "PIP_INDEX_URL": "https://__token__:index-Pass-9@pkgs.example/simple/",
    "EXTRA_ARGS": "--hf-token flag-Pass-55 --port 8000",
}
ARGV = ("serve", "m", "--api-key", "argv-Pass-1", "--registry-pass=argv-Pass-2", "sshpass", "-p", "argv-Pass-3")
SECRETS = [
    "db-Pass-7731", "proxy/Pass-42", "proxy%2FPass-42", "index-Pass-9", "flag-Pass-55",
    "argv-Pass-1", "argv-Pass-2", "argv-Pass-3",
]  # fmt: skip


def test_what_a_program_was_given_is_known_wherever_it_prints_it() -> None:
    redacted = Redactor(secret_values(OWN, ARGV)).text("it printed " + " and ".join(SECRETS))
    assert [secret for secret in SECRETS if secret in redacted] == []


def test_a_word_of_an_address_that_is_its_password_too_does_not_blacken_the_log() -> None:
    literals = secret_values({"URL": "postgres://postgres:postgres@db/x", "PORT": "8000", "NAME": "hello world"})
    assert literals == ()


@pytest.mark.parametrize(
    ("env", "argv"),
    [
        ({}, ("vllm", "serve", "m", "--long-prefill-token-threshold", "131072")),
        ({}, ("vllm", "serve", "m", "--hf-overrides", '{"pad_token": 151643}')),
        ({}, ("x", "--auth", "required", "--cookie", "enabled")),
        ({}, ("x", "--password-file", "/run/secrets/pw1", "--secret-id=projects-main-42")),
        ({}, ("bash", "-c", "TOKEN=$HF_TOKEN PASSWORD=${PASSWORD:-default} x --api-key $KEY --token $(cat /t)")),
        ({"NOTE": "token: missing, the password: unknown", "MAX_TOKEN": "131072", "DB_CREDENTIALS": "default"}, ()),
    ],
)
def test_a_number_or_a_plain_word_is_no_known_value(env: dict[str, str], argv: tuple[str, ...]) -> None:
    assert secret_values(env, argv) == ()


def test_a_number_is_a_known_value_where_it_is_a_password() -> None:
    text = Redactor(secret_values({"PGPASSWORD": "73519264"}, ("x", "--password", "40281733"))).text(
        "73519264 40281733"
    )
    assert text == "[redacted known-value] [redacted known-value]"


@pytest.mark.parametrize("program", [("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server")])
def test_each_of_several_keys_that_vllm_is_given_is_a_secret(program: tuple[str, ...]) -> None:
    argv = (*program, "m", "--api-key", "first-Key-12", "second-Key-34", "--port", "8000", "last")
    redactor = Redactor(secret_values({}, argv))
    hidden = ("[redacted value]",) * 2
    assert redactor.argv(argv) == (*program, "m", "--api-key", *hidden, "--port", "8000", "last")
    assert "Key" not in redactor.text("args: {'api_key': ['first-Key-12', 'second-Key-34'], 'port': 8000}")


def test_a_word_after_the_value_of_another_programs_flag_is_none() -> None:
    argv = ("python", "bench.py", "--api-key", "first-Key-12", "run-name")
    assert Redactor().argv(argv) == ("python", "bench.py", "--api-key", "[redacted value]", "run-name")


def test_nothing_a_program_was_given_stays_in_its_core(tmp_path: Path) -> None:
    """A real core of a real process, in whose memory argv, environment and parsed copies of both are."""
    if not (gcore := shutil.which("gcore")):
        pytest.skip("gcore is not installed: apt-get install gdb")
    code = (
        "import os, sys, time; from urllib.parse import urlsplit; given = list(os.environ.values()); "
        "kept = [*sys.argv, *given, *(urlsplit(value).password for value in given)]; "
        "print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, *ARGV], env=OWN, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        subprocess.run([gcore, "-o", str(tmp_path / "core"), str(process.pid)], check=True, capture_output=True)
        process.kill()
    (core,) = tmp_path.glob("core.*")
    assert [secret for secret in SECRETS if secret.encode() in core.read_bytes()] != []
    assert mask_file(core, secret_values(OWN, ARGV)) > 0
    held = core.read_bytes()
    assert [secret for secret in SECRETS if secret.encode() in held] == []
