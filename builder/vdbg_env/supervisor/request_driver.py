"""Drive a server: wait until it responds, replay recorded requests, and end; a separate program.

`python -I -S driver.py '{"ready_url": ..., "ready_timeout_s": ..., "replay": PATH|null, "concurrency": 1}'`

The recording is OpenAI's batch input, which `vllm run-batch` reads too: one JSON object a line with `method`, `url`
(a path), `body` and, as an addition, `headers`. Requests carry the API key of VLLM_API_KEY. Exit status: 0 all sent, 3
the server never became ready, 4 it stopped answering on the way, 5 there is nothing to send.
"""

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

ANSWER_TIMEOUT_S = 600.0
NO_ANSWER = (OSError, http.client.HTTPException)
ALL_SENT, NEVER_READY, UNANSWERED, NOTHING_TO_SEND = 0, 3, 4, 5


def main(document: dict[str, Any]) -> int:
    """Wait, replay, and report the result in the last line."""
    try:
        requests = read_requests(document["replay"])
    except (OSError, ValueError) as error:
        print(f"{document['replay']}: {error}", flush=True)
        return NOTHING_TO_SEND
    url = document["ready_url"]
    if not wait_until_ready(url, document["ready_timeout_s"]):
        print(f"the server was not ready at {url} after {document['ready_timeout_s']:g} s", flush=True)
        return NEVER_READY
    answers = replay(document["ready_url"], requests, document.get("concurrency", 1))
    unanswered = [answer for answer in answers if isinstance(answer, str)]
    failed = sum(1 for answer in answers if isinstance(answer, int) and answer >= 400)
    sent = f"{len(answers)} of {len(requests)} requests sent, {failed} answered with an error"
    why = f" ({unanswered[-1]})" if unanswered else ""
    print(f"{sent}, {len(unanswered)} not at all{why}", flush=True)
    return UNANSWERED if unanswered else ALL_SENT


def read_requests(path: str) -> list[dict[str, Any]]:
    """Return the requests of a recording; raises OSError or ValueError where it has none."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs more than it gives here
        requests = [json.loads(line) for line in file if line.strip()]
    if not requests or not all(isinstance(request, dict) for request in requests):
        raise ValueError("it holds no requests; it needs one JSON object on each line: method, url, body")
    return requests


def wait_until_ready(url: str, timeout_s: float) -> bool:
    """Ask `url` until it answers below 400, for `timeout_s` seconds at most."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            if send(url, "GET", urlsplit(url).path or "/", None, timeout_s=5.0) < 400:
                return True
        except NO_ANSWER:
            pass
        time.sleep(0.2)
    return False


def replay(base: str, requests: list[dict[str, Any]], concurrency: int) -> list[int | str]:
    """Send the requests in order, `concurrency` at a time; return the HTTP status of each, or why it has none.

    After three requests in a row without an answer the rest is not sent: the server is gone.
    """
    answers: list[int | str] = []
    lock = threading.Lock()
    queue = iter(requests)

    def work() -> None:
        while True:
            with lock:
                request = next(queue, None)
                if request is None or (len(answers) >= 3 and all(isinstance(answer, str) for answer in answers[-3:])):
                    return
            try:
                answer: int | str = send(
                    base,
                    request.get("method", "POST"),
                    request.get("url", "/"),
                    request.get("body"),
                    headers=request.get("headers") or {},
                )
            except NO_ANSWER as error:
                answer = repr(error)
            print(f"{request.get('custom_id', '-')} {request.get('url')} -> {answer}", flush=True)
            with lock:
                answers.append(answer)

    threads = [threading.Thread(target=work) for _ in range(max(1, concurrency))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def send(
    base: str,
    method: str,
    path: str,
    body: object,
    *,
    headers: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> int:
    """Send one request and return its HTTP status; raises one of NO_ANSWER where there is none."""
    parts = urlsplit(base)
    secure = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = secure(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    data = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    try:
        key = os.environ.get("VLLM_API_KEY")
        own = {"Authorization": f"Bearer {key}"} if key else {}
        kind = {"Content-Type": "application/json"} if data else {}
        connection.request(method, path, data, {**own, **kind, **headers})
        answer = connection.getresponse()
        while answer.read(1 << 16):
            pass
        return answer.status
    finally:
        connection.close()


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
