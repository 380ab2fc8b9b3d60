"""A cgroup with a limit on its memory, of either version."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """Make a cgroup of `limit` bytes below that of this process (cgroups(7)); skip where none can be made."""
    if os.geteuid() != 0:
        pytest.skip("only root may make a cgroup")
    places = {line.split(":")[1]: line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    if "memory" in places:
        home, name = Path("/sys/fs/cgroup/memory" + places["memory"]), "memory.limit_in_bytes"
    else:
        home, name = Path("/sys/fs/cgroup" + places[""]), "memory.max"
    group = home / f"vdbg-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no cgroup with a limit on its memory can be made here: {error.strerror}")
    yield group
    until = time.monotonic() + 120
    while (group / "cgroup.procs").read_text() and time.monotonic() < until:
        time.sleep(0.05)  # the supervisor that waited for a next step sees only now that its engine is gone
    group.rmdir()
