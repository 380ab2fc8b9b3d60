"""A patch arms what runs already: kubectl applies it, the result is valid, and the command still starts."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.golden import assert_golden
from vdbg_env.common.errors import BadInput
from vdbg_env.cuda.arming import arming
from vdbg_env.image.container.run_settings import DumpVolume, Gpu, RunSettings
from vdbg_env.image.render.armed_start import armed_start
from vdbg_env.image.render.batch_script import batch_script
from vdbg_env.image.render.patch import Arming, arming_patch

ARMING = Arming(variables=arming("/dumps"), dumps=DumpVolume(source="vdbg-dumps"), grace_s=300)
GPUS = "resources: {limits: {nvidia.com/gpu: '8'}}"
LWS = f"""
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: llm, namespace: serving}}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      spec:
        containers:
        - {{name: proxy, image: envoy}}
        - name: leader
          image: vllm/vllm-openai:v0.33.0
          command: [vllm, serve, a model, --nnodes, "2"]
          {GPUS}
          volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
        volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
    workerTemplate:
      spec:
        terminationGracePeriodSeconds: 600
        containers:
        - name: worker
          image: vllm/vllm-openai:v0.33.0
          command: [vllm, serve, a model, --headless]
          {GPUS}
"""
DEPLOYMENT = f"""
apiVersion: v1
kind: Service
metadata: {{name: llm}}
spec: {{ports: [{{port: 8000}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: llm}}
spec:
  selector: {{matchLabels: {{app: llm}}}}
  template:
    metadata: {{labels: {{app: llm}}}}
    spec:
      containers:
      - {{name: sidecar, image: fluent}}
      - name: server
        image: vllm/vllm-openai:v0.33.0
        command: [vllm]
        args: [serve, a model]
        env: [{{name: HF_HOME, value: /cache}}]
        {GPUS}
"""
STATEFUL = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: llm}
spec:
  serviceName: llm
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec:
      containers:
      - name: server
        image: vllm/vllm-openai:v0.33.0
        args: [--model, a model]
        env: [{name: CUDA_COREDUMP_SHOW_PROGRESS, value: "0"}]
"""
ALL = {"lws": LWS, "deployment": DEPLOYMENT, "statefulset": STATEFUL}


def object_of(text: str) -> dict[str, Any]:
    return next(one for one in yaml.safe_load_all(text) if one["kind"] != "Service")


def patched(text: str, folder: Path) -> dict[str, Any]:
    """Return the object as kubectl makes it, without a cluster."""
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("kubectl is not installed: the patch is compared with its golden only")
    patch = arming_patch(text, "FILE", ARMING)
    (folder / "object.yaml").write_text(yaml.safe_dump(object_of(text)))
    (folder / "patch.yaml").write_text(patch.text)
    words = patch.apply.split()
    kind = words[words.index("--type") + 1]
    done = subprocess.run(
        [kubectl, "patch", "--local", "--filename", "object.yaml", "--type", kind, "--patch-file", "patch.yaml",
         "--output", "yaml"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "KUBECONFIG": str(folder / "none")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


@pytest.mark.parametrize("name", ALL)
def test_a_patch_reads_as_its_golden(name: str) -> None:
    assert_golden(f"image/patch/{name}.yaml", arming_patch(ALL[name], "FILE", ARMING).text)


def test_kubectl_arms_leader_and_workers_of_a_group(tmp_path: Path) -> None:
    group = patched(LWS, tmp_path)["spec"]["leaderWorkerTemplate"]
    assert group["restartPolicy"] == "None"
    leader, worker = group["leaderTemplate"]["spec"], group["workerTemplate"]["spec"]
    assert (leader["terminationGracePeriodSeconds"], worker["terminationGracePeriodSeconds"]) == (300, 600)
    assert leader["containers"][0] == {"name": "proxy", "image": "envoy"}
    for pod, container in ((leader, leader["containers"][1]), (worker, worker["containers"][0])):
        assert container["command"][3:6] == ["vdbg-env", "vllm", "serve"]
        assert {"name": "dumps", "mountPath": "/dumps"} in container["volumeMounts"]
        assert {"name": "dumps", "persistentVolumeClaim": {"claimName": "vdbg-dumps"}} in pod["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in leader["containers"][1]["volumeMounts"]


@pytest.mark.parametrize("name", ["deployment", "statefulset"])
def test_what_kubectl_makes_of_a_built_in_kind_is_valid(name: str, tmp_path: Path) -> None:
    found = patched(ALL[name], tmp_path)
    kubernetes_validate.validate(found, "1.32", strict=True)
    server = found["spec"]["template"]["spec"]["containers"][-1]
    env = {one["name"]: one["value"] for one in server["env"]}
    if name == "deployment":
        assert env == {"HF_HOME": "/cache"}
        assert (server["command"][4:], server["args"]) == (["vllm"], ["serve", "a model"])
    else:
        assert env["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == "1"
        assert env["CUDA_COREDUMP_SHOW_PROGRESS"] == "0"
        assert "command" not in server


def test_what_is_armed_already_is_armed_once(tmp_path: Path) -> None:
    once = patched(DEPLOYMENT, tmp_path)
    assert patched(yaml.safe_dump(once), tmp_path) == once


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod\nmetadata: {name: x}", "no object to arm"),
        (f"{DEPLOYMENT}---{STATEFUL}", "2 objects to arm"),
        ("a: [", "is not YAML"),
        ("kind: Deployment\nmetadata: {name: x}\nspec: {}", "no name, or no pod"),
        ("- 1\n- 2", "no object to arm"),
    ],
)
def test_a_file_without_one_object_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        arming_patch(text, "FILE", ARMING)


def test_another_image_needs_the_command_in_the_file() -> None:
    other = Arming(variables={}, dumps=ARMING.dumps, grace_s=30, image="vdbg/debug:1")
    with pytest.raises(BadInput, match="another entry point"):
        arming_patch(STATEFUL, "FILE", other)
    assert "vdbg/debug:1" in arming_patch(DEPLOYMENT, "FILE", other).text


def started(folder: Path, path: str, *words: str) -> list[str]:
    script = armed_start(f"{folder}/a pod", {"CUDA_COREDUMP_FILE": "$here/core.%p"})
    done = subprocess.run(
        ["/bin/sh", "-c", script, "vdbg-env", *words], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    return [*done.stdout.splitlines(), done.stderr.strip()]


def test_a_command_starts_under_guard_and_without_it(tmp_path: Path) -> None:
    """A patch must not keep a production server down because its image lacks vdbg-env."""
    words = ("/bin/sh", "-c", 'echo "$1"; echo "$CUDA_COREDUMP_FILE"', "x", "two words")
    out, core, said = started(tmp_path, "/usr/bin:/bin", *words)
    assert (out, core) == ("two words", f"{tmp_path}/a pod/core.%p")
    assert "armed, but not guarded" in said
    assert (tmp_path / "a pod").is_dir()
    tool = tmp_path / "bin" / "vdbg-env"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    tool.chmod(0o755)
    assert started(tmp_path, f"{tool.parent}:/usr/bin:/bin", "vllm", "a model")[:-1] == [
        "guard", "--runs", f"{tmp_path}/a pod/runs", "--", "vllm", "a model",
    ]  # fmt: skip


@pytest.mark.parametrize("image", [None, "registry/debug:1"])
def test_a_batch_script_reads_as_its_golden(image: str | None) -> None:
    settings = RunSettings(image="unused", gpu=Gpu(by="runtime", devices=("8",)))
    script = batch_script(settings, arming("/dumps"), image=image)
    assert_golden(f"image/slurm/{'container' if image else 'nodes'}.sh", script)


def test_a_batch_script_gives_each_task_its_own_words(tmp_path: Path) -> None:
    """With a stand-in for srun that starts two tasks, one after the other."""
    settings = RunSettings(image="unused", dumps=DumpVolume(source=f'{tmp_path}/du "m$ps', kind="bind"))
    (tmp_path / "job.sh").write_text(batch_script(settings, arming("/dumps"), image=None))
    shim = tmp_path / "srun"
    shim.write_text(
        '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\n'
        'for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@" || exit; done\n'
    )
    shim.chmod(0o755)
    words = ("/bin/sh", "-c", 'echo "$1,$2,$CUDA_COREDUMP_FILE"', "x", "$SLURM_PROCID", "a b")
    done = subprocess.run(
        ["/bin/bash", tmp_path / "job.sh", *words],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        f'{rank},a b,{tmp_path}/du "m$ps/7-{rank}/core.%h.%p.%t.nvcudmp' for rank in (0, 1)
    ]
