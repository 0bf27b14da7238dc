"""The writes of the controller, each a small function: what is right already is not written.

Classes and statuses are server-side applies, with force where what stands is ours, because then every field in them is;
the rest are merge patches. Each carries the UID of the object that was decided about, so that no write lands on
another object that took its name meanwhile, and none makes an object that somebody just deleted.
"""

import datetime as dt
import logging
from collections.abc import Sequence
from typing import Any, Final

from gpupolicy.adapters import kube
from gpupolicy.api import names
from gpupolicy.api.node import GpuAssignment
from gpupolicy.api.policy import GpuPolicyStatus
from gpupolicy.controller import events
from gpupolicy.core import classes
from gpupolicy.core.observation import ObservedNode

logger = logging.getLogger(__name__)

_MANAGER: Final = names.CONTROLLER_FIELD_MANAGER


async def device_class(
    client: kube.Kube, body: kube.Object, live: classes.LiveClass | None
) -> tuple[classes.LiveClass, tuple[str, ...]]:
    """Apply one of our DeviceClasses; return it as stored, and the fields that the API server dropped.

    Args:
        client: the API server.
        body: the class.
        live: ours as it stands. Without it nothing is forced: what has the name all the same is somebody else's.

    Raises:
        Conflict: somebody else's class has the name by now.
    """
    if live is not None:
        body = {**body, "metadata": {**body["metadata"], "uid": live.uid}}
    stored = await client.apply(kube.DEVICE_CLASSES, body, field_manager=_MANAGER, force=live is not None)
    return classes.LiveClass.of(stored), tuple(kube.dropped_fields({"spec": body["spec"]}, stored))


async def delete_class(client: kube.Kube, live: classes.LiveClass) -> None:
    """Delete one of our DeviceClasses, if it is still the one that was decided about."""
    try:
        await client.delete(kube.DEVICE_CLASSES, live.name, uid=live.uid)
    except (kube.NotFound, kube.Conflict):
        logger.info("DeviceClass %s is gone already", live.name)


async def annotate_class(
    client: kube.Kube, live: classes.LiveClass, annotation: str, value: str | None
) -> classes.LiveClass:
    """Set or remove what a class tells about its extended resource name; return it as stored."""
    patch = {"metadata": {"uid": live.uid, "annotations": {annotation: value}}}
    return classes.LiveClass.of(
        await client.patch(kube.DEVICE_CLASSES, live.name, patch, field_manager=_MANAGER)
    )


async def node_spec(
    client: kube.Kube, node: ObservedNode, wanted: Sequence[GpuAssignment], *, clear_releases: bool = False
) -> kube.Object:
    """Write the spec of a GpuNode, if it is still the version that was decided on; return it as stored.

    A controller that was stopped for a while, or whose watch is late, must not undo what the leader after it wrote:
    the agent would carve cards by it before anybody puts it right.

    A merge patch, and no apply: the controller is the only writer of this list, and an apply that takes the last
    element out of a list takes the list and then the spec itself away, which the schema refuses.

    Raises:
        Conflict: it is another version by now, or another object.
    """
    spec: dict[str, Any] = {"gpus": [assignment.to_wire() for assignment in wanted]}
    if clear_releases:
        spec["releases"] = None
    patch = {"metadata": {"uid": node.uid, "resourceVersion": node.resource_version}, "spec": spec}
    return await client.patch(kube.GPUNODES, node.name, patch, field_manager=_MANAGER)


async def policy_status(client: kube.Kube, policy: str, uid: str, status: GpuPolicyStatus) -> kube.Object:
    """Apply the status of a policy; return the policy as stored."""
    body: dict[str, Any] = {"metadata": {"name": policy, "uid": uid}, "status": status.to_wire()}
    return await kube.apply_status(client, kube.GPUPOLICIES, body, field_manager=_MANAGER)


class Poster:
    """Posts events. An event that cannot be posted is logged and forgotten: what it says stands in a status too."""

    def __init__(self, client: kube.Kube, identity: str) -> None:
        self._client = client
        self._identity = identity

    async def post(self, event: events.Event, now: dt.datetime) -> None:
        """Post one event, and log it: events are forgotten after an hour."""
        subject = event.subject
        logger.info("%s %s: %s: %s", subject.kind, subject.name, event.reason, event.note)
        regarding = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "metadata": {"name": subject.name, "uid": subject.uid},
        }
        await self._client.create_event(
            regarding,
            type_=event.type,
            reason=event.reason,
            note=event.note,
            action=event.action,
            controller=names.CONTROLLER_COMPONENT,
            instance=self._identity,
            now=now,
        )
