"""`vdbg-env capture`: record the requests that a server gets, to replay them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import click

from vdbg_env.common import console
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.report.codec import document as doc
from vdbg_env.run import capture
from vdbg_env.run.capture import CaptureSettings

_MIB = 1 << 20


@click.command("capture")
@click.option("--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="Listen here; 0: any.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--to", "upstream", required=True, metavar="HOST:PORT|URL", help="The server that gets the requests.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("requests.jsonl"),
    show_default=True, help="The file to record to.",
)  # fmt: skip
@click.option("--redact-bodies", is_flag=True, help="Write x for each letter and 0 for each digit of a text.")
@click.option("--max-size", type=click.IntRange(1), default=256, show_default=True, help="MiB kept; the newest.")
@click.option("--max-count", type=click.IntRange(2), default=100_000, show_default=True, help="Requests kept.")
@click.option("--max-body", type=click.IntRange(1), default=16, show_default=True, help="MiB of a body; larger: not.")
@click.option("--json", "as_json", is_flag=True, help="Print what was recorded as JSON (schema vdbg-env/capture/v1).")
def capture_command(
    port: int,
    host: str,
    upstream: str,
    output: Path,
    redact_bodies: bool,
    max_size: int,
    max_count: int,
    max_body: int,
    as_json: bool,
) -> int:
    """Listen next to a server, pass every request on to it, and record those that start work.

    Streams pass as they arrive. Headers are kept, credentials are not. A request is in the file before the server gets
    it. Ctrl-C ends it. Needs aiohttp: pip install 'vdbg-env[capture]'.

    \b
    Example:
      vdbg-env capture --port 8001 --to 127.0.0.1:8000 -o requests.jsonl
      vdbg-env runbook illegal-memory-access -i request=requests.jsonl -- vllm serve MODEL
    """
    settings = CaptureSettings(
        host=host, port=port, upstream=_url(upstream), output=output, redact_bodies=redact_bodies,
        max_bytes=max_size * _MIB, max_count=max_count, max_body=max_body * _MIB,
    )  # fmt: skip

    def listening(address: str, unreachable: str | None) -> None:
        console.note(f"listening on {address}, passing on to {settings.upstream}; Ctrl-C ends it")
        if unreachable:
            console.note(
                f"{settings.upstream} does not answer yet ({unreachable}): until it does, clients get status 502"
            )

    try:
        from vdbg_env.run.capture_proxy import CaptureProxy
    except ModuleNotFoundError as error:
        raise HostNotAble(
            f"capture needs {error.name}, which is not installed", next_step="pip install 'vdbg-env[capture]'"
        ) from error
    report = CaptureProxy(settings).run(listening)
    click.echo(doc.render(report, capture.Captured) if as_json else capture.as_text(report), nl=False)
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
