"""What to say before a workload runs whose workers Ray starts: a variable of a step may never reach them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

_BACKENDS = ("--distributed-executor-backend", "--data-parallel-backend")


def ray_hints(argv: Sequence[str], environment: Mapping[str, str | None]) -> Iterator[str]:
    """Yield what a user has to set for the variables of steps to reach Ray's workers."""
    address = environment.get("RAY_ADDRESS")
    if address and address != "local":
        yield (
            f"RAY_ADDRESS={address}: the workers of a cluster that runs already have the environment of its `ray "
            "start`, and none of a step's variables, nor are they ended with the step. Pass the variables on in "
            "runtime_env (env_vars), or unset RAY_ADDRESS and have the workload start Ray"
        )
    elif _uses_ray(argv):
        yield (
            "vLLM copies only its own variables to Ray's workers: name others in VLLM_RAY_EXTRA_ENV_VARS_TO_COPY, as "
            "the shipped runbooks do; over nodes, --nnodes without Ray has the environment of each rank"
        )


def _uses_ray(argv: Sequence[str]) -> bool:
    words = [word.replace("_", "-") if word.startswith("--") else word for word in argv]
    pairs = zip(words, (*words[1:], ""), strict=True)
    return any(word == f"{flag}=ray" or (word, value) == (flag, "ray") for word, value in pairs for flag in _BACKENDS)
