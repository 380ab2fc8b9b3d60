"""Fetch torch/cuda/_memory_viz.py, which reads allocator snapshots, of each release of PyTorch without its wheel.

    scripts/memory_viz.py DIR [RELEASE ...]

pip says where a wheel is, by its own configuration; of the wheel only the directory and one member are read (HTTP
ranges, 2 MB of 80 to 130). Exit 3 where a release cannot be had.
"""

import io
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

RELEASES = ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
MEMBER = "torch/cuda/_memory_viz.py"


class Remote(io.RawIOBase):
    """A file behind an address, read by ranges."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self._size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        asked = urllib.request.Request(self._url, headers={"Range": f"bytes={self._at}-{last}"})
        with urllib.request.urlopen(asked) as answer:
            if answer.status != 206:
                raise OSError("the index does not send parts of files")
            data = answer.read()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def wheel(release: str) -> str:
    """Return the address of a release's wheel for macOS, which has no CUDA in it and so is small."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        asked = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--target", tempfile.gettempdir()]
        asked += ["--only-binary", ":all:", "--platform", "macosx_14_0_arm64", "--python-version", "3.12"]
        argv = [sys.executable, "-m", "pip", *asked, "--quiet", "--report", report.name, f"torch=={release}"]
        subprocess.run(argv, check=True, capture_output=True, text=True)
        found = json.loads(Path(report.name).read_bytes())
    return str(found["install"][0]["download_info"]["url"])


def main() -> int:
    folder, releases = Path(sys.argv[1]), sys.argv[2:] or RELEASES
    status = 0
    for release in releases:
        path = folder / release / Path(MEMBER).name
        if path.is_file():
            continue
        try:
            with zipfile.ZipFile(io.BufferedReader(Remote(wheel(release)), 1 << 20)) as archive:
                text = archive.read(MEMBER)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"memory_viz: no torch {release} here: {getattr(error, 'stderr', error)}"[:400], file=sys.stderr)
            status = 3
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
