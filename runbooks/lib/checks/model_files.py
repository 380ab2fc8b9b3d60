"""Says whether a model's files are all here, how many are unfinished, who holds a lock on them, and what room is left.

By hand:  python3 model_files.py -- vllm serve ORG/MODEL
"""

import fcntl
import pathlib
import shutil
import sys

from model_place import asked_for, folder_of, gib, missing_files, no_model, repository, weight_files


def main() -> int:
    model, cache, _ = asked_for(__doc__ or "")
    if model is None:
        return no_model("model-files")
    whole = tell_files(model, cache)
    tell_download(model, cache)
    return 0 if whole else 1


def tell_files(model: str, cache: pathlib.Path) -> bool:
    """Print what is there of a model, and return whether that is all of it."""
    folder = folder_of(model, cache)
    if folder is None:
        print(f"model-files: {model} is not here (looked in {repository(model, cache)})", flush=True)
        return False
    files, missing = weight_files(folder), missing_files(folder)
    size = gib(sum(path.stat().st_size for path in files))
    if missing or not files or not (folder / "config.json").is_file():
        lacks = ", ".join(missing[:3]) or ("its weights" if not files else "config.json")
        print(f"model-files: {model} is here in part: {len(files)} files, {size}; it lacks {lacks}", flush=True)
        return False
    print(f"model-files: {model} is all here: {len(files)} weight files, {size} in {folder}", flush=True)
    return True


def tell_download(model: str, cache: pathlib.Path) -> None:
    """Print what a download of this model left or needs: unfinished files, locks that are held, free space."""
    unfinished = list(repository(model, cache).glob("blobs/*.incomplete"))
    if unfinished:
        size = gib(sum(path.stat().st_size for path in unfinished))
        print(f"model-files: {len(unfinished)} file(s) are unfinished, {size} of them are here", flush=True)
    for lock in sorted((cache / ".locks" / repository(model, cache).name).glob("*.lock")):
        if is_held(lock):
            print(f"model-files: another process holds {lock}", flush=True)
    there = next(path for path in (cache, *cache.absolute().parents) if path.is_dir())
    print(f"model-files: {gib(shutil.disk_usage(there).free)} are free for {cache}", flush=True)


def is_held(lock: pathlib.Path) -> bool:
    """Whether a process holds a lock; where the file system has no locks, a file that is there counts as one."""
    try:
        with lock.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return lock.exists()
    return False


if __name__ == "__main__":
    sys.exit(main())
