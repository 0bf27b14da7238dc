"""Writes what enforces `spec.access`: an admission policy with its binding, and quotas.

They are written when a policy is first seen by this process and whenever what is wanted of them changes; nothing is read or
written in between. What is not wanted any more is deleted if the policy is its owner, so that an object of
somebody else with the same name is never touched.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpupolicy.adapters import kube
from gpupolicy.api import names
from gpupolicy.api.conditions import Reason
from gpupolicy.controller.world import PolicyEntry
from gpupolicy.core import access
from gpupolicy.core.classes import DesiredClass
from gpupolicy.core.refusals import Refusal

_MANAGER: Final = names.CONTROLLER_FIELD_MANAGER
_FENCES: Final = (kube.VALIDATING_ADMISSION_POLICY_BINDINGS, kube.VALIDATING_ADMISSION_POLICIES)


class AccessWriter:
    """Brings the objects of policies in line; one instance per process."""

    def __init__(self, client: kube.Kube) -> None:
        self._client = client
        self._written: dict[str, object] = {}
        """Policy UID -> what was written last."""

    async def write(self, entry: PolicyEntry, wishes: Sequence[DesiredClass]) -> Refusal | None:
        """Write what a policy wants; return why that cannot be, in words for its status.

        Raises:
            ApiError: the API server refused or did not answer.
        """
        wanted = entry.policy.spec.access
        problem = access.refusal(wanted, wishes)
        if problem is not None:
            return problem
        fence = access.fence(entry.name, entry.uid, wanted, wishes)
        quotas = access.quotas(entry.name, entry.uid, wanted, wishes)
        if self._written.get(entry.uid) == (fence, quotas):
            return None
        # A fence that is wider than before comes first, one that goes goes last: nobody is let in by the way.
        if fence is not None:
            await self._apply(kube.VALIDATING_ADMISSION_POLICIES, fence.policy)
            await self._apply(kube.VALIDATING_ADMISSION_POLICY_BINDINGS, fence.binding)
        missing = [n for n, quota in quotas.items() if not await self._apply_quota(quota)]
        await self._remove_quotas(entry, keep=quotas)
        if fence is None:
            for resource in _FENCES:
                await self._remove(resource, access.object_name(entry.name), entry.uid)
        if missing:
            return Refusal(
                Reason.INVALID_POLICY,
                f"spec.access.quotas: there is no namespace {', '.join(missing)}; create it or remove the entry",
            )
        self._written[entry.uid] = (fence, quotas)
        return None

    def forget(self, uid: str) -> None:
        """Forget a policy that is gone; its objects go with it."""
        self._written.pop(uid, None)

    async def _apply(self, resource: Any, body: Mapping[str, Any]) -> None:
        await self._client.apply(resource, dict(body), field_manager=_MANAGER, force=True)

    async def _apply_quota(self, quota: Mapping[str, Any]) -> bool:
        try:
            await self._apply(kube.RESOURCE_QUOTAS, quota)
        except kube.NotFound:
            return False
        return True

    async def _remove_quotas(self, entry: PolicyEntry, *, keep: Mapping[str, Any]) -> None:
        selector = f"{names.POLICY_LABEL}={entry.name},{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"
        found = await self._client.list(kube.RESOURCE_QUOTAS, label_selector=selector)
        for item in found.items:
            meta = item["metadata"]
            if meta["namespace"] not in keep and _owned(item, entry.uid):
                await self._delete(kube.RESOURCE_QUOTAS, meta["name"], meta["uid"], meta["namespace"])

    async def _remove(self, resource: Any, name: str, owner_uid: str) -> None:
        try:
            found = await self._client.get(resource, name)
        except kube.NotFound:
            return
        if _owned(found, owner_uid):
            await self._delete(resource, name, found["metadata"]["uid"])

    async def _delete(self, resource: Any, name: str, uid: str, namespace: str | None = None) -> None:
        try:
            await self._client.delete(resource, name, namespace, uid=uid)
        except (kube.NotFound, kube.Conflict):
            return


def _owned(item: Mapping[str, Any], uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences", ()))
