"""Leaves a process that its parent's death does not end and that carries no mark: `detached.py MODE FOLDER`.

`title` renames itself in its own session, `bare` has an empty environment, `double` has lost its parent as well.
Each writes its pid into FOLDER once it has done so. The first process then stays.
"""

import os
import subprocess
import sys
import time
from pathlib import Path


def stay(folder: str) -> None:
    new = Path(folder) / "pid.new"
    new.write_text(str(os.getpid()))
    new.rename(new.with_suffix(""))
    while True:
        time.sleep(60)


def rename_and_stay(folder: str) -> None:
    import setproctitle

    setproctitle.setproctitle("VLLM::EngineCore")
    assert not Path("/proc/self/environ").read_bytes().strip(b"\0")
    stay(folder)


def double(folder: str) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            rename_and_stay(folder)
        os._exit(0)
    os.wait()


if __name__ == "__main__":
    mode, folder = sys.argv[1:]
    again = [sys.executable, __file__]
    if os.environ.pop("SPT_NOENV", None):  # as a launcher that hands on few variables
        os.execv(sys.executable, [*again, mode, folder])
    match mode:
        case "title":
            subprocess.Popen([*again, "rename", folder], start_new_session=True)
        case "bare":
            subprocess.Popen(["env", "-i", "setsid", *again, "stay", folder])
        case "double":
            double(folder)
        case "rename":
            rename_and_stay(folder)
        case "stay":
            stay(folder)
    print("ready", flush=True)
    time.sleep(60)
