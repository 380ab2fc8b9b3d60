"""Requests that carry a credential, in the forms that clients, gateways and people give it; and what must stay.

The list was written from the documents of the programs that send them, before the patterns of the redactor were looked
at: a form is added here first.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import quote

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class CredentialForm:
    """A request with `secret` in it, in one form."""

    name: str
    secret: str
    headers: Mapping[str, str] = field(default_factory=dict)
    target: str = "/v1/chat/completions"
    body: bytes = b'{"model": "m"}'


def credential_forms() -> Iterator[CredentialForm]:
    """Yield every form, each with another secret."""
    yield from _in_headers()
    yield from _in_targets()
    yield from _in_json()
    yield from _in_other_bodies()
    yield from _later()


def _secret(name: str) -> str:
    """Return a secret of no known vendor, another for each name: letters and digits, as short as passwords are."""
    return "wQ" + sha256(name.encode()).hexdigest()[:10]


_HEADERS = {
    # header: its value, with the secret in place of {}
    "Authorization": "Bearer {}",
    "authorization": "Token {}",
    "Proxy-Authorization": "Basic {b64}",
    "Authentication": "{}",
    "Authorisation": "Bearer {}",
    "X-Authorization": "ApiKey {}",
    "X-Forwarded-Authorization": "{}",
    "X-Original-Authorization": "Digest username=\"a\", response=\"{}\"",
    "X-Api-Key": "{}",
    "Api-Key": "{}",
    "apikey": "{}",
    "api_key": "{}",
    "key": "{}",
    "X-API-Token": "{}",
    "X-Goog-Api-Key": "{}",
    "X-Goog-Iap-Jwt-Assertion": "{}",
    "X-Amz-Security-Token": "{}",
    "X-Amzn-Oidc-Data": "{}",
    "X-Ms-Token-Aad-Access-Token": "{}",
    "X-Functions-Key": "{}",
    "Ocp-Apim-Subscription-Key": "{}",
    "Deploy-Key": "{}",
    "Fastly-Key": "{}",
    "X-Session-Id": "{}",
    "X-Session": "{}",
    "Session": "{}",
    "Cookie": "sid={}; theme=dark",
    "Set-Cookie": "sid={}; HttpOnly",
    "X-CSRF-Token": "{}",
    "X-XSRF-TOKEN": "{}",
    "X-Auth-Token": "{}",
    "X-Auth": "{}",
    "X-Auth-Request-Access-Token": "{}",
    "X-Forwarded-Access-Token": "{}",
    "X-Forwarded-Client-Cert": "Hash={};Subject=\"CN=a\"",
    "X-SSL-Client-Cert": "{}",
    "X-Vault-Token": "{}",
    "PRIVATE-TOKEN": "{}",
    "JOB-TOKEN": "{}",
    "X-Shopify-Access-Token": "{}",
    "Cf-Access-Jwt-Assertion": "{}",
    "CF-Access-Client-Secret": "{}",
    "DPoP": "{}",
    "X-JWT-Assertion": "{}",
    "X-JWT": "{}",
    "Signature": "sig1=:{}:",
    "X-Hub-Signature-256": "sha256={}",
    "X-Signature": "{}",
    "X-Password": "{}",
    "X-Pass": "{}",
    "X-Pin": "{}",
    "X-OTP": "{}",
    "X-Tenant": "{}",
    "X-Identity": "{}",
    "X-Acme": "{}",
    "Sec-WebSocket-Protocol": "bearer, {}",
    "Referer": "https://portal.example/?token={}",
    "Origin": "https://a:{}@portal.example",
    "X-Original-URL": "/v1/chat/completions?code={}",
    "From": "a:{}@portal.example",
    "Baggage": "jwt={}",
    "User-Agent": "client/1.0 (api-key={})",
    "Accept": "application/json; token={}",
    "X-Request-Id": "Bearer {}",
}  # fmt: skip

_QUERIES = {
    name: name + "={}"
    for name in (
        "token", "api_key", "apikey", "api-key", "API-KEY", "key", "code", "jwt", "sas", "sig", "signature", "auth",
        "access_token", "accessToken", "id_token", "refresh_token", "client_secret", "password", "pwd", "pass", "pw",
        "secret", "session", "sessionid", "sid", "ticket", "otp", "pin", "subscription-key", "X-Amz-Signature",
        "X-Amz-Credential", "X-Amz-Security-Token", "X-Goog-Signature", "credential", "hmac", "assertion", "bearer",
        "SAMLResponse", "q[token]", "user.password", "license_key",
    )
} | {
    "coded name": "api%5Fkey={}",
    "after a semicolon": "a=1;token={}",
    "in a coded address": "next=https%3A%2F%2Fh.example%2F%3Ftoken%3D{}",
    "coded twice": "next=https%253A%252F%252Fh.example%252F%253Faccess_token%253D{}",
    "password of a coded address": "proxy=http%3A%2F%2Fa%3A{}%40h.example%2F",
    "a name without a hint, a value like a key": "x={}{}{}",
    "a value alone": "{}{}{}",
    "JSON": "filter=%7B%22password%22%3A%22{}%22%7D",
}  # fmt: skip

_TARGETS = {
    "password of the address": "http://a:{}@127.0.0.1/v1/chat/completions",
    "parameter of the path": "/v1/chat/completions;jsessionid={}",
    "key in the path": "/v1/api_key={}/chat/completions",
}


def _in_headers() -> Iterator[CredentialForm]:
    for name, pattern in _HEADERS.items():
        secret = _secret("header " + name)
        b64 = base64.b64encode(f"user:{secret}".encode()).decode()
        value = pattern.format(secret, b64=b64)
        yield CredentialForm(f"header {name}", secret, {"Content-Type": JSON, name: value})
    secret = _secret("parameter")
    yield CredentialForm("header Content-Type", secret, {"Content-Type": f"{JSON}; token={secret}"})


def _in_targets() -> Iterator[CredentialForm]:
    json_type = {"Content-Type": JSON}
    for name, pattern in _QUERIES.items():
        secret = _secret("query " + name)
        target = f"/v1/chat/completions?{pattern.format(secret, secret, secret)}"
        yield CredentialForm(f"query {name}", secret, json_type, target)
    for name, pattern in _TARGETS.items():
        secret = _secret("target " + name)
        yield CredentialForm(name, secret, json_type, pattern.format(secret))


_KEYS = (
    "password", "Password", "passwd", "pwd", "pass", "passphrase", "db_password", "spring.datasource.password",
    "api_key", "apiKey", "api-key", "API key", "apikey", "x-api-key", "secret", "client_secret", "clientSecret",
    "token", "access_token", "accessToken", "refresh_token", "id_token", "auth_token", "bearer", "jwt", "authorization",
    "Authorization", "cookie", "set-cookie", "session_token", "session_id", "sessionId", "private_key", "privateKey",
    "license_key", "signing_key", "encryption_key", "ssh_key", "access_key", "secretAccessKey", "aws_secret_access_key",
    "subscription_key", "account_key", "sas_token", "connection_string", "credential", "credentials", "pin", "otp",
    "HF_TOKEN", "OPENAI_API_KEY", "API_PIN", "ServiceAccountKey", "webhook_secret", "signature", "auth",
    "x-functions-key",
)  # fmt: skip


def _shapes(s: str) -> dict[str, Any]:
    """Return documents whose shape hides a credential, by name."""
    inner = json.dumps({"host": "db", "password": s})
    call = {"id": "c1", "type": "function", "function": {"name": "login", "arguments": inner}}
    schema = {"type": "object", "properties": {"password": {"type": "string", "default": s}}}
    return {
        "a header of a tool": {"tools": [{"type": "mcp", "headers": {"Authorization": f"Bearer {s}"}}]},
        "a bare header of a tool": {"tools": [{"type": "mcp", "headers": {"authorization": s}}]},
        "a header of a name of its own": {"tools": [{"type": "mcp", "headers": {"X-Acme-Login": s}}]},
        "the authorization of a tool": {"tools": [{"type": "mcp", "authorization": s}]},
        "the address of a tool": {"tools": [{"type": "mcp", "server_url": f"https://h.example/sse?key={s}"}]},
        "the password of an address": {"proxy": f"http://a:{s}@h.example:3128"},
        "the password of a database": {"messages": [{"role": "user", "content": f"use postgres://a:{s}@db/x"}]},
        "headers as pairs": {"headers": [["Authorization", f"Bearer {s}"], ["X-Acme-Login", s]]},
        "headers as names and values": {"headers": [{"name": "X-Api-Key", "value": s}]},
        "variables": {"env": {"HF_TOKEN": s}},
        "variables as names and values": {"env": [{"name": "HF_TOKEN", "value": s}]},
        "variables as keys and values": {"env": [{"key": "DB_PASSWORD", "value": s}]},
        "a group of credentials": {"credentials": {"user": "a", "value": s}},
        "a pair of user and password": {"auth": ["a", s]},
        "the arguments of a call": {"messages": [{"role": "assistant", "tool_calls": [call]}]},
        "JSON in JSON in JSON": {"a": json.dumps({"b": inner})},
        "the default of a field": {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
        "a header in a prompt": {"prompt": f"GET / HTTP/1.1\r\nAuthorization: Bearer {s}\r\n"},
        "an export in a prompt": {"prompt": f"export OPENAI_API_KEY={s}\nrun"},
        "a flag in a prompt": {"prompt": f"run --api-key {s} now"},
        "user and password of curl": {"prompt": f"curl -u a:{s} https://h.example/"},
        "JSON in a prompt": {"prompt": 'my settings: {"password": "' + s + '"}, why?'},
        "Basic in a prompt": {"prompt": "Authorization: Basic " + base64.b64encode(f"a:{s}".encode()).decode()},
        "a coded parameter": {"prompt": f"https://h.example/?next=%2F%3Faccess_token%3D{s}"},
        "a signed address": {"image_url": {"url": f"https://h.example/a?sv=1&sig={s}&se=2"}},
        "an address signed for AWS": {"image_url": {"url": f"https://h.example/a?X-Amz-Signature={s}"}},
        "a key of an account": {"prompt": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={s}{s}{s}==;"},
        "deep in lists": {"a": [[[{"b": [{"password": s}]}]]]},
        "a list of passwords": {"passwords": [s, "b"]},
        "a list of tokens": {"api_tokens": [s]},
        "metadata": {"metadata": {"token": s}},
        "xargs of vLLM": {"vllm_xargs": {"api_key": s}},
        "the password of a text": {"prompt": f"password: {s}"},
        "Api-Key in a prompt": {"prompt": f"Api-Key {s}"},
        "license in a prompt": {"prompt": f"license_key={s}"},
        "an entry of .netrc": {"prompt": f"machine h.example login a password {s}"},
        "words of a password": {"password": f"correct horse {s}"},
    }  # fmt: skip


_VENDORS = {
    "OpenAI": "sk-proj-{}Zk3qLr8TnVw2XbYc5Md7",
    "Anthropic": "sk-ant-api03-{}Zk3qLr8TnVw2XbYc5Md7",
    "Hugging Face": "hf_{}Zk3qLrTnVwXbYcMdPsQe",
    "GitHub": "ghp_{}Zk3qLr8TnVw2XbYc5Md7PsQe",
    "GitLab": "glpat-{}Zk3qLr8TnV",
    "Slack": "xoxb-123456789012-{}Zk3qLr8T",
    "Google": "AIza{}Zk3qLr8TnVw2XbYc5Md7PsQ",
    "NVIDIA": "nvapi-{}Zk3qLr8TnVw2XbYc5Md7PsQeZk3qLr8TnVw2XbYc5Md7PsQe",
    "a JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.{}Zk3qLr8TnVw2XbYc5Md7",
}


def _in_json() -> Iterator[CredentialForm]:
    for name in _KEYS:
        secret = _secret("key " + name)
        yield _json(f"key {name}", secret, {"model": "m", "extra": {name: secret}})
    number = str(int(sha256(b"number").hexdigest()[:10], 16))
    yield _json("a number", number, {"pin": int(number)})
    for name in _shapes(""):
        secret = _secret("shape " + name)
        yield _json(name, secret, _shapes(secret)[name])
    for vendor, pattern in _VENDORS.items():
        secret = _secret("vendor " + vendor)
        yield _json(f"a key of {vendor} in a prompt", secret, {"prompt": f"why is {pattern.format(secret)} refused?"})
    pem = _secret("pem")
    key = f"-----BEGIN PRIVATE KEY-----\nMII{pem}{pem}{pem}\n-----END PRIVATE KEY-----\n"
    yield _json("a private key", pem, {"prompt": key})
    yield _json(
        "a private key of a service", pem, {"prompt": json.dumps({"type": "service_account", "private_key": key})}
    )


def _json(name: str, secret: str, document: Any) -> CredentialForm:
    return CredentialForm(f"JSON: {name}", secret, {"Content-Type": JSON}, body=json.dumps(document).encode())


def _in_other_bodies() -> Iterator[CredentialForm]:
    s = _secret("body")
    part = f'--b\r\nContent-Disposition: form-data; name="api_key"\r\n\r\n{s}\r\n--b--\r\n'
    plain = json.dumps({"model": "m", "password": s})
    surrogate = f'{{"prompt": "\\ud800", "password": "{s}"}}'
    bodies = {
        "a form": (FORM, f"user=a&password={s}&model=m"),
        "a form with a coded name": (FORM, f"api%5Fkey={s}"),
        "a form with key": (FORM, f"key={s}&a=1"),
        "a form with code": (FORM, f"grant_type=authorization_code&code={s}"),
        "a form with JSON": (FORM, "payload=" + quote(plain)),
        "a form that is not named one": ("", f"password={s}&user=a"),
        "a form with parts": ("multipart/form-data; boundary=b", part),
        "events": ("text/event-stream", f"event: a\ndata: {plain}\n\ndata: [DONE]\n\n"),
        "lines of JSON": ("application/x-ndjson", f"{plain}\n{plain}\n"),
        "XML": ("application/xml", f"<login><user>a</user><password>{s}</password></login>"),
        "an attribute of XML": ("application/xml", f'<login user="a" password="{s}"/>'),
        "YAML": ("application/yaml", f"user: a\npassword: {s}\n"),
        "text": ("text/plain", f"the password is password={s}"),
        "a text of JSON": (JSON, json.dumps(f"password={s}")),
        "JSON of another name": ("application/vnd.acme+json", plain),
        "JSON without a name": ("", plain),
        "JSON with a comma too many": (JSON, f'{{"password": "{s}",}}'),
        "JSON that is cut": (JSON, f'{{"model": "m", "password": "{s}'),
        "JSON in single quotes": (JSON, f"{{'password': '{s}'}}"),
        "JSON with a name twice": (JSON, f'{{"password": "{s}", "password": "x"}}'),
        "JSON with a coded name": (JSON, f'{{"pass\\u0077ord": "{s}"}}'),
        "JSON with a coded value": (JSON, '{"password": "' + "".join(f"\\u{ord(c):04x}" for c in s) + '"}'),
        "JSON with a lone surrogate": (JSON, surrogate),
        "JSON with NaN": (JSON, f'{{"a": NaN, "password": "{s}"}}'),
        "deep JSON": (JSON, "[" * 150 + plain + "]" * 150),
        "JSON that is too deep": (JSON, "[" * 20_000 + plain + "]" * 20_000),
        "JSON with a number that is too long": (JSON, f'{{"a": {"9" * 5000}, "password": "{s}"}}'),
    }  # fmt: skip
    for name, (kind, text) in bodies.items():
        headers = {"Content-Type": kind} if kind else {}
        yield CredentialForm(f"body: {name}", s, headers, body=text.encode())
    coded = {
        "JSON with a mark of its order": b"\xef\xbb\xbf" + plain.encode(),
        "JSON in UTF-16": plain.encode("utf-16"),
        "JSON in UTF-32": plain.encode("utf-32"),
        "JSON in Latin-1": json.dumps({"prompt": "café", "password": s}, ensure_ascii=False).encode("latin-1"),
        "bytes that are no text": b"\x00\xff\xfe password=" + s.encode() + b"\x00\xff",
    }
    for name, data in coded.items():
        yield CredentialForm(f"body: {name}", s, {"Content-Type": JSON}, body=data)
    packed = {"Content-Type": JSON, "Content-Encoding": "gzip"}
    yield CredentialForm("body: JSON in gzip", s, packed, body=gzip.compress(plain.encode()))


_LATER_KEYS = (
    "passWord", "user_password", "PASSWORD_HASH", "userPwd", "mysql_pwd", "authToken", "auth-token", "BearerToken",
    "x_auth", "basic_auth", "proxyAuthorization", "secretKey", "SECRET", "app_secret", "consumerSecret", "privKey",
    "pem_key", "tls_key", "sshPassword", "sessionToken", "csrfToken", "storage_key", "azureKey", "gcp_credentials",
    "service_account_json", "webhookUrl", "otp_code", "pin_code", "mfa_code", "recovery_code", "seed_phrase",
    "mnemonic",
    "licenseKey", "activation_key", "hf_token", "ngc_api_key", "key_secret", "access_key_id", "sig_v4",
)  # fmt: skip
_LATER_QUERIES = (
    "apiToken", "x-api-key", "authKey", "hapikey", "consumer_secret", "oauth_signature", "sharedKey", "pass%77ord",
    "PASSWORD", "user[password]", "AWSAccessKeyId", "Signature", "id_token_hint", "client_assertion", "code_verifier",
)  # fmt: skip


def _later() -> Iterator[CredentialForm]:
    """Yield forms thought of after the first repair: 11 of 124 stayed then, of which a value in prose stays."""
    for name in _LATER_KEYS:
        secret = _secret("later key " + name)
        yield _json(f"later: {name}", secret, {"extra": {name: secret}})
    for name in _LATER_QUERIES:
        secret = _secret("later query " + name)
        yield CredentialForm(f"query, later: {name}", secret, {}, f"/v1/completions?a=1&{name}={secret}&z=2")
    s = _secret("later")
    encoded = base64.b64encode(f"a:{s}".encode()).decode()
    shapes: dict[str, Any] = {
        "Name and Value": {"vars": [{"Name": "PASSWORD", "Value": s}]},
        "id and val": {"vars": [{"id": "api_key", "val": s}]},
        "pairs": {"vars": [["password", s], ["a", "b"]]},
        "words of a command": {"args": ["--password", s]},
        "a flag with a value": {"args": ["--api-key=" + s]},
        "a command": {"command": f"mysql -u root -p{s}"},
        "YAML in a prompt": {"prompt": f"db:\n  password: {s}\n  host: x"},
        "TOML in a prompt": {"prompt": f'[db]\npassword = "{s}"'},
        "an INI file in a prompt": {"prompt": f"[default]\naws_secret_access_key = {s}"},
        "a file of docker login": {"prompt": json.dumps({"auths": {"r": {"auth": encoded}}})},
        "Python in a prompt": {"prompt": f'client = OpenAI(api_key="{s}")'},
        "JavaScript in a prompt": {"prompt": f"const apiKey = '{s}';"},
        "a header of curl": {"prompt": f"curl -H 'X-Api-Key: {s}' https://h"},
        "an address of Redis": {"prompt": f"redis://:{s}@h:6379/0"},
        "an address of JDBC": {"prompt": f"jdbc:postgresql://h/db?user=a&password={s}"},
        "words of ODBC": {"prompt": f"Server=h;Uid=a;Pwd={s};"},
        "an address of git": {"prompt": f"git clone https://{s}@github.com/a/b"},
    }
    for name, document in shapes.items():
        yield _json(f"later: {name}", s, document)


KEPT: tuple[dict[str, Any], ...] = (
    {"model": "m", "max_tokens": 16, "max_completion_tokens": 9, "min_tokens": 1, "seed": 7, "stream": True},
    {"model": "m", "prompt": [1, 2, 3], "stop_token_ids": [2], "logit_bias": {"11": 1.5}, "skip_special_tokens": False},
    {"model": "m", "prompt_token_ids": [5, 6], "tokens": [7], "truncate_prompt_tokens": 8, "return_token_ids": True},
    {"model": "m", "messages": [{"role": "user", "content": "What is a token? A key to attention.\nKey: value."}]},
    {"model": "m", "messages": [{"role": "system", "content": "Passwords must be long. The secret of a good tea:"}]},
    {"model": "m", "tool_choice": "auto", "tools": [{"type": "function", "function": {"name": "login", "parameters": {
        "type": "object", "required": ["password", "key"],
        "properties": {"password": {"type": "string", "description": "The password"}, "key": {"type": "string"}},
    }}}]},
    {"model": "m", "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": {
        "type": "object", "properties": {"token": {"enum": ["a", "b"], "type": "string"}, "n": {"type": "integer"}},
    }}}},
    {"model": "m", "guided_regex": r"\w+@\w+\.com\n", "guided_choice": ["pass", "fail"], "best_of": 2, "n": 2},
    {"model": "m", "stop": ["</s>", "password"], "add_special_tokens": True, "echo": False, "priority": 1},
    {"model": "m", "prompt": "def f(token: str, key=None):\n    return hash(key)", "prompt_logprobs": 1},
    {"model": "m", "input": "the author's session on design patterns", "encoding_format": "float", "dimensions": 8},
    {"model": "m", "ignore_eos": True, "kv_transfer_params": {"do_remote_decode": True, "remote_block_ids": [1]}},
)  # fmt: skip
"""Bodies without a credential: a recording that changed them would replay another request."""

KEPT_QUERIES = ("", "api-version=2024-10-21", "level=1&tags=weights", "stream=true&timeout=30", "a=&b", "beta=true")
KEPT_HEADERS = {
    "Content-Type": "application/json; charset=utf-8",
    "Accept": "text/event-stream",
    "Accept-Language": "de, en;q=0.5",
    "X-Request-Id": "3f2c-11",
    "X-data-parallel-rank": "1",
    "OpenAI-Beta": "assistants=v2",
    "anthropic-version": "2023-06-01",
}
