"""`vdbg-env capture`: record the requests that a server gets, to replay them."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

import click

from vdbg_env.common import console
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.flags import takes
from vdbg_env.run import capture
from vdbg_env.run.capture import CaptureSettings


@click.command("capture")
@takes(settings=CaptureSettings)
@click.option("--json", "as_json", is_flag=True, help="Print what was recorded as JSON (schema vdbg-env/capture/v1).")
def capture_command(settings: CaptureSettings, as_json: bool) -> int:
    """Record the requests to a server, to replay them later.

    Clients talk to this proxy instead of the server. Requests that start work are recorded, before the server gets
    them. Of headers those are kept that a server needs; in queries and bodies credentials are replaced where their name
    or their form shows them. What people wrote stays, a password within a sentence too: read the file before you share
    it. Streams pass through as they arrive, WebSockets too, which are not recorded. Stop it with Ctrl-C. Needs aiohttp,
    and says how to install it.

    \b
    Example:
      vdbg-env capture --port 8001 --to 127.0.0.1:8000 -o requests.jsonl
      vdbg-env runbook host-crash -i request=requests.jsonl -- vllm serve MODEL
    """
    settings = replace(settings, upstream=_url(settings.upstream))

    def listening(address: str, unreachable: str | None) -> None:
        console.note(f"listening on {address}, passing on to {settings.upstream}; Ctrl-C ends it")
        if unreachable:
            console.note(
                f"{settings.upstream} does not answer yet ({unreachable}): until it does, clients get status 502"
            )

    try:
        from vdbg_env.run.capture_proxy import CaptureProxy
    except ModuleNotFoundError as error:
        from vdbg_env.common.distribution import install_words

        raise HostNotAble(
            f"capture needs {error.name}, which is not installed", next_step=install_words("capture")
        ) from error
    report = CaptureProxy(settings).run(listening)
    click.echo(capture.as_json(report) if as_json else capture.as_text(report), nl=False)
    return 1 if report.problem else 0


def _url(upstream: str) -> str:
    """Return the address as a URL without a path."""
    text = upstream if "://" in upstream else f"http://{upstream}"
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1 or parts.path not in {"", "/"}:
        raise BadInput(
            f"--to {upstream} is not the address of a server",
            cause="a path, or another protocol than http and https",
            next_step="--to 127.0.0.1:8000",
        )
    return f"{parts.scheme}://{parts.netloc}"
