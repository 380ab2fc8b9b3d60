"""The versions that tools report."""

import pytest

from vdbg_env.common.programs import tool_version


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("Cuda compilation tools, release 13.0, V13.0.88\n", "13.0"),
        ("NVIDIA (R) CUDA Debugger\nCUDA-GDB (13.0) 13.0 release\nportions GNU gdb 14.2\n", "13.0"),
        ("NVIDIA (R) Compute Sanitizer\nVersion 2025.3.0.0 (build 36273991)\n", "2025.3.0.0"),
        ("py-spy 0.4.1\n", "0.4.1"),
        ("no number here\n", ""),
    ],
)
def test_a_tools_own_words_give_its_version(said: str, version: str) -> None:
    assert tool_version(said) == version
