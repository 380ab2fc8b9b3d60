"""Does one kind of work on many items, in as many processes as there are processors."""

from __future__ import annotations

import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from vdbg_env.supervisor.proc import die_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_WORKERS: Final = 16  # each may hold a core's tables, some 300 MB of a full GPU
_LEAST_ITEMS: Final = 8  # below, starting the processes takes longer than they save

_work: Callable[[Any], Any]


def map_in_processes(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order; of few items, or with one processor, in this process.

    The processes are forked, so that `work` may be any function and sees what this process has loaded; its results are
    pickled. For a program of one thread. What `work` raises is raised here, and ends them. Items of a process that
    died, as one does that the kernel killed for its memory, are done here.
    """
    count = min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
    done = 0
    if count > 1 and len(items) >= _LEAST_ITEMS:
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import active_children, get_context

        others = set(active_children())
        gc.freeze()  # what is collected in a child would be copied there first
        pool = ProcessPoolExecutor(count, get_context("fork"), _begin, (work, os.getpid()))
        try:
            # Not `pool.map`: it cancels what waits, and to that of 3.11 a killed process is then an error to print.
            results = deque(pool.submit(_do, item) for item in items)
            while results:
                yield results.popleft().result()
                done += 1
        except BrokenProcessPool:
            pass
        except BaseException:  # Ctrl-C, too: a process that reads a large core, or a slow disk, would be waited for
            for child in set(active_children()) - others:
                child.kill()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            gc.unfreeze()
    yield from map(work, items[done:])


def _begin(work: Callable[[Any], Any], parent: int) -> None:
    """Prepare a forked process: Ctrl-C is the parent's to answer, and without the parent no one needs the result."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(parent)


def _do(item: Any) -> Any:
    return _work(item)
