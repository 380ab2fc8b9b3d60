"""Drive a server: wait until it responds, replay recorded requests, and end; a separate program.

`python -I -S request_driver.py '{"ready_url": ..., "ready_timeout_s": ..., "replay": PATH, "concurrency": null}'`

Nothing is sent to a server before it is proven that a process of the step listens: the step's processes are those
below the parent of this one, its supervisor. The proof is made anew for each connection, before the first byte.

In place of a recording's path, `synthetic` means requests that are made for the server's model: prompts from one token
up to the longest that it takes, one after the other, then side by side.

The recording is OpenAI's batch input, which `vllm run-batch` reads too: one JSON object a line with `method`, `url`
(a path) and `body`, or `body_base64` for bytes. `headers` is optional. A line that is none of that is skipped, counted
and named. Where every request has `at_s`, the seconds
after the first one, each is sent at its time, whether those before it were answered or not; `concurrency` bounds how
many are under way. Else they are sent one after the other, or `concurrency` at a time.

After each change one line of JSON is printed with the counts so far, and the last one has a `message`. Requests carry
the API key of VLLM_API_KEY. Exit status: 0 all sent, 3 the server never became ready, 4 it stopped answering on the
way, 5 there is nothing to send, 6 the server is not proven to be the step's.
"""

import base64
import http.client
import json
import os
import random
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

if __name__ == "__main__":  # as in the supervisor's own __main__: no path leads to the package
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

from vdbg_env.supervisor.sockets import NotOurs, Sockets, connected

ANSWER_TIMEOUT_S = 600.0
MOST_AT_ONCE = 256  # vLLM runs as many sequences by default; more would wait there
GONE_AFTER = 3
SYNTHETIC = "synthetic"
MADE_FOR = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/pooling")
UNKNOWN_LENGTH, NEW_TOKENS, AT_ONCE = 2048, 16, 16  # tokens of a model that names no limit, tokens asked for, requests
ANSWER_KEPT = 1 << 20
LONGEST_LOOK_S = 15.0  # at a server that is not ready; more passed while its scheduler had stopped us
NAMED = 3  # of the lines that were skipped
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,1000}")
BREAKS = re.compile(r"[\r\n\0]")
FOREIGN_S = 10.0  # another's listener where ours is to be: a server that starts may be in between, once
LONGEST_GAP_S = 30.0  # between two arrivals; a night without traffic is not waited for
NO_ANSWER = (OSError, http.client.HTTPException)
ALL_SENT, NEVER_READY, UNANSWERED, NOTHING_TO_SEND, NOT_THE_STEPS = 0, 3, 4, 5, 6
# What vLLM puts into a stream that it has to break off: the status was sent before, and said that all is well.
STREAMED_ERROR = b'data: {"error"'


class Tally:
    """The counts so far: what was sent is answered, refused (4xx), failed (5xx or no answer), or under way."""

    def __init__(self, recorded: int = 0, skipped: Sequence[str] = ()) -> None:
        self.lock = threading.Lock()
        self.counts = {"recorded": recorded, "ready": False, "sent": 0, "answered": 0, "refused": 0, "failed": 0}
        self.skipped = skipped  # the lines of the recording that are no requests, and why
        if skipped:
            self.counts["skipped"] = len(skipped)
        self.gone = 0  # requests in a row that got no answer at all
        self.server_gone = threading.Event()
        self.why_gone = ""
        self.foreign = ""  # why the server is not proven to be the step's

    def add(self, name: str) -> None:
        """Count one more of `name`, and print all counts."""
        with self.lock:
            self.counts[name] += 1
            self.gone = self.gone if name == "sent" else 0
            self.report()

    def lost(self, error: Exception) -> None:
        """Count a request without an answer; after one that met another's server no more is sent."""
        with self.lock:
            self.counts["failed"] += 1
            self.gone += 1
            self.foreign = str(error) if isinstance(error, NotOurs) else self.foreign
            if self.gone >= GONE_AFTER or self.foreign:
                self.server_gone.set()
            self.why_gone = repr(error)
            self.report()

    def report(self, message: str | None = None) -> None:
        """Print one line: the counts, and with a message the reason why this is the end."""
        notes = {"skipped_lines": self.skipped[:NAMED]} if self.skipped else {}
        print(json.dumps(self.counts | notes | ({"message": message} if message else {})), flush=True)


def main(document: dict[str, Any]) -> int:
    """Wait, replay, and report in the last line how it went."""
    made = document["replay"] == SYNTHETIC
    kind = "synthetic requests" if made else "requests"
    try:
        requests, skipped = ([], []) if made else read_requests(document["replay"])
    except (OSError, ValueError) as error:
        Tally().report(f"{document['replay']}: {error}")
        return NOTHING_TO_SEND
    tally = Tally(len(requests), skipped)
    url = document["ready_url"]
    sockets = Sockets(os.getppid())
    try:
        ready = wait_until_ready(url, document["ready_timeout_s"], sockets)
    except NotOurs as error:
        tally.report(f"the server at {url} is not proven to be this step's: {error}")
        return NOT_THE_STEPS
    if not ready:
        tally.report(f"the server was not ready after {document['ready_timeout_s']:g} s: nothing answered at {url}")
        return NEVER_READY
    tally.counts["ready"] = True
    tally.report()
    if made:
        try:
            alone, together = synthetic_requests(url, sockets)
        except (NotOurs, ValueError) as error:
            tally.report(f"no synthetic request could be made: {error}")
            return NOTHING_TO_SEND
        except NO_ANSWER as error:
            tally.lost(error)
            tally.report(f"no synthetic request could be made: {error!r}")
            return UNANSWERED
        tally.counts["recorded"] = len(alone) + len(together)
        replay(url, alone, 1, tally, sockets)
        requests = [] if tally.server_gone.is_set() else together
    replay(url, requests, document.get("concurrency") or (len(requests) if made else None), tally, sockets)
    if tally.foreign:
        tally.report(
            f"{summary(tally.counts, kind)}; then the server was not proven to be this step's: {tally.foreign}"
        )
        return NOT_THE_STEPS
    tally.report(summary(tally.counts, kind) + (f" ({tally.why_gone})" if tally.why_gone else ""))
    return UNANSWERED if tally.gone else ALL_SENT


def read_requests(path: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the requests of a recording, and the lines that are none; raises OSError or ValueError without any."""
    requests, skipped = list[dict[str, Any]](), list[str]()
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs more than it gives here
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                requests.append(checked_request(json.loads(line)))
            except RecursionError:
                skipped.append(f"line {number} is nested too deep")
            except ValueError as error:
                skipped.append(f"line {number} {error if type(error) is ValueError else 'is no JSON'}")
    if not requests:
        first = f" ({skipped[0]})" if skipped else ""
        raise ValueError(f"it holds no requests; it needs one JSON object on each line: method, url, body{first}")
    return requests, skipped


def checked_request(request: Any) -> dict[str, Any]:
    """Return a request that can be sent; raises ValueError that says why a line is none."""
    if not isinstance(request, dict):
        raise ValueError("is no JSON object")
    recorded = request.get("headers", {})
    url = request.get("url", "/")
    if not isinstance(url, str) or not url.startswith("/"):
        raise ValueError("has a url that is no path")
    if not isinstance(request.get("method", "POST"), str) or not TOKEN.fullmatch(request.get("method", "POST")):
        raise ValueError("has a method that HTTP does not have")
    if not isinstance(recorded, dict) or not all(isinstance(value, str) for value in recorded.values()):
        raise ValueError("has headers that are no texts")
    if not all(TOKEN.fullmatch(name) and not BREAKS.search(value) for name, value in recorded.items()):
        raise ValueError("has a header that HTTP does not have")
    try:
        headers(request, content(request))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("has a body or a header that cannot be sent") from None
    return request


def synthetic_requests(url: str, sockets: Sockets) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return requests for the server's model, to send one after the other, and to send side by side.

    Raises ValueError where the server names no model, or has none of the paths that they are for.
    """
    status, body = exchange(url, {"method": "GET", "url": "/v1/models"}, sockets)
    if status >= 400:
        key = "; VLLM_API_KEY must be set for the server and for this program" if status in {401, 403} else ""
        raise ValueError(f"the server answered {status} at /v1/models{key}")
    models = json.loads(body).get("data") or []
    if not models:
        raise ValueError("the server names no model at /v1/models")
    longest = int(models[0].get("max_model_len") or UNKNOWN_LENGTH)
    for path in MADE_FOR:
        probe = made_request(path, models[0]["id"], 1, 1)
        if not 400 <= exchange(url, probe, sockets)[0] < 500:
            break
    else:
        raise ValueError(f"the server has none of the paths {', '.join(MADE_FOR)}")
    new = min(NEW_TOKENS, max(1, longest // 2))
    room = longest - new
    lengths = sorted({min(room, n) for n in (1, 16, 17, 129, 1025, room // 4, room // 2, room) if n > 0})
    alone = [made_request(path, models[0]["id"], n, new, seed) for seed, n in enumerate(lengths)]
    mixed = [lengths[seed % len(lengths)] for seed in range(AT_ONCE)]
    return alone, [made_request(path, models[0]["id"], n, new, AT_ONCE + seed) for seed, n in enumerate(mixed)]


def made_request(path: str, model: str, length: int, new: int, seed: int = 0) -> dict[str, Any]:
    """Return a request whose prompt has about `length` tokens; no two prompts begin alike, so none is in a cache."""
    # Small numbers are tokens of every model, and mostly bytes.
    tokens = random.Random(seed).choices(range(5, 100), k=length)
    body: dict[str, Any] = {"model": model}
    if path == "/v1/chat/completions":
        words = "".join(f"{chr(97 + token % 26)} " for token in tokens[: max(1, length // 4)])
        body["messages"] = [{"role": "user", "content": words}]
    else:
        body["prompt" if path == "/v1/completions" else "input"] = tokens
    if path in {"/v1/completions", "/v1/chat/completions"}:
        body |= {"max_tokens": new, "ignore_eos": True, "temperature": 0.0 if seed % 2 else 1.0, "seed": seed}
    return {"url": path, "body": body}


def summary(counts: dict[str, int], kind: str = "requests") -> str:
    """Return the counts in words."""
    text = f"{counts['sent']} of {counts['recorded']} {kind} sent, {counts['answered']} answered"
    text += f", {counts['refused']} refused" if counts["refused"] else ""
    return text + (f", {counts['failed']} failed" if counts["failed"] else "")


def wait_until_ready(url: str, timeout_s: float, sockets: Sockets) -> bool:
    """Ask `url` until it answers below 400, for `timeout_s` seconds at most; raises NotOurs for another's server."""
    left, foreign_s = timeout_s, 0.0
    while left > 0:
        began, foreign = time.monotonic(), None
        try:
            if send(url, {"method": "GET", "url": urlsplit(url).path or "/"}, sockets, timeout_s=5.0) < 400:
                return True
        except NotOurs as error:
            foreign = error
        except NO_ANSWER:
            pass
        time.sleep(0.2)
        passed = min(time.monotonic() - began, LONGEST_LOOK_S)
        left, foreign_s = left - passed, foreign_s + passed if foreign else 0.0
        if foreign and foreign_s >= min(FOREIGN_S, timeout_s):
            raise foreign
    return False


def replay(base: str, requests: list[dict[str, Any]], concurrency: int | None, tally: Tally, sockets: Sockets) -> None:
    """Send the requests in order: at their times where they have them, else `concurrency` at a time.

    After three requests in a row without an answer the rest is not sent: the server is gone.
    """
    times = send_times(requests)
    at_once = concurrency or (MOST_AT_ONCE if times else 1)
    queue, begin, turn = iter(enumerate(requests)), time.monotonic(), threading.Lock()

    def work() -> None:
        while True:
            with turn:  # they leave in their order: one that waits for its time holds the others back
                position, request = next(queue, (0, None))
                wait = begin + times[position] - time.monotonic() if times else 0.0
                if request is None or tally.server_gone.wait(max(0.0, wait)):
                    return
                tally.add("sent")
            try:
                status = send_once_more(base, request, sockets)
            except (NotOurs, *NO_ANSWER) as error:
                tally.lost(error)
            else:
                tally.add("answered" if status < 400 else "refused" if status < 500 else "failed")

    threads = [threading.Thread(target=work) for _ in range(min(at_once, len(requests)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_times(requests: list[dict[str, Any]]) -> list[float]:
    """Return when each request is sent, in seconds after the first; empty where not every one has its time."""
    arrivals = [request["at_s"] for request in requests if isinstance(request.get("at_s"), int | float)]
    if len(arrivals) < len(requests):
        return []
    times, last = [0.0], arrivals[0]
    for one in arrivals[1:]:
        times.append(times[-1] + min(max(0.0, one - last), LONGEST_GAP_S))
        last = one
    return times


def send(base: str, request: dict[str, Any], sockets: Sockets, *, timeout_s: float = ANSWER_TIMEOUT_S) -> int:
    """Send one request and return its HTTP status, 500 for a stream that ends in an error; raises as `exchange`."""
    return exchange(base, request, sockets, timeout_s=timeout_s)[0]


def exchange(
    base: str, request: dict[str, Any], sockets: Sockets, *, timeout_s: float = ANSWER_TIMEOUT_S
) -> tuple[int, bytes]:
    """Send one request and return its HTTP status, 500 for a stream that ends in an error, and how its answer begins.

    Raises one of NO_ANSWER, and NotOurs where nothing was sent, because the server is not proven to be the step's.
    """
    connection = ToTheStep(base, timeout_s, sockets)
    data = content(request)
    try:
        connection.request(request.get("method", "POST"), path(request), data, headers(request, data))
        answer = connection.getresponse()
        error, rest, begin = False, b"", b""
        while chunk := answer.read1(1 << 16):
            error = error or STREAMED_ERROR in rest + chunk
            rest = chunk[-len(STREAMED_ERROR) :]
            begin += chunk[: max(0, ANSWER_KEPT - len(begin))]
        return 500 if error else answer.status, begin
    finally:
        connection.close()


class ToTheStep(http.client.HTTPConnection):
    """A connection that carries no byte before its other end is proven to be a process of the step."""

    def __init__(self, base: str, timeout_s: float, sockets: Sockets) -> None:
        parts = urlsplit(base)
        self._secure = parts.scheme == "https"
        port = parts.port or (443 if self._secure else 80)
        super().__init__(parts.hostname or "127.0.0.1", port, timeout=timeout_s)
        self._limit_s = timeout_s
        self._sockets = sockets

    def connect(self) -> None:
        """Connect, and prove whose server it is; a certificate would prove less, and names another host than ours."""
        self.sock = connected(self.host, self.port, self._limit_s, self._sockets)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._secure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)


def send_once_more(base: str, request: dict[str, Any], sockets: Sockets) -> int:
    """Send one request, and again if we did not run while its answer was due: a suspended job finds no answer."""
    began = time.monotonic()
    try:
        return send(base, request, sockets)
    except NO_ANSWER:
        if time.monotonic() - began < ANSWER_TIMEOUT_S + LONGEST_LOOK_S:
            raise
        return send(base, request, sockets)


def content(request: dict[str, Any]) -> bytes | None:
    """Return the bytes of a request's body; raises ValueError or TypeError for one that has none."""
    if "body_base64" in request:
        return base64.b64decode(request["body_base64"], validate=True)
    body = request.get("body")
    if isinstance(body, str):
        return body.encode("utf-8", "surrogateescape")
    return None if body is None else json.dumps(body).encode()


def path(request: dict[str, Any]) -> str:
    """Return a request's path; what an address may not have, as clients send it, is put in percent signs."""
    given: str = request.get("url", "/")
    return quote(given.encode("utf-8", "surrogatepass"), safe="".join(map(chr, range(0x21, 0x7F))))


def headers(request: dict[str, Any], data: bytes | None) -> dict[str, bytes]:
    """Return the recorded headers over ours: the content's type, and the key that the server itself was given."""
    recorded: dict[str, str] = request.get("headers", {})
    key = os.environ.get("VLLM_API_KEY")
    ours = {"Content-Type": "application/json"} if data else {}
    if key:
        ours["Authorization"] = f"Bearer {key}"
    named = {name.lower() for name in recorded}
    sent = {name: value for name, value in ours.items() if name.lower() not in named} | recorded
    return {name: value.encode("utf-8", "surrogateescape") for name, value in sent.items()}


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
