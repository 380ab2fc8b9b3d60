"""Drive a server: wait until it responds, replay recorded requests, and end; a separate program.

`python -I -S request_driver.py '{"ready_url": ..., "ready_timeout_s": ..., "replay": PATH, "concurrency": null}'`

The recording is OpenAI's batch input, which `vllm run-batch` reads too: one JSON object a line with `method`, `url`
(a path) and `body`, or `body_base64` for bytes. `headers` is optional. Where every request has `at_s`, the seconds
after the first one, each is sent at its time, whether those before it were answered or not; `concurrency` bounds how
many are under way. Else they are sent one after the other, or `concurrency` at a time.

After each change one line of JSON is printed with the counts so far, and the last one has a `message`. Requests carry
the API key of VLLM_API_KEY. Exit status: 0 all sent, 3 the server never became ready, 4 it stopped answering on the
way, 5 there is nothing to send.
"""

import base64
import http.client
import json
import os
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

ANSWER_TIMEOUT_S = 600.0
MOST_AT_ONCE = 256  # vLLM runs as many sequences by default; more would wait there
GONE_AFTER = 3
LONGEST_LOOK_S = 15.0  # at a server that is not ready; more passed while its scheduler had stopped us
LONGEST_GAP_S = 30.0  # between two arrivals; a night without traffic is not waited for
NO_ANSWER = (OSError, http.client.HTTPException)
ALL_SENT, NEVER_READY, UNANSWERED, NOTHING_TO_SEND = 0, 3, 4, 5
# What vLLM puts into a stream that it has to break off: the status was sent before, and said that all is well.
STREAMED_ERROR = b'data: {"error"'


class Tally:
    """The counts so far: what was sent is answered, refused (4xx), failed (5xx or no answer), or under way."""

    def __init__(self, recorded: int = 0) -> None:
        self.lock = threading.Lock()
        self.counts = {"recorded": recorded, "ready": False, "sent": 0, "answered": 0, "refused": 0, "failed": 0}
        self.gone = 0  # requests in a row that got no answer at all
        self.server_gone = threading.Event()
        self.why_gone = ""

    def add(self, name: str) -> None:
        """Count one more of `name`, and print all counts."""
        with self.lock:
            self.counts[name] += 1
            self.gone = self.gone if name == "sent" else 0
            self.report()

    def lost(self, error: Exception) -> None:
        """Count a request without an answer."""
        with self.lock:
            self.counts["failed"] += 1
            self.gone += 1
            if self.gone >= GONE_AFTER:
                self.server_gone.set()
            self.why_gone = repr(error)
            self.report()

    def report(self, message: str | None = None) -> None:
        """Print one line: the counts, and with a message the reason why this is the end."""
        print(json.dumps(self.counts | ({"message": message} if message else {})), flush=True)


def main(document: dict[str, Any]) -> int:
    """Wait, replay, and report in the last line how it went."""
    try:
        requests = read_requests(document["replay"])
    except (OSError, ValueError) as error:
        Tally().report(f"{document['replay']}: {error}")
        return NOTHING_TO_SEND
    tally = Tally(len(requests))
    url = document["ready_url"]
    if not wait_until_ready(url, document["ready_timeout_s"]):
        tally.report(f"the server was not ready after {document['ready_timeout_s']:g} s: nothing answered at {url}")
        return NEVER_READY
    tally.counts["ready"] = True
    tally.report()
    replay(url, requests, document.get("concurrency"), tally)
    tally.report(summary(tally.counts) + (f" ({tally.why_gone})" if tally.why_gone else ""))
    return UNANSWERED if tally.gone else ALL_SENT


def read_requests(path: str) -> list[dict[str, Any]]:
    """Return the requests of a recording; raises OSError or ValueError where it has none."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs more than it gives here
        requests = [json.loads(line) for line in file if line.strip()]
    if not requests or not all(isinstance(request, dict) for request in requests):
        raise ValueError("it holds no requests; it needs one JSON object on each line: method, url, body")
    return requests


def summary(counts: dict[str, int]) -> str:
    """Return the counts in words."""
    text = f"{counts['sent']} of {counts['recorded']} requests sent, {counts['answered']} answered"
    text += f", {counts['refused']} refused" if counts["refused"] else ""
    return text + (f", {counts['failed']} failed" if counts["failed"] else "")


def wait_until_ready(url: str, timeout_s: float) -> bool:
    """Ask `url` until it answers below 400, for `timeout_s` seconds at most."""
    left = timeout_s
    while left > 0:
        began = time.monotonic()
        try:
            if send(url, {"method": "GET", "url": urlsplit(url).path or "/"}, timeout_s=5.0) < 400:
                return True
        except NO_ANSWER:
            pass
        time.sleep(0.2)
        left -= min(time.monotonic() - began, LONGEST_LOOK_S)
    return False


def replay(base: str, requests: list[dict[str, Any]], concurrency: int | None, tally: Tally) -> None:
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
                status = send_once_more(base, request)
            except NO_ANSWER as error:
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


def send(base: str, request: dict[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S) -> int:
    """Send one request and return its HTTP status, 500 for a stream that ends in an error; raises one of NO_ANSWER."""
    parts = urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    data = content(request)
    try:
        connection.request(request.get("method", "POST"), request.get("url", "/"), data, headers(request, data))
        answer = connection.getresponse()
        error, rest = False, b""
        while chunk := answer.read1(1 << 16):
            error = error or STREAMED_ERROR in rest + chunk
            rest = chunk[-len(STREAMED_ERROR) :]
        return 500 if error else answer.status
    finally:
        connection.close()


def send_once_more(base: str, request: dict[str, Any]) -> int:
    """Send one request, and again if we did not run while its answer was due: a suspended job finds no answer."""
    began = time.monotonic()
    try:
        return send(base, request)
    except NO_ANSWER:
        if time.monotonic() - began < ANSWER_TIMEOUT_S + LONGEST_LOOK_S:
            raise
        return send(base, request)


def content(request: dict[str, Any]) -> bytes | None:
    """Return the bytes of a request's body."""
    if "body_base64" in request:
        return base64.b64decode(request["body_base64"])
    body = request.get("body")
    return None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()


def headers(request: dict[str, Any], data: bytes | None) -> dict[str, str]:
    """Return the recorded headers over ours: the content's type, and the key that the server itself was given."""
    recorded: dict[str, str] = request.get("headers", {})
    key = os.environ.get("VLLM_API_KEY")
    ours = {"Content-Type": "application/json"} if data else {}
    if key:
        ours["Authorization"] = f"Bearer {key}"
    named = {name.lower() for name in recorded}
    return {name: value for name, value in ours.items() if name.lower() not in named} | recorded


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
