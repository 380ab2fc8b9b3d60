"""Ranks as the pods of one Indexed Job for each attempt.

The Job is made suspended and released when its orders are there, so an engine that dies in between has started nothing.
Orders and variables are in a Secret: everyone who may list Jobs can read a Job. Job, Secret and Service have one name,
which no earlier attempt had; the cluster deletes the two with the Job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from vdbg_env.adapters.execution.hang_tools import gpu_probe, hang_tools
from vdbg_env.adapters.execution.job_builder import StepSettings, job_for
from vdbg_env.adapters.placement.ending_rule import EndingRule
from vdbg_env.adapters.placement.followed import FollowedAttempt
from vdbg_env.adapters.placement.k8s.api import Away, KubeApi, Refused, not_able
from vdbg_env.adapters.placement.k8s.attempt import JobPods, Patience
from vdbg_env.adapters.placement.k8s.evidence import PodEvidence
from vdbg_env.adapters.placement.k8s.package import RANK, shared_package
from vdbg_env.adapters.placement.k8s.watch import PodWatch
from vdbg_env.adapters.placement.rank.orders import ENDED, Orders
from vdbg_env.adapters.placement.rank.rank import COLLECT_LIMIT_S
from vdbg_env.adapters.placement.records import RankRecords
from vdbg_env.application.ports.steps import Layout
from vdbg_env.common.errors import BadInput, HostNotAble
from vdbg_env.common.reading import read_document
from vdbg_env.image.container import step_container
from vdbg_env.image.container.pod_settings import PodSettings
from vdbg_env.image.render import job as objects
from vdbg_env.record.atomic_write import write_json
from vdbg_env.record.redaction.redaction import Pseudonyms, Redactor
from vdbg_env.runbook.invocation import Invocation
from vdbg_env.runbook.machine.ranks import ranked

PACKAGES = Path(step_container.PACKAGES)  # where a pod has our package
RECORD = "job.json"  # in the attempt's folder: which Job it is
_NAMES = 3  # tries to find a name that is free
_MARGIN_S = 10.0  # for the last files of a rank to reach the file server
_QUIET_S = 5.0  # NFS shows a size that is up to three seconds old
_UNFOLLOWED_S = 3600.0  # for what an attempt waits for besides its own time limit


class PodRanks:
    """A StepPlacement on the cluster of `settings`; `ranks` and `nodes` are None where a step says it."""

    def __init__(
        self,
        settings: PodSettings,
        *,
        run: Path,
        api: KubeApi,
        disk_floor: int,
        sensitive: tuple[str, ...] = (),
        names: Pseudonyms | None = None,
        ranks: int | None = None,
        nodes: int | None = None,
        patience: Patience | None = None,
        folder: Path | None = None,
    ) -> None:
        self._settings = settings
        self._run = run.resolve()
        self._api = api
        self._disk_floor = disk_floor
        self._sensitive = sensitive
        self._names = names
        self._ranks = ranks
        self._nodes = nodes
        self._folder = folder or Path.cwd()
        self._patience = patience or Patience(start_s=settings.wait_s)
        if not settings.sees(str(self._run)):
            raise BadInput(
                f"pods do not see the run's folder {self._run}",
                cause="none of the volumes is mounted above it",
                next_step="--run-dir below the path of a --k8s-volume, which this machine must see under the same path",
            )

    def layout(self, invocation: Invocation) -> Layout:
        """Return the ranks: as the command line says, else the step, else one."""
        return Layout(ranks=self._shape(invocation)[1])

    def start(self, invocation: Invocation, directory: Path) -> FollowedAttempt:
        """Make the Job and what belongs to it, and release it; see `StepPlacement.start`."""
        where = directory.resolve()
        (where / ENDED).mkdir(exist_ok=True)
        for _ in range(_NAMES):
            pods = self._pods(invocation, where)
            orders = self._orders(invocation, where, pods.name)
            write_json(
                where / RECORD, {"name": pods.name, "token": pods.token, "namespace": self._api.namespace, "uid": ""}
            )
            try:
                uid = self._made(pods, orders)
                break
            except Refused as refused:
                if refused.status != 409:
                    raise not_able(refused, "no Job can be started", self._api.namespace) from refused
            except Away as away:
                raise not_able(away, "no Job can be started", self._api.namespace) from away
        else:
            raise HostNotAble(f"{_NAMES} names for a Job were taken, {pods.name} the last of them")
        return self._attempt(invocation, where, orders, pods.name, pods.token, uid)

    def adopt(self, invocation: Invocation, directory: Path) -> FollowedAttempt | None:
        """Take over the pods of an engine that is gone; see `StepPlacement.adopt`."""
        where = directory.resolve()
        try:
            known: Mapping[str, str] = read_document(where / RECORD)
        except FileNotFoundError:
            return None
        name, token = known["name"], known["token"]
        try:
            job = self._api.job(name)
            ours = job is not None and job["metadata"].get("labels", {}).get(objects.ATTEMPT) == token
            uid = job["metadata"]["uid"] if job and ours else known["uid"]
            if job and ours and job["spec"].get("suspend"):
                self._api.delete_job(name, uid)
                return None
        except (Away, Refused) as error:
            raise not_able(error, f"Job {name} cannot be found again", self._api.namespace) from error
        orders = self._orders(invocation, where, name)
        if not ours and not RankRecords(where, orders).any_started():
            return None
        return self._attempt(invocation, where, orders, name, token, uid)

    # -- what is made -------------------------------------------------------------------------------------------------

    def _made(self, pods: objects.RankPods, orders: Orders) -> str:
        """Make all objects and release the Job; returns its uid. What was made is removed where a part is refused."""
        job = self._api.create(objects.job(pods, self._settings))
        uid: str = job["metadata"]["uid"]
        try:
            variables = dict(self._settings.run.env)
            self._api.create(objects.secret(pods, job, orders.to_json(), variables))
            if pods.ranks > 1:
                self._api.create(objects.service(pods, job))
            self._api.pods(_selector(pods.token))  # a right that is missing is reported before anything runs
            write_json(Path(pods.folder) / RECORD, {**read_document(Path(pods.folder) / RECORD), "uid": uid})
            self._api.release(pods.name)
        except (Away, Refused):
            with suppress(Away, Refused):
                self._api.delete_job(pods.name, uid)
            raise
        return uid

    def _pods(self, invocation: Invocation, where: Path) -> objects.RankPods:
        nodes, ranks = self._shape(invocation)
        token = token_hex(5)
        step = re.sub(r"[^a-z0-9]+", "-", invocation.step.lower()).strip("-")[:24].strip("-")
        dumps = invocation.watch.dump_wait_s if invocation.artifacts else 0.0
        grace = invocation.kill.grace_s + dumps + COLLECT_LIMIT_S + _MARGIN_S
        user = None if self._settings.run.user is None else _user(self._settings.run.user)
        if user is None and os.geteuid() != 0:
            user = (os.geteuid(), os.getegid())  # a run's record is open to its owner alone
        limit = invocation.timeout_s and invocation.timeout_s + self._settings.wait_s + grace + _UNFOLLOWED_S
        return objects.RankPods(
            name="-".join(filter(None, ("vdbg", step, token))),
            token=token,
            ranks=ranks,
            nodes=nodes,
            start=(self._settings.python, "-I", str(PACKAGES / RANK), f"{objects.ORDERS}/orders"),
            folder=str(where),
            package=str(shared_package(self._run.parent)),
            grace_s=grace,
            user=user,
            limit_s=limit or None,
        )

    def _orders(self, invocation: Invocation, where: Path, name: str) -> Orders:
        nodes, ranks = self._shape(invocation)
        both = ranked(self._visible(invocation), ranks=ranks, nodes=nodes, master=f"{name}-0.{name}")
        rank = where / "${{ rank.host }}-${{ rank.number }}"  # its folder, and the end of its mark
        settings = self._step_settings()
        return Orders(
            directory=str(where),
            step=invocation.step,
            attempt=invocation.attempt,
            first=job_for(both.first, rank, settings),
            others=job_for(both.others, rank, settings),
            rank_from="JOB_COMPLETION_INDEX",
            host_from=objects.NODE_NAME,
            artifacts=tuple(rule.model_dump() for rule in invocation.artifacts),
        )

    def _step_settings(self) -> StepSettings:
        given = dict(self._settings.run.env)
        python = self._settings.python
        return StepSettings(
            env={},
            cwd=self._folder if self._settings.sees(str(self._folder)) else Path(),
            mark=str(self._run),
            inherits=True,
            inherited=given,
            python=python,
            packages=PACKAGES,
            hang_tools=hang_tools(_ByName(), python=python, packages=PACKAGES),
            gpu_probe=gpu_probe(_ByName(), given) if self._settings.run.gpu.by != "none" else (),
            disk_floor=self._disk_floor,
            sensitive=self._sensitive,
            pseudonyms=self._names,
        )

    def _visible(self, invocation: Invocation) -> Invocation:
        """Have the requests that rank 0 replays named by a path that its pod sees."""
        driver = invocation.driver
        if driver is None:
            return invocation
        path = str((self._folder / driver.replay).resolve())
        if not self._settings.sees(path):
            raise BadInput(f"pods do not see {path}", next_step="copy it below the path of a --k8s-volume")
        return replace(invocation, driver=driver.model_copy(update={"replay": path}))

    def _attempt(
        self, invocation: Invocation, where: Path, orders: Orders, name: str, token: str, uid: str
    ) -> FollowedAttempt:
        literals = tuple(os.fsencode(text) for text in orders.others.literals)
        ranks = self._shape(invocation)[1]
        pods = JobPods(
            directory=where,
            records=RankRecords(where, orders),
            ranks=ranks,
            api=self._api,
            name=name,
            uid=uid,
            watch=PodWatch(self._api, _selector(token)),
            evidence=PodEvidence(where, name, Redactor(literals, self._names)),
            patience=self._patience,
        )
        return FollowedAttempt(pods, ranks, EndingRule(invocation, where, quiet_s=_QUIET_S))

    def _shape(self, invocation: Invocation) -> tuple[int, int]:
        asked = invocation.placement
        nodes = self._nodes or asked.nodes or 1
        return nodes, self._ranks or nodes * (asked.per_node or 1)


class _ByName:
    """Finds every program by its name: which of them the image has is known in its pods alone."""

    def which(self, program: str) -> str | None:
        """Return the name."""
        return program


def _selector(token: str) -> str:
    return f"{objects.ATTEMPT}={token}"


def _user(text: str) -> tuple[int, int]:
    user, _, group = text.partition(":")
    if not user.isdigit() or (group and not group.isdigit()):
        raise BadInput(f"--user {text!r}: a pod's user is a number", next_step="--user 1000:1000")
    return int(user), int(group or user)
