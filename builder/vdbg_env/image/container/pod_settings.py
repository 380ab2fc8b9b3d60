"""The pods that ranks run in: their image, and the volume on which they and this program see the run's folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.run_settings import RunSettings
from vdbg_env.image.text import one_line

_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"


@dataclass(frozen=True, kw_only=True)
class PodVolume:
    """A volume that pods mount at `path`; `server` is that of an NFS export."""

    kind: Literal["pvc", "nfs", "host"]
    source: str
    path: str
    server: str = ""


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What all pods of a run have in common.

    `run` has image, GPUs, variables, rights and limits. Without `namespace` or `context` those of the kubeconfig are
    taken. `env_from` names objects whose keys become variables, as in `secret/hf-token`. `overlay` is merged into the
    pod's specification: node selectors, tolerations, a service account. `python` is what starts a rank; a pod may wait
    `wait_s` seconds for a node and its image.
    """

    run: RunSettings
    volumes: tuple[PodVolume, ...]
    namespace: str | None = None
    context: str | None = None
    env_from: tuple[str, ...] = ()
    overlay: Mapping[str, Any] = field(default_factory=dict)
    python: str = "python3"
    wait_s: float = 600.0

    def sees(self, path: str) -> bool:
        """Return whether pods see a path of this machine."""
        return self.found_on(path) is not None

    def found_on(self, path: str) -> tuple[int, str] | None:
        """Return the number of the volume that has a path of this machine, and the path on it."""
        holding = [at for at, one in enumerate(self.volumes) if PurePosixPath(path).is_relative_to(one.path)]
        if not holding:
            return None
        at = max(holding, key=lambda at: len(self.volumes[at].path))
        return at, str(PurePosixPath(path).relative_to(self.volumes[at].path))


def parse_volume(text: str) -> PodVolume:
    """Read `--k8s-volume`: `pvc:NAME=/path`, `nfs:SERVER:/export=/path` or `host:/folder=/path`; raises BadInput."""
    source, equals, path = one_line(text, "--k8s-volume").rpartition("=")
    kind, _, name = source.partition(":")
    if equals and re.fullmatch(r"/[^:=]+", path):
        if kind == "pvc" and re.fullmatch(_NAME, name):
            return PodVolume(kind="pvc", source=name, path=path)
        if kind == "host" and name.startswith("/"):
            return PodVolume(kind="host", source=name, path=path)
        server, colon, export = name.partition(":")
        if kind == "nfs" and server and colon and export.startswith("/"):
            return PodVolume(kind="nfs", source=export, path=path, server=server)
    raise BadInput(
        f"--k8s-volume {text!r} is not a volume",
        next_step="pvc:NAME=/path, nfs:SERVER:/export=/path or host:/folder=/path",
    )


def parse_env_from(text: str) -> str:
    """Read `--k8s-env-from`: `secret/NAME` or `configmap/NAME`; raises BadInput for anything else."""
    if not re.fullmatch(rf"(secret|configmap)/{_NAME}", text):
        raise BadInput(f"--k8s-env-from {text!r} is neither a Secret nor a ConfigMap", next_step="secret/hf-token")
    return text
