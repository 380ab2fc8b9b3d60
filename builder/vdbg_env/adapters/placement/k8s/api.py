"""The calls to the API server that a run needs, each answered by a plain document or by one of two errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from vdbg_env.common.errors import BadInput, HostNotAble, VdbgError
from vdbg_env.common.stop import each_waited, waiting

Document = dict[str, Any]
_CONNECT_S, _ANSWER_S = 5.0, 30.0
_FORBIDDEN = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[\w/]+)" in API group "(?P<group>[\w.]*)"')
_USER = re.compile(r'User "(?P<user>[^"]+)" cannot')
# All that a run asks of the API server, as `kubectl create role` takes it.
RULES = (
    ("create,get,patch,delete", "jobs.batch"),
    ("create", "services,secrets"),
    ("list,watch", "pods"),
    ("get", "pods/log"),
    ("list", "events"),
)


class Away(Exception):
    """The API server did not answer; it may later."""


class Refused(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class KubeApi:
    """The API server of a context, and the namespace that a run uses there."""

    def __init__(self, *, context: str | None, namespace: str | None) -> None:
        client, config = _libraries()
        settings = client.Configuration()
        found = _configure(config, settings, context)
        settings.retries = 0  # what may be asked again is asked again here, and reported
        api = client.ApiClient(settings)
        self.namespace: str = namespace or found
        self._core = client.CoreV1Api(api)
        self._batch = client.BatchV1Api(api)
        self._api_error: type[Exception] = client.ApiException

    def create(self, document: Document) -> Document:
        """Create a Job, a Service or a Secret and return it as it was made."""
        kind = document["kind"].lower()
        group = self._batch if kind == "job" else self._core
        return self._asked(getattr(group, f"create_namespaced_{kind}"), self.namespace, document)

    def job(self, name: str) -> Document | None:
        """Return a Job; None where there is none of this name."""
        try:
            return self._asked(self._batch.read_namespaced_job, name, self.namespace)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def release(self, name: str) -> None:
        """Let a suspended Job start its pods."""
        self._asked(self._batch.patch_namespaced_job, name, self.namespace, {"spec": {"suspend": False}})

    def delete_job(self, name: str, uid: str) -> None:
        """Delete a Job and all that it owns, its pods with their grace; one that is gone, or another one, is left."""
        options = {"propagationPolicy": "Background", **({"preconditions": {"uid": uid}} if uid else {})}
        try:
            self._asked(self._batch.delete_namespaced_job, name, self.namespace, body=options)
        except Refused as refused:
            if refused.status not in {404, 409}:
                raise

    def pods(self, selector: str) -> tuple[list[Document], str]:
        """Return the pods with a label, and the version to watch from."""
        found = self._asked(self._core.list_namespaced_pod, self.namespace, label_selector=selector)
        return found["items"], found["metadata"]["resourceVersion"]

    def watch_pods(self, selector: str, version: str, limit_s: int) -> Iterator[Document]:
        """Yield the events of pods since a version for `limit_s` seconds; raises Refused 410 when that is too old."""
        response = self._opened(
            self._core.list_namespaced_pod, self.namespace, label_selector=selector, resource_version=version,
            watch=True, allow_watch_bookmarks=True, timeout_seconds=limit_s, _request_timeout=(_CONNECT_S, limit_s + 5),
        )  # fmt: skip
        with closing(response):
            rest = b""
            for chunk in self._chunks(response):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = _document(line)
                    if event["type"] == "ERROR":
                        raise Refused(int(event["object"].get("code", 500)), str(event["object"].get("message", "")))
                    yield event

    def log(self, pod: str, *, limit: int) -> bytes:
        """Return the end of a pod's log, at most `limit` bytes."""
        response = self._opened(
            self._core.read_namespaced_pod_log, pod, self.namespace, container="rank", tail_lines=200,
            limit_bytes=limit, _request_timeout=(_CONNECT_S, _ANSWER_S),
        )  # fmt: skip
        with closing(response):
            return b"".join(self._chunks(response))

    def events(self, name: str) -> list[Document]:
        """Return what the cluster reported of an object."""
        found = self._asked(
            self._core.list_namespaced_event, self.namespace, field_selector=f"involvedObject.name={name}"
        )
        items: list[Document] = found["items"]
        return items

    def _asked(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Document:
        keywords.setdefault("_request_timeout", (_CONNECT_S, _ANSWER_S))
        with closing(self._opened(call, *arguments, **keywords)) as response:
            return _document(b"".join(self._chunks(response)))

    def _opened(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return the response of a call, whose status is good; releases of the client differ in who looks at that."""
        from urllib3.exceptions import HTTPError

        try:
            with waiting():
                response = call(*arguments, **keywords, _preload_content=False)
                if 200 <= response.status < 300:
                    return response
                status, body = response.status, response.data
        except self._api_error as error:
            status, body = int(getattr(error, "status", 0) or 0), getattr(error, "body", None) or str(error)
        except (HTTPError, OSError) as error:
            raise Away(_short(error)) from error
        # A server that starts, or a proxy before it, may have no page for a kind: that is not "no such Job".
        if status in {0, 429} or status >= 500 or (status == 404 and not _is_status(body)):
            raise Away(f"status {status}: {_message(body)}")
        raise Refused(status, _message(body))

    def _chunks(self, response: Any) -> Iterator[bytes]:
        from urllib3.exceptions import HTTPError

        try:
            yield from each_waited(response.stream(amt=None, decode_content=False))
        except (HTTPError, OSError) as error:
            raise Away(_short(error)) from error


def not_able(error: Away | Refused, what: str, namespace: str) -> VdbgError:
    """Return the error of a run that needs a call; it says what to grant where a right is missing."""
    if isinstance(error, Away):
        return HostNotAble(
            f"{what}: the API server does not respond",
            cause=str(error),
            next_step="kubectl cluster-info; continue with --resume once it responds",
        )
    denied = _FORBIDDEN.search(error.message)
    if error.status == 403 and denied:
        resource = denied["resource"] + (f".{denied['group']}" if denied["group"] else "")
        user = _USER.search(error.message)
        return HostNotAble(
            f"{what}: {user['user'] if user else 'this user'} may not {denied['verb']} {resource} in {namespace}",
            details=tuple(_grant(namespace, user["user"] if user else "USER")),
            next_step="have someone who may grant them run the lines above; all of them are needed",
        )
    if error.status == 401:
        return HostNotAble(f"{what}: the API server does not accept this user's credentials", cause=error.message)
    return HostNotAble(f"{what}: the API server refused it with status {error.status}", cause=error.message or None)


def _grant(namespace: str, user: str) -> Iterator[str]:
    """Yield the commands that give a user the rights of a run, and no others."""
    account = re.fullmatch(r"system:serviceaccount:([^:]+):([^:]+)", user)
    whom = f"--serviceaccount={account[1]}:{account[2]}" if account else f"--user={user}"
    for at, (verbs, resources) in enumerate(RULES, 1):
        name = f"vdbg-env-{at}"
        yield f"kubectl --namespace {namespace} create role {name} --verb={verbs} --resource={resources}"
        yield f"kubectl --namespace {namespace} create rolebinding {name} --role={name} {whom}"


def _libraries() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ModuleNotFoundError as error:
        raise HostNotAble(
            f"--on k8s needs {error.name}, which is not installed", next_step="pip install 'vdbg-env[k8s]'"
        ) from error
    return client, config


def _configure(config: Any, settings: Any, context: str | None) -> str:
    """Take the kubeconfig, or in a pod without one its service account; returns the namespace that it names."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    file = os.environ.get("KUBECONFIG") or None  # the client reads the variable once, when it is imported
    try:
        contexts, active = config.list_kube_config_contexts(file)
        config.load_kube_config(file, context=context, client_configuration=settings)
        if context:
            active = next(one for one in contexts if one["name"] == context)
        return str((active or {}).get("context", {}).get("namespace") or "default")
    except config.ConfigException as error:
        if context or not in_pod:
            raise BadInput(
                f"no cluster is configured here: {_short(error)}",
                next_step="kubectl config get-contexts; KUBECONFIG names another file, --k8s-context another context",
            ) from error
    config.load_incluster_config(client_configuration=settings)
    try:
        return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip()
    except OSError:
        return "default"


def _document(data: bytes) -> Document:
    """Return an answer; a page that a proxy put in its place means that the server was not reached."""
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Away(f"the answer is not JSON: {_message(data)}")
    return document


def _message(body: object) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()[:300]


def _is_status(body: object) -> bool:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    return text.lstrip().startswith("{") and '"Status"' in text


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
