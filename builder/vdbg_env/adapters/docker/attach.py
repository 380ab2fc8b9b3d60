"""Connect a container to this program's streams, as a terminal or as plain output."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import Any

from docker import APIClient, errors
from docker.utils import socket as frames


@contextlib.contextmanager
def open_streams(client: APIClient, container: str, *, interactive: bool) -> Iterator[Any]:
    """Attach to a container that has not started yet: nothing that it prints is lost."""
    parameters = {"stdout": 1, "stderr": 1, "stream": 1, "stdin": int(interactive)}
    stream: Any = client.attach_socket(container, params=parameters)
    try:
        yield stream
    finally:
        # The client returns one layer of three, and closing it leaves the others open; it has no public way to them.
        for layer in (getattr(stream, "_response", None), stream, socket_of(stream)):
            if layer is not None:
                layer.close()


def copy_streams(client: APIClient, container: str, stream: Any, *, interactive: bool) -> None:
    """Copy a container's output here until it ends; on a terminal, copy the keys typed there too."""
    if interactive:
        with _raw_terminal(), _following_size(client, container):
            _talk(socket_of(stream))
    else:
        _print(stream)


def _print(stream: Any) -> None:
    for number, data in frames.frames_iter(stream, tty=False):  # type: ignore[no-untyped-call]
        target = sys.stderr if number == frames.STDERR else sys.stdout
        target.buffer.write(data)
        target.buffer.flush()


def _talk(connection: socket.socket) -> None:
    """Copy both ways until the container closes its side."""
    keyboard = sys.stdin.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(keyboard, selectors.EVENT_READ)
        while True:
            for ready, _ in selector.select():
                if ready.fd == keyboard:
                    typed = os.read(keyboard, 4096)
                    if typed:
                        connection.sendall(typed)
                    else:
                        selector.unregister(keyboard)
                    continue
                shown = connection.recv(1 << 16)
                if not shown:
                    return
                os.write(sys.stdout.fileno(), shown)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key to the container, Ctrl-C too, and restore the terminal."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setraw(keyboard, termios.TCSADRAIN)  # the default would throw away what was typed ahead
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _following_size(client: APIClient, container: str) -> Iterator[None]:
    def resize(_number: int = 0, _frame: FrameType | None = None) -> None:
        size = shutil.get_terminal_size()
        with contextlib.suppress(errors.APIError):  # the container has just ended
            client.resize(container, height=size.lines, width=size.columns)

    before = signal.signal(signal.SIGWINCH, resize)
    try:
        resize()
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def socket_of(stream: Any) -> socket.socket:
    """Return the socket below the client's stream, which is a private attribute for unix sockets."""
    found: socket.socket = getattr(stream, "_sock", stream)
    return found
