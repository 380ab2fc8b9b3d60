"""What is read from /proc agrees with what the system says otherwise."""

import os

from vdbg_env.supervisor.proc import available_memory


def test_memory_that_is_available_is_a_part_of_all() -> None:
    assert 0 < available_memory() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
