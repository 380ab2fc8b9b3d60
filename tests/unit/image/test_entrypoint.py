"""The entry point of an image, run as it is: what it says to a user that the image does not know."""

import subprocess
from pathlib import Path

from vdbg_env.common.resources import SHIPPED_DATA


def test_a_user_without_a_name_is_named_by_its_number_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "id").write_text(
        '#!/bin/sh\necho 4711\n[ "$1" = -u ]\n'
    )  # as Debian's does for a user without an entry
    (tmp_path / "id").chmod(0o755)
    text = (
        (SHIPPED_DATA / "templates" / "entrypoint.sh")
        .read_text()
        .replace("-e /dumps", "-e /")
        .replace("-w /dumps", "-w /no")
    )
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(["sh", "-c", text, "entrypoint", "true"], env=env, capture_output=True, text=True, check=True)
    assert "vdbg-env: /dumps cannot be written to by 4711; GPU core dumps would be lost\n" in ran.stderr
