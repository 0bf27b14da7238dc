"""Waits until the API server serves every kind that the controller lives on, and says meanwhile what is missing.

A watch on a kind that is not served only fails, so nothing begins before. Without our own kinds there is nobody to tell
but the log. Where only kinds of Kubernetes are missing, the API server is too old or was told not to serve them: then
every policy says so as well. Whoever leads later writes the same statuses anew, so no Lease is needed for that.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from typing import Final

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import backoff
from gpupolicy.api.conditions import ConditionType, Reason
from gpupolicy.api.policy import GpuPolicy, GpuPolicyStatus
from gpupolicy.controller import apply
from gpupolicy.controller.world import World
from gpupolicy.core import render, status
from gpupolicy.core.status import Verdict

logger = logging.getLogger(__name__)

OURS: Final = (kube.GPUPOLICIES, kube.GPUNODES)
NEEDED: Final = (kube.DEVICE_CLASSES, kube.RESOURCE_SLICES, kube.RESOURCE_CLAIMS)

_PAUSE_SECONDS: Final = (0.5, 15.0)


async def wait(client: kube.Kube, clock: Callable[[], dt.datetime]) -> None:
    """Return when all kinds are served; until then say in log and policies which are not."""
    pause = backoff.Backoff(*_PAUSE_SECONDS)
    told = ""
    while True:
        try:
            problem = await _problem(client, clock)
        except kube.ApiError as error:
            problem = f"The API server does not answer: {error}"
        if not problem:
            return
        if problem != told:
            logger.warning("%s. Waiting", problem)
            told = problem
        await asyncio.sleep(pause.next_seconds())


async def _problem(client: kube.Kube, clock: Callable[[], dt.datetime]) -> str:
    missing = [r for r in OURS if not await client.serves(r)]
    if missing:
        return f"The API server does not serve {_listed(missing)}; install the CRDs (crds/, or the chart)"
    missing = [r for r in NEEDED if not await client.serves(r)]
    if not missing:
        return ""
    version = await client.version()
    problem = (
        f"The API server (release {version.major}.{version.minor}) does not serve {_listed(missing)}; GpuPolicy needs "
        "Kubernetes 1.34 or later with resource.k8s.io/v1 switched on"
    )
    await _tell(client, problem, clock())
    return problem


async def _tell(client: kube.Kube, problem: str, now: dt.datetime) -> None:
    """Write the problem into every policy that does not say so yet."""
    world = World()
    for body in (await client.list(kube.GPUPOLICIES)).items:
        world.put_policy(body)
    for entry in world.policies.values():
        wanted = _status(entry.policy, problem, now)
        if wanted != entry.policy.status:
            await apply.policy_status(client, entry.name, entry.uid, wanted)


def _status(policy: GpuPolicy, problem: str, now: dt.datetime) -> GpuPolicyStatus:
    verdicts = [
        Verdict(type_, "False", Reason.KUBERNETES_TOO_OLD, status.shortened(problem))
        for type_ in (ConditionType.ACCEPTED, ConditionType.APPLIED, ConditionType.READY)
    ]
    generation = policy.metadata.generation
    told = status.conditions(
        policy.status.conditions, verdicts, generation=generation, now=render.timestamp(now)
    )
    return policy.status.model_copy(update={"conditions": told, "observed_generation": generation})


def _listed(missing: list[kube.Resource]) -> str:
    return ", ".join(map(str, missing))
