"""`git bisect run vdbg-env runbook ... --bisect` over a real repository finds the commit that broke it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLANTED, UNBUILDABLE, HANGS = 9, 6, 10  # git asks the middle first, so that both are met on the way
COMMITS = 14
RUNBOOK = """\
apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: does-it-crash, title: Does this revision crash?}
spec:
  inputs: {argv: {type: array, required: true, description: The workload.}}
  matchers: {failure: {regex: 'an illegal memory access was encountered'}}
  commands:
    workload:
      argv: "${{ inputs.argv }}"
      kill: {signal: SIGTERM, grace: 200ms}
      watch: {output_idle: 1s}
  steps:
    - id: baseline
      name: Does it crash?
      run: workload
      outcomes:
        - reproduced: {when: has(matched.failure), next: end}
        - hang: {when: "ended.by == 'watch'", next: end}
        - not_reproduced: {when: ended.clean, next: end}
        - unresolved: {next: end}
"""


def program(revision: int) -> str:
    """Return what the repository's program is at a revision."""
    if revision == UNBUILDABLE:
        return "this is no Python at all\n"
    if revision == HANGS:
        return "import time; time.sleep(60)\n"
    error = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    return f"raise SystemExit({error!r})\n" if revision >= PLANTED else f"print('fine at {revision}')\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one bad commit, a revision that does not start and one that hangs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (tmp_path / "does-it-crash.yaml").write_text(RUNBOOK)
    git(folder, "init", "-q", "-b", "main")
    for revision in range(COMMITS):
        (folder / "program.py").write_text(f"# revision {revision}\n{program(revision)}")
        git(folder, "add", "program.py")
        git(folder, "commit", "-q", "-m", f"revision {revision}")
    return folder


def git(folder: Path, *words: str, well: bool = True) -> subprocess.CompletedProcess[str]:
    settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    names = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **settings, **names, "PYTHONPATH": str(ROOT / "builder")}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 or not well, done.stdout + done.stderr
    return done


def bisect(repository: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    git(repository, "bisect", "start", "HEAD", f"HEAD~{COMMITS - 1}")
    ours = [sys.executable, "-m", "vdbg_env", "runbook", "-f", "../does-it-crash.yaml", "does-it-crash"]
    kept = ["--bisect", "--batch", *flags, "--", sys.executable, "program.py"]
    return git(
        repository, "bisect", "run", "env", f"VDBG_ENV_RUNS={repository.parent / 'runs'}", *ours, *kept, well=False
    )


def test_the_planted_commit_is_found_past_revisions_that_say_nothing(repository: Path) -> None:
    ran = bisect(repository)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    bad = git(repository, "show", "-s", "--format=%s", "refs/bisect/bad").stdout.strip()
    assert bad == f"revision {PLANTED}"
    assert "is the first bad commit" in ran.stdout
    log = git(repository, "bisect", "log").stdout
    assert {n for n in (UNBUILDABLE, HANGS) if f"# skip: [{_commit(repository, n)}]" in log} == {UNBUILDABLE, HANGS}


def _commit(repository: Path, revision: int) -> str:
    return git(repository, "log", "--all", "--format=%H", f"--grep=^revision {revision}$").stdout.strip()


def test_bisecting_stops_when_the_tool_fails_and_blames_nobody(repository: Path) -> None:
    (repository.parent / "file").write_text("")
    ran = bisect(repository, "--run-dir", str(repository.parent / "file" / "run"))
    assert ran.returncode != 0
    assert "first bad commit" not in ran.stdout
    assert "128" in ran.stdout + ran.stderr
