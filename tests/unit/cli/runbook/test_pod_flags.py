"""The flags of pods: what is missing, and what has no effect, is reported before anything is asked of a cluster."""

from pathlib import Path

import pytest

from tests.support.command_line import vdbg_env

ON = ("runbook", "host-crash", "--on", "k8s")
VOLUME = ("--k8s-volume", "pvc:runs=/data")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*ON, "--", "x"), "--on k8s needs --image"),
        ((*ON, "--image", "i", "--", "x"), "--on k8s needs a volume"),
        ((*ON, "--image", "i", *VOLUME, "--mount", "/a", "--", "x"), "--mount has no effect on pods"),
        ((*ON, "--image", "i", *VOLUME, "--submit", "--", "x"), "--submit is for ranks of Slurm"),
        (("runbook", "host-crash", *VOLUME, "--", "x"), "--k8s-volume is for pods: add --on k8s"),
        (("runbook", "host-crash", "--k8s-wait", "5m", "--", "x"), "--k8s-wait is for pods: add --on k8s"),
        (("runbook", "host-crash", "--k8s-python", "py", "--", "x"), "--k8s-python is for pods: add --on k8s"),
        (
            ("runbook", "host-crash", "--submit-arg=-p x", "--", "x"),
            "--submit-arg is for ranks of Slurm: add --on slurm",
        ),
        (("runbook", "host-crash", "--scratch-limit", "1g", "--", "x"), "--scratch-limit is for ranks of Slurm"),
        (("runbook", "host-crash", "--on", "slurm", "--setup", "/etc/profile", "--", "x"), "add --submit"),
        (("runbook", "host-crash", "--on", "slurm", "--scratch-limit", "1g", "--", "x"), "add --scratch DIR"),
        (("triage", "--run", "--on", "k8s", "x.log", "--", "x"), "vdbg-env runbook NAME --on k8s starts more"),
        (("runbook", "host-crash", "--nodes", "2", "--", "x"), "add --on slurm or --on k8s"),
    ],
)
def test_flags_that_do_not_fit_are_refused(words: tuple[str, ...], said: str) -> None:
    ran = vdbg_env(*words)
    assert ran.status == 2
    assert said in " ".join(ran.stderr.split())


def test_a_file_that_is_a_whole_object_is_no_part_of_a_pod(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\nspec: {}\n")
    ran = vdbg_env(*ON, "--image", "i", *VOLUME, "--k8s-pod", str(tmp_path / "pod.yaml"), "--", "x")
    assert (ran.status, "is not the specification of a pod" in ran.stderr) == (2, True)


def test_a_run_outside_of_every_volume_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: a, user: u}}]\n"
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]\nusers: [{name: u, user: {token: none}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    ran = vdbg_env(*ON, "--image", "i", *VOLUME, "--gpu", "none", "--run-dir", str(tmp_path / "run"), "--", "true")
    assert ran.status == 2, ran.stderr
    assert "pods do not see the run's folder" in ran.stderr
