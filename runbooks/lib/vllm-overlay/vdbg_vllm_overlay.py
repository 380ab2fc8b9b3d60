"""Changes the engine arguments of a vLLM workload that builds its engine itself, without a change to its script.

vLLM loads this as a general plug-in whenever engine arguments are made (entry point group `vllm.general_plugins`, found
through the metadata folder next to this file; `EngineArgs.__post_init__` in vllm/engine/arg_utils.py, 0.33.0). What is
to be changed stands in the variable VDBG_VLLM_ENGINE_ARGS as JSON, by the arguments' Python names. What was changed is
said in one line on the error stream, and only then: a run without that line has tried nothing.

It is also a witness: VDBG_WITNESS names variables and engine arguments as JSON, and each worker says in one line what
it has of them once its device is ready. /proc cannot say that of a process that overwrote its environment, and a log
cannot of a configuration that it does not print. Of a variable the line has a hash: its value may be a secret.

It uses nothing but the standard library and vLLM, because it runs in the workload's own interpreter.
"""

import copy
import faulthandler
import hashlib
import json
import os
import sys
from functools import wraps

VARIABLE = "VDBG_VLLM_ENGINE_ARGS"
WITNESS = "VDBG_WITNESS"

# An argument of the first name excludes the field of the second: vLLM refuses to be given both.
EXCLUDED_BY = {("attention_config", "backend"): "attention_backend"}


def apply():
    """Wrap what makes the engine's configuration, and the worker's start; vLLM calls this once or more in a process."""
    _take_back_the_fault_handler()
    if os.environ.get(WITNESS):
        _watch_workers(json.loads(os.environ[WITNESS]))
    text = os.environ.get(VARIABLE)
    if not text:
        return
    from vllm.engine.arg_utils import EngineArgs

    if hasattr(EngineArgs.create_engine_config, "vdbg_env"):
        return
    EngineArgs.create_engine_config = _wrapped(EngineArgs.create_engine_config, json.loads(text))


def _take_back_the_fault_handler():
    """Have the fault handler that PYTHONFAULTHANDLER asks for called first: libraries install others (tvm_ffi)."""
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.disable()
        faulthandler.enable()


def _watch_workers(asked):
    try:
        from vllm.v1.worker.worker_base import WorkerWrapperBase
    except ImportError:  # another layout of vLLM's: /proc and the log are what is left
        return
    original = getattr(WorkerWrapperBase, "init_device", None)
    if original is None or hasattr(original, "vdbg_env"):
        return

    @wraps(original)
    def init_device(self, *args, **kwargs):
        made = original(self, *args, **kwargs)
        _take_back_the_fault_handler()
        seen = {"pid": os.getpid(), "rank": getattr(self, "global_rank", None)}
        seen["environment"] = {name: _hash(os.environ.get(name)) for name in asked["environment"]}
        values = {path: _effective(getattr(self, "vllm_config", None), path.split(".")) for path in asked["engine"]}
        seen["engine"] = {path: repr(value)[:100] for path, value in values.items() if value is not None}
        os.write(2, f"vdbg-env: worker {json.dumps(seen)}\n".encode())
        return made

    init_device.vdbg_env = True
    WorkerWrapperBase.init_device = init_device


def _hash(value):
    return None if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()[:16]


def _effective(config, path):
    """Return what became of an engine argument: a field of the configuration named, or of the one part that has it."""
    if len(path) == 1:
        parts = [part for part in vars(config).values() if hasattr(part, path[0])] if config is not None else []
        return getattr(parts[0], path[0]) if len(parts) == 1 else None
    for name in path:
        config = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
    return config


def _wrapped(original, changes):
    @wraps(original)
    def create_engine_config(self, *args, **kwargs):
        unknown = [name for name in changes if not hasattr(self, name)]
        if unknown:
            raise SystemExit(f"vdbg-env: this vLLM has no engine argument {', '.join(unknown)}")
        for name, value in changes.items():
            setattr(self, name, _changed(getattr(self, name), value))
            for field in value if isinstance(value, dict) else ():
                excluded = EXCLUDED_BY.get((name, field))
                if excluded and hasattr(self, excluded):
                    setattr(self, excluded, None)
        # One write, so that lines of several processes do not mix.
        sys.stderr.write(f"vdbg-env: engine arguments applied: {json.dumps(changes, sort_keys=True)}\n")
        sys.stderr.flush()
        return original(self, *args, **kwargs)

    create_engine_config.vdbg_env = True
    return create_engine_config


def _changed(current, value):
    """Return the value an argument is to have; of a config object only the named fields are changed."""
    if not isinstance(value, dict):
        return value
    if current is None:
        return value
    if isinstance(current, dict):
        return {**current, **value}
    # The class itself turns "NONE" into its enum: a probe made of the new fields alone has them in their final form.
    probe = type(current)(**value)
    changed = copy.deepcopy(current)
    for field in value:
        setattr(changed, field, getattr(probe, field))
    return changed
