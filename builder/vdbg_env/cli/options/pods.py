"""The flags that say in which pods of a Kubernetes cluster the ranks of a runbook run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import click

from vdbg_env.cli.options.duration import seconds
from vdbg_env.cli.options.given import with_options
from vdbg_env.common.errors import BadInput
from vdbg_env.image.container.pod_settings import PodSettings, parse_env_from, parse_volume
from vdbg_env.image.container.run_settings import RunSettings

pod_options = with_options(
    click.option(
        "--k8s-volume", "k8s_volumes", multiple=True, metavar="SOURCE=PATH",
        help="A volume at PATH of the pods and of this machine; SOURCE: pvc:NAME, nfs:SERVER:/x or host:/x.",
    ),
    click.option("--k8s-namespace", metavar="NAME", help="The namespace of the pods, if not the context's."),
    click.option("--k8s-context", metavar="NAME", help="The context of the kubeconfig, if not the current one."),
    click.option(
        "--k8s-env-from", "k8s_env_from", multiple=True, metavar="KIND/NAME",
        help="Give pods the variables of secret/NAME or configmap/NAME; repeatable.",
    ),
    click.option(
        "--k8s-pod", type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="A YAML file merged into the pods' specification: nodeSelector, tolerations, the container `rank`.",
    ),
    click.option("--k8s-python", default="python3", show_default=True, help="Python 3.11 or later of the image."),
    click.option(
        "--k8s-wait", default="10m", show_default=True, callback=seconds, metavar="DURATION",
        help="How long pods may wait for a node and their image.",
    ),
)  # fmt: skip


class PodFlags(TypedDict):
    """What the flags give."""

    k8s_volumes: tuple[str, ...]
    k8s_namespace: str | None
    k8s_context: str | None
    k8s_env_from: tuple[str, ...]
    k8s_pod: Path | dict[str, Any] | None  # a file, or what was in it
    k8s_python: str
    k8s_wait: float


def pod_settings(run: RunSettings, flags: PodFlags) -> PodSettings:
    """Turn the flags into settings; raises BadInput for a wrong value, or without a volume."""
    if not flags["k8s_volumes"]:
        raise BadInput(
            "--on k8s needs a volume that the pods and this machine see",
            cause="ranks write their records into the run's folder",
            next_step="--k8s-volume pvc:NAME=/path --run-dir /path/run1",
        )
    return PodSettings(
        run=run,
        volumes=tuple(map(parse_volume, flags["k8s_volumes"])),
        namespace=flags["k8s_namespace"],
        context=flags["k8s_context"],
        env_from=tuple(map(parse_env_from, flags["k8s_env_from"])),
        overlay=_overlay(flags["k8s_pod"]),
        python=flags["k8s_python"],
        wait_s=flags["k8s_wait"],
    )


def _overlay(path: Path | dict[str, Any] | None) -> dict[str, Any]:
    import yaml

    if not isinstance(path, Path):
        return path or {}
    try:
        found = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or "kind" in found:
        raise BadInput(
            f"{path} is not the specification of a pod", next_step="write its fields alone, as in nodeSelector: {...}"
        )
    return found
