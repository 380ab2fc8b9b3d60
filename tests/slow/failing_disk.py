"""A disk that fails when it is told to: ext4 on a loop device, whose image may be promised more room than it has."""

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), as XFS_IOC_GOINGDOWN
_WITHOUT_ITS_JOURNAL = 2
_IMAGE = "image"


class FailingDisk:
    """A mounted file system at `path`; after a failure only `repaired` makes it work again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "disk"
        self._image = folder / "store" / _IMAGE
        self.path.mkdir()
        self._attach()

    def fail(self, how: str) -> None:
        """Have every access fail (EIO), every write refused (EROFS), or what was written never arrive (thin)."""
        match how:
            case "EIO":
                self._end()
            case "EROFS":  # what ext4 does after an error of the disk; root cannot remount what is written to
                Path(f"/sys/fs/ext4/{self._device()}/trigger_fs_error").write_text("1")
            case "thin":
                with suppress(OSError), (self._image.parent / "taken").open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(1 << 12))

    def repaired(self) -> None:
        """Mount it anew, which also shows that nothing has a file of it open."""
        (self._image.parent / "taken").unlink(missing_ok=True)
        subprocess.run(["umount", self.path], check=True)
        while subprocess.check_output(["losetup", "--associated", self._image]):
            time.sleep(0.01)  # the device goes a moment after its file system
        checked = subprocess.run(["fsck.ext4", "-fy", self._image], capture_output=True, text=True, check=False)
        assert checked.returncode in {0, 1}, checked.stdout
        self._attach()

    def _attach(self) -> None:
        subprocess.run(["mount", "-o", "loop,errors=remount-ro", self._image, self.path], check=True)

    def _device(self) -> str:
        return Path(subprocess.check_output(["findmnt", "-no", "SOURCE", self.path], text=True).strip()).name

    def _end(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _WITHOUT_ITS_JOURNAL))
        finally:
            os.close(descriptor)


@contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    """Yield a disk of 40 MB; skip the test where none can be made."""
    if os.geteuid() != 0 or not Path("/sys/fs/ext4").is_dir():
        pytest.skip("only root may mount a disk of its own, and the kernel must have ext4")
    store = folder / "store"
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "vdbg-test", store], check=True)
    try:
        with (store / _IMAGE).open("wb") as file:
            file.truncate(40 << 20)
        made = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(store / _IMAGE)]
        subprocess.run(made, check=True)
        try:
            yield FailingDisk(folder)
        finally:
            subprocess.run(["umount", "-l", folder / "disk"], check=False)
    finally:
        subprocess.run(["umount", "-l", store], check=True)
