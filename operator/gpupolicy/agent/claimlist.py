"""Which devices of this node the API server shows as allocated, asked only when it matters.

Every agent that watched every claim of the cluster would make the API server send each claim to each node. So the
claims are listed once before cards are changed, and while a card waits for a claim that this node has not
prepared, that one claim is looked at now and then. What the node has prepared is in its ledger anyway.
"""

import time
from typing import Final, Protocol

from gpupolicy.adapters import kube
from gpupolicy.core import tally
from gpupolicy.core.inventory import ClaimUse

_LOOK_SECONDS: Final = (2.0, 30.0)


class Source(Protocol):
    """The part of `kube.Kube` that is needed here."""

    async def list(
        self, resource: kube.Resource, *, transform: kube.Transform | None = None
    ) -> kube.ObjectList:
        """Return all objects."""
        ...

    async def get(self, resource: kube.Resource, name: str, namespace: str | None = None) -> kube.Object:
        """Return one object."""
        ...


class ClaimList:
    """The allocations of one pool.

    Args:
        source: the API server.
        pool: name of the pool.
    """

    def __init__(self, source: Source, pool: str) -> None:
        self._source = source
        self._pool = pool
        self._pause_seconds = _LOOK_SECONDS[0]
        self._look_at = 0.0
        self._awaited: frozenset[str] = frozenset()
        self.allocated: dict[str, tuple[ClaimUse, ...]] = {}
        """Claims by device name, as of the last look. Claims that nobody waits for are forgotten."""

    async def list(self) -> dict[str, tuple[ClaimUse, ...]]:
        """Read all claims and return those of this pool, by device name.

        Raises:
            KubeError: nothing is known; what was known before stays.
        """
        found: dict[str, dict[str, ClaimUse]] = {}

        def read(claim: kube.Object) -> None:
            self._read(claim, found)

        await self._source.list(kube.RESOURCE_CLAIMS, transform=read)
        self.allocated = _sorted(found)
        return self.allocated

    async def refresh(self, awaited: frozenset[str]) -> bool:
        """Look again at the claims with these UIDs, if it is time to; forget the others.

        Never raises: while the API server is away, what was known holds.

        Returns:
            Whether something that was waited for has changed.
        """
        if awaited != self._awaited:
            self._awaited, self._pause_seconds, self._look_at = awaited, _LOOK_SECONDS[0], 0.0
        known = {use.uid: use for uses in self.allocated.values() for use in uses if use.uid in awaited}
        if not known:
            self.allocated = {}
            return False
        if time.monotonic() < self._look_at:
            return False
        found = await self._look(known)
        before, self.allocated = self.allocated, _sorted(found)
        self._look_at = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _LOOK_SECONDS[1])
        return {u.uid for uses in before.values() for u in uses if u.uid in awaited} != {
            u.uid for uses in self.allocated.values() for u in uses
        }

    async def _look(self, known: dict[str, ClaimUse]) -> dict[str, dict[str, ClaimUse]]:
        """Return what these claims hold now, by device; of those that cannot be asked for, what they held."""
        found: dict[str, dict[str, ClaimUse]] = {}
        for number, (uid, use) in enumerate(known.items()):
            try:
                claim = await self._source.get(kube.RESOURCE_CLAIMS, use.name, use.namespace)
            except kube.NotFound:
                continue
            except kube.KubeError:
                # The cards must not wait for one time-out after the other: the rest is looked at next time.
                unknown = set(list(known)[number:])
                for name, uses in self.allocated.items():
                    held = {u.uid: u for u in uses if u.uid in unknown}
                    if held:
                        found.setdefault(name, {}).update(held)
                break
            if claim.get("metadata", {}).get("uid") == uid:
                self._read(claim, found)
        return found

    def _read(self, claim: kube.Object, found: dict[str, dict[str, ClaimUse]]) -> None:
        for holding in tally.holdings(claim):
            if holding.pool == self._pool:
                found.setdefault(holding.device, {})[holding.claim.uid] = holding.claim


def _sorted(found: dict[str, dict[str, ClaimUse]]) -> dict[str, tuple[ClaimUse, ...]]:
    return {name: tuple(uses[uid] for uid in sorted(uses)) for name, uses in sorted(found.items())}
