"""Changes the engine arguments of a vLLM workload that builds its engine itself, without a change to its script.

vLLM loads this as a general plug-in whenever engine arguments are made (entry point group `vllm.general_plugins`, found
through the metadata folder next to this file; `EngineArgs.__post_init__` in vllm/engine/arg_utils.py, 0.33.0). What is
to be changed stands in the variable VDBG_VLLM_ENGINE_ARGS as JSON, by the arguments' Python names. What was changed is
said in one line on the error stream, and only then: a run without that line has tried nothing.

It uses nothing but the standard library and vLLM, because it runs in the workload's own interpreter.
"""

import copy
import json
import os
import sys
from functools import wraps

VARIABLE = "VDBG_VLLM_ENGINE_ARGS"

# An argument of the first name excludes the field of the second: vLLM refuses to be given both.
EXCLUDED_BY = {("attention_config", "backend"): "attention_backend"}


def apply():
    """Wrap `EngineArgs.create_engine_config`; vLLM calls this once or more in each process."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    from vllm.engine.arg_utils import EngineArgs

    if hasattr(EngineArgs.create_engine_config, "vdbg_env"):
        return
    EngineArgs.create_engine_config = _wrapped(EngineArgs.create_engine_config, json.loads(text))


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
