"""Which model a vLLM command line names, and where its files are: a folder, or the cache of the Hugging Face hub."""

import argparse
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

GIB = 1 << 30
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
# Sub-commands of `vllm` whose first word is the model.
TAKES_MODEL_FIRST = ("serve",)


def asked_for(purpose: str) -> tuple[str | None, pathlib.Path, list[str]]:
    """Return the model, the cache's folder and the workload's words, as this program's own arguments give them.

    The arguments are `[--model NAME] -- WORKLOAD ...`; NAME goes before what the workload names.
    """
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--model", default="")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    words = [word for word in given.words if word != "--"]
    return given.model or model_of(words), cache_folder(words, os.environ), words


def model_of(words: Sequence[str]) -> str | None:
    """Return the model a command line names: `--model X`, `--model=X`, or the word after `vllm serve`."""
    named = value_of(words, "--model")
    if named:
        return named
    for index, word in enumerate(words[:-1]):
        after = words[index + 1]
        if word in TAKES_MODEL_FIRST and pathlib.Path(words[index - 1]).name == "vllm" and not after.startswith("-"):
            return after
    return None


def value_of(words: Sequence[str], flag: str) -> str | None:
    """Return the last value of a flag, as `--flag value` or `--flag=value`."""
    found = [word.partition("=")[2] for word in words if word.startswith(flag + "=")]
    found += [after for word, after in itertools.pairwise(words) if word == flag]
    return found[-1] if found else None


def cache_folder(words: Sequence[str], environment: Mapping[str, str]) -> pathlib.Path:
    """Return where the hub's files are kept (huggingface_hub, constants.py); vLLM's --download-dir goes before all."""
    given = value_of(words, "--download-dir") or environment.get("HF_HUB_CACHE")
    if given:
        return pathlib.Path(given).expanduser()
    home = environment.get("HF_HOME")
    if home:
        return pathlib.Path(home).expanduser() / "hub"
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(cache).expanduser() / "huggingface" / "hub"


def repository(model: str, cache: pathlib.Path) -> pathlib.Path:
    """Return the cache's folder of one model."""
    return cache / ("models--" + model.replace("/", "--"))


def folder_of(model: str, cache: pathlib.Path) -> pathlib.Path | None:
    """Return the folder that holds a model's files: itself, or its newest snapshot in the cache; None without any."""
    if pathlib.Path(model).is_dir():
        return pathlib.Path(model)
    snapshots = [path for path in repository(model, cache).glob("snapshots/*") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the weight files that are there, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS and path.is_file())


def missing_files(folder: pathlib.Path) -> list[str]:
    """Return the weight files that the checkpoint's own index names and that are not there."""
    wanted: set[str] = set()
    for index in folder.glob("*.index.json"):
        wanted |= set(json.loads(index.read_text()).get("weight_map", {}).values())
    return sorted(name for name in wanted if not (folder / name).is_file())


def no_model(who: str) -> int:
    """Say that no model is named, and return the exit status for it."""
    print(f"{who}: no model is named on the command line; name it with -i model=NAME", flush=True)
    return 2


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


if __name__ == "__main__":
    sys.exit("this is a part of model_files.py, hub_reach.py and read_speed.py")
