"""What the controller knows of the cluster: trimmed copies, kept by the watches, read by the reconciler.

One event loop writes and reads it, so nothing here is locked. Two sources may deliver the same object: a watch, and
the answer to our own write. So a copy that is older than the one at hand is ignored, and one of an object that was
seen to go stays gone. A policy that is being deleted counts as gone, because nothing of ours waits for its end.
"""

import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import pydantic

from gpupolicy.api import names
from gpupolicy.api.node import GpuNode
from gpupolicy.api.policy import GpuPolicy, GpuPolicyStatus, ObjectMeta
from gpupolicy.core import access_objects, tally
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.labels import LabelSelector
from gpupolicy.core.observation import ObservedNode, Reader

Object = Mapping[str, Any]

REMEMBERED_DEATHS: Final = 4096
"""A copy that arrives later than this many deletions after its object's is not a case that happens."""


@dataclass(frozen=True)
class PolicyEntry:
    """A policy as it arrived."""

    policy: GpuPolicy
    problem: str | None = None
    """Why its spec cannot be read; then the spec at hand is an empty one."""

    @functools.cached_property
    def node_selector(self) -> LabelSelector:
        """The nodes it selects."""
        return LabelSelector.of(self.policy.spec.node_selector)

    def without_version(self) -> "PolicyEntry":
        """Return the entry as one that any other is newer than."""
        metadata = self.policy.metadata.model_copy(update={"resource_version": ""})
        return PolicyEntry(self.policy.model_copy(update={"metadata": metadata}), self.problem)

    @property
    def name(self) -> str:
        """Name of the policy."""
        return self.policy.metadata.name

    @property
    def uid(self) -> str:
        """UID of the policy."""
        return self.policy.metadata.uid


class World:
    """The copies.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.policies: dict[str, PolicyEntry] = {}
        self.labels: dict[str, Mapping[str, str]] = {}
        """Labels of every node."""
        self.nodes: dict[str, ObservedNode] = {}
        """Every GpuNode, read."""
        self.classes: dict[str, LiveClass] = {}
        self.access: dict[access_objects.Key, access_objects.LiveObject] = {}
        """What enforces `spec.access` of all policies."""
        self._reader = Reader()
        self._silent: set[str] = set()
        self._heard: dict[str, tuple[float, bool]] = {}
        """When an agent said something last, and whether we were there or found it said."""
        self._gone: OrderedDict[str, None] = OrderedDict()
        """UIDs of objects that went, the latest last."""
        self._access_gone: OrderedDict[str, int] = OrderedDict()
        """The last version that was known of objects in `access` that went from the watch."""
        self._slices: dict[str, dict[str, tally.PublishedSlice]] = {}
        self._slice_pools: dict[str, str] = {}
        self._holdings: dict[str, dict[str, tuple[tally.Holding, ...]]] = {}
        self._claim_pools: dict[str, frozenset[str]] = {}
        self._tallies: dict[str, tally.PoolTally] = {}

    def forget_versions(self) -> None:
        """Believe whatever comes next: the server was restored from a backup, and its versions went back.

        Objects that went since the backup live again, with the UIDs that they had.
        """
        self.policies = {name: entry.without_version() for name, entry in self.policies.items()}
        self.nodes = {name: replace(node, resource_version="") for name, node in self.nodes.items()}
        self.classes = {name: replace(live, resource_version="") for name, live in self.classes.items()}
        self.access = {key: replace(live, resource_version="") for key, live in self.access.items()}
        self._gone.clear()
        self._access_gone.clear()

    def put_policy(self, body: Object) -> bool:
        """Take a policy; return whether anything but its status is new."""
        entry = _policy(body)
        old = self.policies.get(entry.name)
        if entry.policy.metadata.deletion_timestamp is not None:
            return self.drop_policy(entry.name, entry.uid)
        if entry.uid in self._gone or (
            old is not None and _is_older(entry.policy.metadata, old.policy.metadata)
        ):
            return False
        self.policies[entry.name] = entry
        return old is None or (old.uid, old.policy.spec, old.problem) != (
            entry.uid,
            entry.policy.spec,
            entry.problem,
        )

    def drop_policy(self, name: str, uid: str) -> bool:
        """Forget a policy, unless another one has its name by now; return whether it was there."""
        self._bury(uid)
        old = self.policies.get(name)
        if old is None or old.uid != uid:
            return False
        del self.policies[name]
        return True

    def put_labels(self, node: str, labels: Mapping[str, str]) -> None:
        """Take the labels of a node."""
        self.labels[node] = labels

    def read_node(self, body: Object) -> ObservedNode:
        """Read a GpuNode. One that cannot be read is one whose agent never reported."""
        try:
            return self._reader.read(GpuNode.model_validate(body))
        except pydantic.ValidationError:
            meta = ObjectMeta.model_validate(body["metadata"])
            return ObservedNode(meta.name, meta.uid, meta.resource_version, generation=meta.generation)

    def put_node(self, node: ObservedNode) -> bool:
        """Take a GpuNode; return whether it says anything new."""
        old = self.nodes.get(node.name)
        if node.uid in self._gone or (old is not None and _is_older(node, old)):
            return False
        self.nodes[node.name] = node
        if old is None or node.last_observed_time != old.last_observed_time:
            self._heard[node.name] = self._clock(), old is not None
        # A mere sign of life is no news, unless the node was given up for silent.
        return old is None or node.name in self._silent or not node.says_the_same_as(old)

    def silence(self, node: str) -> tuple[float, bool]:
        """Return for how many seconds a node's agent has said nothing, and whether we heard it speak ourselves.

        By our own clock: that of the node may be wrong by any amount, and ours may be set.
        """
        at, is_heard = self._heard.get(node, (self._clock(), False))
        return self._clock() - at, is_heard

    def note_staleness(self, node: str, *, is_stale: bool) -> None:
        """Remember whether a node's agent is considered silent, so that its next word is news."""
        (self._silent.add if is_stale else self._silent.discard)(node)

    def drop_node(self, name: str, uid: str) -> bool:
        """Forget a GpuNode, unless another one has its name by now; return whether it was there."""
        self._bury(uid)
        old = self.nodes.get(name)
        if old is None or old.uid != uid:
            return False
        del self.nodes[name]
        self._silent.discard(name)
        self._heard.pop(name, None)
        return True

    def put_class(self, live: LiveClass) -> bool:
        """Take a DeviceClass; return whether it is new or changed."""
        old = self.classes.get(live.name)
        if live.uid in self._gone or (old is not None and _is_older(live, old)):
            return False
        self.classes[live.name] = live
        return old != live

    def drop_class(self, name: str, uid: str) -> bool:
        """Forget a DeviceClass, unless another one has its name by now; return whether it was there."""
        self._bury(uid)
        old = self.classes.get(name)
        if old is None or old.uid != uid:
            return False
        del self.classes[name]
        return True

    def put_access(self, live: access_objects.LiveObject) -> bool:
        """Take an object that enforces access; return whether it is new or changed."""
        old = self.access.get(live.key)
        last = self._access_gone.get(live.uid)
        if last is not None and _version(live.resource_version) <= last:
            # The answer to our own write, which came after the word that it was deleted.
            return False
        if old is not None and _is_older(live, old):
            return False
        self.access[live.key] = live
        return old != live

    def drop_access(self, key: access_objects.Key, uid: str) -> bool:
        """Forget such an object, unless another one has its name by now; return whether it was there."""
        old = self.access.get(key)
        if old is None or old.uid != uid:
            return False
        # Not buried: the same object comes back when the labels that somebody took off are put on again.
        self._access_gone[uid] = _version(old.resource_version)
        while len(self._access_gone) > REMEMBERED_DEATHS:
            self._access_gone.popitem(last=False)
        del self.access[key]
        return True

    def put_slice(self, published: tally.PublishedSlice) -> set[str]:
        """Take a slice of our driver; return the pools that changed."""
        changed = self.drop_slice(published.name)
        self._slices.setdefault(published.pool, {})[published.name] = published
        self._slice_pools[published.name] = published.pool
        return self._recount(changed | {published.pool})

    def drop_slice(self, name: str) -> set[str]:
        """Forget a slice; return the pools that changed."""
        pool = self._slice_pools.pop(name, None)
        if pool is None:
            return set()
        self._slices[pool].pop(name, None)
        if not self._slices[pool]:
            del self._slices[pool]
        return self._recount({pool})

    def put_claim(self, uid: str, held: tuple[tally.Holding, ...]) -> set[str]:
        """Take what a claim holds (nothing when it is gone); return the pools that changed."""
        changed = set(self._claim_pools.pop(uid, frozenset()))
        for pool in changed:
            self._holdings.get(pool, {}).pop(uid, None)
            if not self._holdings.get(pool):
                self._holdings.pop(pool, None)
        pools = frozenset(h.pool for h in held)
        for pool in pools:
            self._holdings.setdefault(pool, {})[uid] = tuple(h for h in held if h.pool == pool)
        if pools:
            self._claim_pools[uid] = pools
        return self._recount(changed | pools)

    def pool(self, node: str) -> tally.PoolTally:
        """Return the count of a node's pool."""
        return self._tally(names.pool_name(node))

    def policies_of(self, node: str) -> set[str]:
        """Return the policies that a node concerns: those that select it, and those that have cards there."""
        labels = self.labels.get(node)
        selecting = {
            name
            for name, entry in self.policies.items()
            if labels is not None and entry.node_selector.selects(labels)
        }
        observed = self.nodes.get(node)
        return selecting | (
            {a.policy for a in observed.assignments.values()} if observed is not None else set()
        )

    def policies_in(self, pool: str) -> set[str]:
        """Return the policies whose devices a pool shows."""
        slices = self._slices.get(pool, {}).values()
        return {device.group.policy for published in slices for device in published.devices}

    def all_pools(self) -> Iterator[tally.PoolTally]:
        """Yield the count of every pool that has slices, also of nodes without a GpuNode."""
        for pool in sorted(self._slices):
            yield self._tally(pool)

    def _tally(self, pool: str) -> tally.PoolTally:
        found = self._tallies.get(pool)
        if found is None:
            held = (h for claim in self._holdings.get(pool, {}).values() for h in claim)
            found = tally.count_pool(self._slices.get(pool, {}).values(), held)
            self._tallies[pool] = found
        return found

    def _bury(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > REMEMBERED_DEATHS:
            self._gone.popitem(last=False)

    def _recount(self, pools: set[str]) -> set[str]:
        for pool in pools:
            self._tallies.pop(pool, None)
        return pools


def _policy(body: Object) -> PolicyEntry:
    try:
        return PolicyEntry(GpuPolicy.model_validate(body))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        meta = ObjectMeta.model_validate(body["metadata"])
        problem = f"{where}: {first['msg']} (is the CRD newer than this controller?)"
        return PolicyEntry(GpuPolicy(metadata=meta, status=_status(body)), problem)


def _status(body: Object) -> GpuPolicyStatus:
    """Return the status that stands, so that times of transition survive an unreadable spec."""
    try:
        return GpuPolicyStatus.model_validate(body.get("status") or {})
    except pydantic.ValidationError:
        return GpuPolicyStatus()


class _Versioned(Protocol):
    @property
    def resource_version(self) -> str: ...


def _is_older(new: _Versioned, old: _Versioned) -> bool:
    """Return whether `new` is an earlier state, be it of the same object or of one that had its name before."""
    return _version(new.resource_version) < _version(old.resource_version)


def _version(text: str) -> int:
    """Return a resource version as a number; the API server promises that those of one resource compare so."""
    return int(text) if text.isascii() and text.isdigit() else 0
