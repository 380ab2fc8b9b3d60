"""Asks the Hugging Face hub for a model as vLLM would, and measures how fast its weights arrive.

By hand:  python3 hub_reach.py -- vllm serve ORG/MODEL
"""

import json
import os
import pathlib
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from model_place import WEIGHTS, asked_for, no_model

PATIENCE_S = 10.0
SAMPLE = 64 << 20  # bytes
SAMPLE_S = 8.0
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def main() -> int:
    model, _, _ = asked_for(__doc__ or "")
    if model is None:
        return no_model("hub-reach")
    if pathlib.Path(model).is_dir():
        print(f"hub-reach: {model} is a folder: no hub is needed", flush=True)
        return 0
    kept_out = [name for name in OFFLINE if os.environ.get(name, "").upper() in {"1", "TRUE", "YES", "ON"}]
    if kept_out:
        print(f"hub-reach: {kept_out[0]} is set: nothing is downloaded", flush=True)
        return 1
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    files = ask(endpoint, model)
    if files is None:
        return 1
    largest = next((name for name in files if name.endswith(WEIGHTS)), None)
    return 0 if largest is None or measure(f"{endpoint}/{model}/resolve/main/{largest}") else 1


def ask(endpoint: str, model: str) -> list[str] | None:
    """Print what the hub says about a model, and return the names of its files; None when it does not give them."""
    begun = time.monotonic()
    try:
        with opened(f"{endpoint}/api/models/{model}") as answer:
            document = json.load(answer)
    except urllib.error.HTTPError as error:
        said = {401: "gated, private or unknown", 403: "gated, and this token has no access", 404: "unknown"}
        what = said.get(error.code, "refused")
        print(f"hub-reach: {endpoint} says that {model} is {what} (status {error.code}, {token_said()})", flush=True)
        return None
    except (OSError, ValueError) as error:
        print(f"hub-reach: {endpoint} is not reached: {reason(error)} (proxy: {proxy(endpoint)})", flush=True)
        return None
    print(f"hub-reach: {endpoint} knows {model}, answered in {time.monotonic() - begun:.2f} s", flush=True)
    return [str(file.get("rfilename", "")) for file in document.get("siblings", [])]


def measure(url: str) -> bool:
    """Read the beginning of a file for some seconds and print how fast it came; False when nothing came."""
    begun, size = time.monotonic(), 0
    try:
        with opened(url) as answer:
            while size < SAMPLE and time.monotonic() - begun < SAMPLE_S and (chunk := answer.read(1 << 18)):
                size += len(chunk)
    except urllib.error.HTTPError as error:
        print(f"hub-reach: the weights are refused (status {error.code}, {token_said()})", flush=True)
        return False
    except OSError as error:
        if not size:
            print(f"hub-reach: the weights do not arrive: {reason(error)} (proxy: {proxy(url)})", flush=True)
            return False
    took = max(time.monotonic() - begun, 1e-6)
    print(f"hub-reach: weights arrive at {size / took / (1 << 20):.1f} MiB/s", flush=True)
    return size > 0


def opened(url: str):  # type: ignore[no-untyped-def]  # what urlopen returns has no public name
    request = urllib.request.Request(url, headers={"User-Agent": "vdbg-env", **authorization(os.environ)})
    return urllib.request.urlopen(request, timeout=PATIENCE_S)


def authorization(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the header that carries the user's token, as huggingface_hub finds it; it is never printed."""
    home = pathlib.Path(environment.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    path = pathlib.Path(environment.get("HF_TOKEN_PATH", home / "token"))
    token = environment.get("HF_TOKEN") or (path.read_text().strip() if path.is_file() else "")
    return {"Authorization": f"Bearer {token}"} if token else {}


def token_said() -> str:
    return "with a token" if authorization(os.environ) else "without a token"


def proxy(url: str) -> str:
    return urllib.request.getproxies().get(url.partition(":")[0], "none").rpartition("@")[2]


def reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("\n", " ")[:200]


if __name__ == "__main__":
    sys.exit(main())
