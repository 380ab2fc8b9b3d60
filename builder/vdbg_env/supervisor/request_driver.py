"""Drive a server: wait until it responds, replay recorded requests, and end; a separate program.

`python -I -S request_driver.py '{"ready_url": ..., "ready_timeout_s": ..., "replay": PATH, "concurrency": 1}'`

The recording is OpenAI's batch input, which `vllm run-batch` reads too: one JSON object a line with `method`, `url`
(a path) and `body`; `headers` is optional. After each change one line of JSON is printed with the counts so far, and
the last one has a `message`. Requests carry the API key of VLLM_API_KEY. Exit status: 0 all sent, 3 the server never
became ready, 4 it stopped answering on the way, 5 there is nothing to send.
"""

import http.client
import json
import os
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

ANSWER_TIMEOUT_S = 600.0
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
    replay(url, requests, document.get("concurrency", 1), tally)
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
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            if send(url, {"method": "GET", "url": urlsplit(url).path or "/"}, timeout_s=5.0) < 400:
                return True
        except NO_ANSWER:
            pass
        time.sleep(0.2)
    return False


def replay(base: str, requests: list[dict[str, Any]], concurrency: int, tally: Tally) -> None:
    """Send the requests in order, `concurrency` at a time.

    After three requests in a row without an answer the rest is not sent: the server is gone.
    """
    queue = iter(requests)

    def work() -> None:
        while True:
            with tally.lock:
                request = None if tally.gone >= 3 else next(queue, None)
            if request is None:
                return
            tally.add("sent")
            try:
                status = send(base, request)
            except NO_ANSWER as error:
                tally.lost(error)
            else:
                tally.add("answered" if status < 400 else "refused" if status < 500 else "failed")

    threads = [threading.Thread(target=work) for _ in range(max(1, concurrency))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send(base: str, request: dict[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S) -> int:
    """Send one request and return its HTTP status, 500 for a stream that ends in an error; raises one of NO_ANSWER."""
    parts = urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    body = request.get("body")
    data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
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


def headers(request: dict[str, Any], data: bytes | None) -> dict[str, str]:
    """Return the recorded headers over ours: the content's type, and the key that the server itself was given."""
    key = os.environ.get("VLLM_API_KEY")
    ours = {"Content-Type": "application/json"} if data else {}
    if key:
        ours["Authorization"] = f"Bearer {key}"
    return {**ours, **request.get("headers", {})}


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
