"""What a client takes for a whole cluster: a server of custom resources behind the names of pods and jobs.

Requests are passed on as they are, but for the names of groups. Objects that a client makes are checked strictly, and
what a cluster would refuse or lose can be played: a missing right, a watch that is too old, a server that is gone.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import kubernetes_validate

from tests.k8s.server import ApiServer

KINDS = {
    "batch.test": {"jobs": "Job"},
    "core.test": {"pods": "Pod", "services": "Service", "secrets": "Secret", "events": "Event"},
}
OF_GROUP = {"batch.test": "batch/v1", "core.test": "v1"}
_PLACES = (("/apis/batch/v1/", "/apis/batch.test/v1/"), ("/api/v1/", "/apis/core.test/v1/"))
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


def define(server: ApiServer) -> None:
    """Make the server know the kinds; returns when it serves all of them."""
    for group, kinds in KINDS.items():
        for plural, kind in kinds.items():
            anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            about = {"type": "object", "properties": {"name": {"type": "string"}}, **anything}
            version: dict[str, Any] = {
                "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {**anything, "properties": {"involvedObject": about}}},
                "selectableFields": [{"jsonPath": ".involvedObject.name"}],
            }  # fmt: skip
            names = {"plural": plural, "kind": kind, "singular": kind.lower(), "listKind": f"{kind}List"}
            status, said = server.call(
                "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                {
                    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                    "metadata": {"name": f"{plural}.{group}"},
                    "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
                },
            )  # fmt: skip
            assert status == 201, said
    await_kinds(server)


def await_kinds(server: ApiServer) -> None:
    """Wait until the server serves all kinds: after a start it takes a while."""
    end = time.monotonic() + 60
    for path in (f"/apis/{group}/v1/namespaces/default/{plural}" for group, kinds in KINDS.items() for plural in kinds):
        while server.call("GET", path)[0] != 200:
            assert time.monotonic() < end, f"{path} is not served"
            time.sleep(0.05)


class Front:
    """The address that clients are given; `log` returns what a pod printed."""

    def __init__(self, server: ApiServer, log: Callable[[str], bytes | None]) -> None:
        self.server = server
        self.log = log
        self.denied: set[tuple[str, str]] = set()
        self.expire_watches = 0
        self.pauses_at: tuple[str, str] | None = None  # the verb and resource of a request that is not answered
        self.invalid: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.made: list[dict[str, Any]] = []
        front = self

        class Handler(_Handler):
            owner = front

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def check(self, document: dict[str, Any]) -> None:
        self.made.append(document)
        try:
            kubernetes_validate.validate(document, "1.32", strict=True)
        except kubernetes_validate.ValidationError as error:
            self.invalid.append(f"{document['kind']}: {error}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: ClassVar[Front]

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _passed_on(self) -> None:
        front = self.owner
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        verb, resource = self._right(path, query)
        front.asked.append((verb, resource))
        if (verb, resource) == front.pauses_at:
            front.pauses_at = None
            front.server.pause()
        if (verb, resource) in front.denied:
            return self._answer(403, _forbidden(verb, resource))
        if resource == "pods/log":
            log = front.log(path.split("/")[-2])
            return self._answer(400 if log is None else 200, log or b"", "text/plain")
        if verb == "watch" and front.expire_watches:
            front.expire_watches -= 1
            query = re.sub(r"resourceVersion=\d+", "resourceVersion=1", query)
        if body and verb == "create":
            front.check(json.loads(body))
        for ours, theirs in _PLACES:
            path = path.replace(ours, theirs)
        try:
            self._relay(path + (f"?{query}" if query else ""), _lent(body))
        except (OSError, http.client.HTTPException):  # the server is gone: so is the connection
            self.close_connection = True
        return None

    do_GET = do_POST = do_PATCH = do_DELETE = _passed_on  # noqa: N815

    def _right(self, path: str, query: str) -> tuple[str, str]:
        """Return the verb and the resource as rights are granted for them."""
        words = path.split("/namespaces/")[1].split("/")
        resource = "/".join([words[1], *words[3:]])
        if self.command == "GET" and len(words) == 2:
            return ("watch" if "watch=" in query else "list"), resource
        return _VERBS[self.command], resource

    def _relay(self, path: str, body: bytes) -> None:
        connection = self.owner.server.connection()
        try:
            kind = self.headers.get("Content-Type", "application/json").replace("strategic-merge", "merge")
            connection.request(self.command, path, body or None, {"Content-Type": kind, "Accept": "application/json"})
            response = connection.getresponse()
            self.send_response(response.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in response:
                data = _given_back(line)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        finally:
            connection.close()

    def _answer(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _lent(body: bytes) -> bytes:
    for group, version in OF_GROUP.items():
        body = body.replace(b'"apiVersion": "%s"' % version.encode(), b'"apiVersion": "%s/v1"' % group.encode())
    return body


def _given_back(line: bytes) -> bytes:
    for group, version in OF_GROUP.items():
        line = line.replace(b'"%s/v1"' % group.encode(), b'"%s"' % version.encode())
    return line


def _forbidden(verb: str, resource: str) -> bytes:
    """Return the answer of a server with RBAC."""
    group = "batch" if resource == "jobs" else ""
    name = resource.split("/")[0] + (f".{group}" if group else "")
    message = (
        f'{name} is forbidden: User "alice" cannot {verb} resource "{resource}" in API group "{group}" '
        'in the namespace "default"'
    )
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}
    return json.dumps({**status, "message": message}).encode()
