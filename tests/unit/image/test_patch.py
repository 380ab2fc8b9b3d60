"""A patch arms what runs already: kubectl applies it, the result is valid, and the command still starts."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gpucore.arming import arming
from tests.support.golden import assert_golden
from tests.support.patience import patience
from vdbg_env.common.errors import BadInput
from vdbg_env.image.manifests import armed_start, batch_script, debugged_start
from vdbg_env.image.patch import Arming, arming_patch
from vdbg_env.image.settings import DumpVolume, Gpu, RunSettings

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
JOB = f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: train, uid: 1-2, labels: {{job-name: train}}}}
spec:
  backoffLimit: 6
  ttlSecondsAfterFinished: 60
  selector: {{matchLabels: {{batch.kubernetes.io/controller-uid: 1-2}}}}
  template:
    metadata: {{labels: {{batch.kubernetes.io/controller-uid: 1-2, app: train}}}}
    spec:
      restartPolicy: OnFailure
      containers:
      - name: train
        image: vllm/vllm-openai:v0.33.0
        command: [python3, offline.py]
        {GPUS}
status: {{active: 1}}
"""
JOBSET = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: train, namespace: serving}}
spec:
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 1
        completions: 1
        activeDeadlineSeconds: 600
        template:
          spec:
            containers:
            - {{name: proxy, image: envoy}}
            - name: train
              image: vllm/vllm-openai:v0.33.0
              command: [python3, offline.py]
              env: [{{name: HF_HOME, value: /cache}}]
              startupProbe: {{exec: {{command: ["true"]}}}}
              {GPUS}
"""
WITH_COMMAND = STATEFUL.replace(
    "args: [", 'livenessProbe: {exec: {command: ["true"]}}\n        command: [vllm, serve, '
)
ALL = {"lws": LWS, "jobset": JOBSET, "deployment": DEPLOYMENT, "statefulset": STATEFUL, "job": JOB}
DEBUGGED = replace(ARMING, runbook="illegal-memory-access", inputs={"request": "a b.jsonl"})


def object_of(text: str) -> dict[str, Any]:
    return next(one for one in yaml.safe_load_all(text) if one["kind"] != "Service")


def patched(text: str, folder: Path, arming: Arming = ARMING) -> dict[str, Any]:
    """Return the object as kubectl makes it, without a cluster."""
    patch = arming_patch(text, "FILE", arming)
    return applied(object_of(text), patch.text, folder)


def applied(before: dict[str, Any], patch: str, folder: Path) -> dict[str, Any]:
    """Return an object as kubectl patches it."""
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("kubectl is not installed: the patch is compared with its golden only")
    (folder / "object.yaml").write_text(yaml.safe_dump(before))
    (folder / "patch.yaml").write_text(patch)
    kind = "json" if before["kind"] in {"LeaderWorkerSet", "JobSet"} else "strategic"
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
def test_a_kustomization_takes_the_patch_as_its_first_lines_say(name: str, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("kubectl is not installed")
    text = arming_patch(ALL[name], "FILE", ARMING).text
    (tmp_path / "object.yaml").write_text(yaml.safe_dump(object_of(ALL[name])))
    (tmp_path / "patch.yaml").write_text(text)
    said = next(line for line in text.splitlines() if "In a kustomization: " in line).partition("kustomization: ")[2]
    (tmp_path / "kustomization.yaml").write_text(f"resources: [object.yaml]\n{said}\n")
    done = subprocess.run([kubectl, "kustomize", tmp_path], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "claimName: vdbg-dumps" in done.stdout


def test_parts_of_gpus_count_and_none_does_not() -> None:
    for limits, armed in (({"nvidia.com/mig-3g.40gb": 1}, True), ({"nvidia.com/gpu": "0"}, False)):
        found = object_of(DEPLOYMENT)
        pod = found["spec"]["template"]["spec"]
        pod["containers"] = [pod["containers"][0] | {"resources": {"limits": limits}}]
        notes = arming_patch(yaml.safe_dump(found), "FILE", ARMING).notes
        assert any("No container has a limit" in note for note in notes) is not armed


def test_no_claim_is_asked_for_where_the_pod_has_a_volume_for_dumps() -> None:
    found = object_of(DEPLOYMENT)
    pod = found["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "dumps", "emptyDir": {}}]
    pod["containers"][1]["volumeMounts"] = [{"name": "dumps", "mountPath": "/dumps"}]
    notes = arming_patch(yaml.safe_dump(found), "FILE", ARMING).notes
    assert not any("claim" in note for note in notes)
    assert any("an emptyDir, they end with the pod" in note for note in notes)


def test_dumps_go_to_the_claim_where_the_pod_has_an_empty_dir_of_that_name(tmp_path: Path) -> None:
    found = object_of(DEPLOYMENT)
    pod = found["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "dumps", "emptyDir": {}}, {"name": "vdbg-dumps", "emptyDir": {}}]
    patch = arming_patch(yaml.safe_dump(found), "FILE", ARMING)
    there = applied(found, patch.text, tmp_path)
    kubernetes_validate.validate(there, "1.32", strict=True)
    pod = there["spec"]["template"]["spec"]
    claim = {"name": "vdbg-guard-dumps", "persistentVolumeClaim": {"claimName": "vdbg-dumps"}}
    assert claim in pod["volumes"]
    assert pod["containers"][1]["volumeMounts"] == [{"name": "vdbg-guard-dumps", "mountPath": "/dumps"}]
    assert plain(applied(there, patch.undo, tmp_path)) == found


@pytest.mark.parametrize(
    ("of_pod", "own", "said"),
    [
        ({}, {"runAsUser": 1000}, True),
        ({"runAsNonRoot": True}, {}, True),
        ({"runAsUser": 1000}, {"runAsUser": 0}, False),
        ({"fsGroup": 1000}, {"runAsUser": 1000}, False),
        ({}, {}, False),
    ],
)
def test_a_user_that_may_not_write_to_the_claim_is_named_before(
    of_pod: dict[str, Any], own: dict[str, Any], said: bool
) -> None:
    found = object_of(DEPLOYMENT)
    pod = found["spec"]["template"]["spec"]
    pod["securityContext"], pod["containers"][1]["securityContext"] = of_pod, own
    notes = arming_patch(yaml.safe_dump(found), "FILE", ARMING).notes
    assert any("Container server does not run as root" in note for note in notes) is said


def test_a_runbook_is_refused_for_two_commands_of_one_pod() -> None:
    found = object_of(DEPLOYMENT)
    containers = found["spec"]["template"]["spec"]["containers"]
    containers.append({**containers[1], "name": "embed"})
    with pytest.raises(BadInput, match="request GPUs: server, embed"):
        arming_patch(yaml.safe_dump(found), "FILE", DEBUGGED)
    arming_patch(yaml.safe_dump(found), "FILE", ARMING)  # each has a guard


@pytest.mark.parametrize("name", ALL)
def test_a_patch_reads_as_its_golden(name: str) -> None:
    assert_golden(f"image/patch/{name}.yaml", arming_patch(ALL[name], "FILE", ARMING).text)


def test_kubectl_arms_leader_and_workers_of_a_group(tmp_path: Path) -> None:
    group = patched(LWS, tmp_path)["spec"]["leaderWorkerTemplate"]
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart", "a rank that is started alone serves nothing"
    debugged = object_of(arming_patch(LWS, "FILE", DEBUGGED).object)["spec"]["leaderWorkerTemplate"]
    assert debugged["restartPolicy"] == "None", "the group is not made again while the runbook works"
    leader, worker = group["leaderTemplate"]["spec"], group["workerTemplate"]["spec"]
    assert (leader["terminationGracePeriodSeconds"], worker["terminationGracePeriodSeconds"]) == (300, 600)
    assert leader["containers"][0] == {"name": "proxy", "image": "envoy"}
    for pod, container in ((leader, leader["containers"][1]), (worker, worker["containers"][0])):
        assert container["command"][3:6] == ["vdbg-env", "vllm", "serve"]
        assert {"name": "dumps", "mountPath": "/dumps"} in container["volumeMounts"]
        assert {"name": "dumps", "persistentVolumeClaim": {"claimName": "vdbg-dumps"}} in pod["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in leader["containers"][1]["volumeMounts"]


@pytest.mark.parametrize("name", ["deployment", "statefulset", "job"])
def test_what_kubectl_makes_of_a_built_in_kind_is_valid(name: str, tmp_path: Path) -> None:
    found = patched(ALL[name], tmp_path)
    kubernetes_validate.validate(found, "1.32", strict=True)
    server = found["spec"]["template"]["spec"]["containers"][-1]
    env = {one["name"]: one["value"] for one in server.get("env", ())}
    if name == "deployment":
        assert env == {"HF_HOME": "/cache"}
        assert (server["command"][4:], server["args"]) == (["vllm"], ["serve", "a model"])
    elif name == "statefulset":
        assert env["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == "1"
        assert env["CUDA_COREDUMP_SHOW_PROGRESS"] == "0"
        assert "command" not in server


@pytest.mark.parametrize("arming", [ARMING, DEBUGGED], ids=["armed", "debugged"])
@pytest.mark.parametrize("name", ALL)
def test_the_inverse_patch_brings_the_object_back(name: str, arming: Arming, tmp_path: Path) -> None:
    text = WITH_COMMAND if name == "statefulset" else ALL[name]
    patch = arming_patch(text, "FILE", arming)
    before = object_of(text)
    there = applied(before, patch.text, tmp_path)
    assert there != before
    assert plain(applied(there, patch.undo, tmp_path)) == before


def plain(found: Any) -> Any:
    """Return an object without empty lists: a strategic patch leaves one where it removed the last item."""
    match found:
        case dict():
            return {name: plain(value) for name, value in found.items() if value != []}
        case list():
            return [plain(value) for value in found]
    return found


@pytest.mark.parametrize("name", ["deployment", "statefulset", "job"])
def test_a_debug_run_is_valid_and_starts_once(name: str, tmp_path: Path) -> None:
    text = WITH_COMMAND if name == "statefulset" else ALL[name]
    found = patched(text, tmp_path, DEBUGGED)
    kubernetes_validate.validate(found, "1.32", strict=True)
    pod = found["spec"]["template"]["spec"]
    server = pod["containers"][-1]
    assert "runbook illegal-memory-access --batch --run-dir" in server["command"][2]
    assert "--input 'request=a b.jsonl'" in server["command"][2]
    assert server["command"][3:5] == [
        "vdbg-env",
        object_of(text)["spec"]["template"]["spec"]["containers"][-1]["command"][0],
    ]
    assert not {"livenessProbe", "startupProbe"} & server.keys()
    assert {"name": "dumps", "mountPath": "/dumps"} in server["volumeMounts"]
    if name == "job":
        assert (found["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
        assert "ttlSecondsAfterFinished" not in found["spec"]
    if name != "statefulset":
        assert server["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_the_leader_of_a_group_runs_the_runbook_and_its_workers_see_the_record(tmp_path: Path) -> None:
    group = patched(LWS, tmp_path, DEBUGGED)["spec"]["leaderWorkerTemplate"]
    leader, worker = group["leaderTemplate"]["spec"], group["workerTemplate"]["spec"]
    assert "vdbg-env runbook" in leader["containers"][1]["command"][2]
    assert worker["containers"][0]["command"] == ["vllm", "serve", "a model", "--headless"]
    assert {"name": "dumps", "mountPath": "/dumps"} in worker["containers"][0]["volumeMounts"]


def test_a_job_that_is_made_again_has_nothing_of_the_old_one() -> None:
    found = yaml.safe_load(arming_patch(JOB, "FILE", DEBUGGED).object)
    kubernetes_validate.validate(found, "1.32", strict=True)
    assert "status" not in found and "selector" not in found["spec"]
    assert (found["metadata"], found["spec"]["template"]["metadata"]["labels"]) == (
        {"name": "train", "labels": {}},
        {"app": "train"},
    )


def test_an_object_without_gpus_has_its_first_container_armed_and_says_so() -> None:
    note = "No container has a limit of nvidia.com/gpu, so the first is armed: sidecar."
    assert note in arming_patch(DEPLOYMENT.replace(GPUS, ""), "a.yaml", ARMING).notes
    assert not any("first is armed" in told for told in arming_patch(DEPLOYMENT, "a.yaml", ARMING).notes)


def test_limits_that_are_no_mapping_ask_for_no_gpu() -> None:
    container = {"name": "a", "resources": {"limits": 5}, "command": ["x"]}
    spec = {"template": {"spec": {"containers": [container]}}}
    text = yaml.safe_dump({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec})
    assert "name: a" in arming_patch(text, "FILE", ARMING).object


@pytest.mark.parametrize("name", ["lws", "jobset"])
def test_a_probe_that_is_null_is_not_removed(name: str) -> None:
    """The API server leaves out what is null, and refuses a JSON patch that removes what is not there."""
    found = object_of(ALL[name])
    spec = found["spec"]
    path = (
        ("leaderWorkerTemplate", "leaderTemplate")
        if name == "lws"
        else ("replicatedJobs", 0, "template", "spec", "template")
    )
    for key in path:
        spec = spec[key]
    spec["spec"]["containers"][1]["startupProbe"] = None
    patch = arming_patch(yaml.safe_dump(found), "FILE", DEBUGGED)
    assert "startupProbe" not in patch.text and "startupProbe" not in patch.undo


@pytest.mark.parametrize(
    ("path", "value", "kind"),
    [
        ("spec.replicas", "2", "a whole number"),
        ("spec.template.metadata.labels", "abc", "a mapping"),
        ("metadata.annotations", "abc", "a mapping"),
        ("spec.template.spec.terminationGracePeriodSeconds", "soon", "a whole number"),
        ("spec.template.spec.volumes", "abc", "a list"),
        ("spec.template.spec.containers[0].volumeMounts", {"name": "a"}, "a list"),
        ("spec.template.spec.containers[0].env", "abc", "a list"),
    ],
)
def test_a_field_of_another_type_is_named(path: str, value: object, kind: str) -> None:
    found = object_of(DEPLOYMENT)
    at: Any = found
    *holders, last = path.replace("[0]", "").split(".")
    for key in holders:
        at = at.setdefault(key, {})
        at = at[0] if isinstance(at, list) else at
    at[last] = value
    with pytest.raises(BadInput) as refused:
        arming_patch(yaml.safe_dump(found), "FILE", ARMING)
    assert refused.value.what == f"`{path}` of the Deployment in FILE is not {kind}"


def test_jobs_of_another_type_are_named() -> None:
    for jobs, words in (
        (5, "spec.replicatedJobs` .* not a list"),
        (["abc"], r"spec.replicatedJobs\[0\]` .* not a mapping"),
    ):
        text = yaml.safe_dump({**object_of(JOBSET), "spec": {"replicatedJobs": jobs}})
        with pytest.raises(BadInput, match=words):
            arming_patch(text, "FILE", ARMING)


def test_a_runbook_needs_the_command_in_the_file() -> None:
    with pytest.raises(BadInput, match="a runbook must start one"):
        arming_patch(STATEFUL, "FILE", DEBUGGED)


def test_what_is_armed_already_is_armed_once(tmp_path: Path) -> None:
    once = patched(DEPLOYMENT, tmp_path)
    assert patched(yaml.safe_dump(once), tmp_path) == once


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod\nmetadata: {name: x}", "no object to arm"),
        (f"{DEPLOYMENT}---{STATEFUL}", "2 objects to arm"),
        ("a: [", "FILE:2:1: is not YAML"),
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


@pytest.mark.parametrize("field", ["command", "args"])
def test_a_command_that_is_a_text_is_not_taken_apart(field: str) -> None:
    found = object_of(DEPLOYMENT)
    found["spec"]["template"]["spec"]["containers"][-1][field] = "vllm serve"
    with pytest.raises(BadInput, match=f"`{field}` of container server is not a list"):
        arming_patch(yaml.safe_dump(found), "FILE", ARMING)


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
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    assert f"GPU cores go to {tmp_path}/a pod; the kernel writes those of processes by core_pattern: {pattern}" in said
    assert (tmp_path / "a pod").is_dir()
    tool = tmp_path / "bin" / "vdbg-env"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    tool.chmod(0o755)
    assert started(tmp_path, f"{tool.parent}:/usr/bin:/bin", "vllm", "a model")[:-1] == [
        "guard", "--runs", f"{tmp_path}/a pod/runs", "--", "vllm", "a model",
    ]  # fmt: skip


def debug_run(folder: Path, code: str, **env: str) -> "subprocess.Popen[str]":
    """Start a container's command as a kubelet does; its workload is a program of Python."""
    start = debugged_start(
        f"{folder}/pod", str(folder / "two-steps.yaml"), {}, message=str(folder / "termination-log")
    ).replace(f"$here/{folder}/two-steps.yaml", "$here/two-steps")
    return subprocess.Popen(
        ["/bin/sh", "-c", start, "vdbg-env", sys.executable, "-c", code], env=env | {"PATH": BIN}, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


BIN = f"{Path(sys.executable).parent}:/usr/bin:/bin"
CRASH = "import sys; sys.stderr.write('CUDA error: an illegal memory access was encountered\\n'); sys.exit(1)"


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    recorded = Path(__file__).parents[2] / "data" / "recordings" / "on-k8s" / "two-steps.yaml"
    shutil.copy(recorded, tmp_path)
    return tmp_path


def test_a_runbook_runs_once_and_its_verdict_is_the_termination_message(pod: Path) -> None:
    first = debug_run(pod, CRASH)
    out, err = first.communicate(timeout=patience(120))
    assert first.returncode == 3, (out, err)
    said = (pod / "termination-log").read_text()
    assert said.startswith("two-steps: reproduced, ")
    assert "found    saw CUDA error: an illegal memory access" in said
    assert (pod / "pod" / "two-steps" / "report.json").exists()
    again = debug_run(pod, "raise SystemExit('started again')")
    assert again.stderr and "the runbook has ended" in again.stderr.readline()
    again.terminate()
    again.communicate(timeout=patience(10))
    assert again.returncode == 0


def test_a_run_that_a_pod_cut_short_is_resumed_by_its_next_start(pod: Path) -> None:
    waits = "os.environ.get('CUDA_LAUNCH_BLOCKING') and not os.path.exists('go')"
    slow = f"import os, time; {waits} and (open('runs', 'w'), time.sleep(600)); {CRASH}"
    first = debug_run(pod, slow)
    until = time.monotonic() + patience(60)
    while not (pod / "runs").exists():
        assert time.monotonic() < until and first.poll() is None, first.communicate()
        time.sleep(0.1)
    first.terminate()
    out, err = first.communicate(timeout=patience(60))
    assert first.returncode == 143, (out, err)
    assert "interrupted" in (pod / "termination-log").read_text()
    (pod / "go").touch()
    second = debug_run(pod, slow)
    out, err = second.communicate(timeout=patience(120))
    assert second.returncode == 3, (out, err)
    assert "illegal memory access" in (pod / "termination-log").read_text()


def test_workers_of_a_group_start_as_they_do_and_an_image_without_the_program_says_so(pod: Path) -> None:
    worker = debug_run(pod, "print('a worker')", LWS_WORKER_INDEX="1")
    assert worker.communicate(timeout=patience(20))[0] == "a worker\n"
    start = debugged_start(f"{pod}/pod", "host-crash", {}, message=str(pod / "termination-log"))
    (pod / "bin").mkdir()
    for name in ("mkdir", "tee"):
        (pod / "bin" / name).symlink_to(f"/bin/{name}" if name == "mkdir" else "/usr/bin/tee")
    bare = subprocess.run(["/bin/sh", "-c", start, "x", "true"], env={"PATH": str(pod / "bin")}, check=False)
    assert bare.returncode == 127
    assert "this image has no vdbg-env" in (pod / "termination-log").read_text()


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
