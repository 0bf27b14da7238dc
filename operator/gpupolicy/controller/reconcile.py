"""Brings the cluster in line with the policies: gather from the copies, decide with the core, apply.

Three kinds of key, each safe to run at any time, in any order, and again:

    policy NAME   judge it; its classes; its status
    node NAME     who gets which card: the spec of the GpuNode
    names         what classes tell about extended resource names that several of them have

Theory of operation. A node's plan depends on the verdicts on all policies, and a policy's status on the plans of its
nodes; both are pure functions of the copies, so neither key waits for the other. Only one order matters: after a
start no node is planned before every policy was judged once, because a policy that is not among the players would
lose its cards. A policy that cannot be judged now (the API server does not answer) is frozen meanwhile, see
`core/rollout.py`.

Writes come in the order classes, status, events: what a status tells is there when it is told.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal

from gpupolicy.adapters import kube
from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuAssignment
from gpupolicy.controller import access, apply, events, expressions, judging, pacing, reporting
from gpupolicy.controller.planning import PlannedNode, Planning
from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.world import PolicyEntry, World
from gpupolicy.core import classes, render, rollout
from gpupolicy.core.observation import ObservedNode
from gpupolicy.core.refusals import Refusal

logger = logging.getLogger(__name__)

STALE_AFTER_SECONDS: Final = 600.0
"""After this long without a word from an agent, what it said is no longer taken for true."""

_ACCESS_SECONDS: Final = 30.0
"""How soon to look again for a namespace that a quota is for, or for a right that was missing."""

_JUDGING_SECONDS: Final = 0.05
"""How soon to look again while other policies have not been judged after a start."""

Kind = Literal["policy", "node", "names"]
Key = tuple[Kind, str]
NAMES_KEY: Final[Key] = ("names", "")


def policy_key(name: str) -> Key:
    """Return the key of a policy."""
    return ("policy", name)


def node_key(name: str) -> Key:
    """Return the key of a node."""
    return ("node", name)


class Reconciler:
    """Runs keys. One instance per process; several keys may run at a time, but never one key twice."""

    def __init__(
        self,
        client: kube.Kube,
        world: World,
        queue: WorkQueue[Key],
        *,
        judges: expressions.Expressions,
        poster: apply.Poster,
        clock: Callable[[], dt.datetime],
        stale_after_seconds: float = STALE_AFTER_SECONDS,
        unreadable: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Prepare; nothing is read or written before `run`.

        Args:
            client: the API server.
            world: the copies.
            queue: where keys that follow from others are added.
            judges: the verdicts on CEL expressions.
            poster: where events go.
            clock: the present moment, aware.
            stale_after_seconds: see `STALE_AFTER_SECONDS`.
            unreadable: see `access.AccessWriter`.
        """
        self._client = client
        self._world = world
        self._queue = queue
        self._judges = judges
        self._poster = poster
        self._clock = clock
        self._stale_after = dt.timedelta(seconds=stale_after_seconds)
        self._planning = Planning(world)
        self._told: dict[str, PlannedNode] = {}
        """The plans that the policies concerned were asked to report."""
        self._dropped: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._repairs = pacing.Pacing()
        self._access = access.AccessWriter(client, world, unreadable)

    async def run(self, key: Key) -> None:
        """Run one key.

        Raises:
            ApiError: the API server refused or did not answer; the key is to be run again.
        """
        kind, name = key
        if kind == "policy":
            await self._policy(name)
        elif kind == "node":
            await self._node(name)
        else:
            await self._names()

    def add_all(self) -> None:
        """Ask for a run of everything: after a start, and after a change of leader."""
        for name in self._world.policies:
            self._queue.add(policy_key(name))
        self._add_nodes()
        self._queue.add(NAMES_KEY)

    def _add_nodes(self) -> None:
        for name in self._world.nodes:
            self._queue.add(node_key(name))

    async def _policy(self, name: str) -> None:
        entry = self._world.policies.get(name)
        cases = self._planning.cases
        if entry is None:
            if (gone := self._planning.drop(name)) is not None:
                self._access.forget(gone.entry.uid)
                self._add_nodes()
                self._queue.add(NAMES_KEY)
            self._queue.forget(policy_key(name))
            return
        before = cases.get(name)
        try:
            case = await judging.judge(entry, self._world, self._judges)
        except kube.ApiError as error:
            # Others must not wait for this one; what was known of it before stays true for them.
            if before is None:
                cases[name] = judging.unreadable(
                    entry, Refusal(Reason.INVALID_SELECTOR, f"not judged: {error}")
                )
                self._add_nodes()
            raise
        cases[name] = case
        self._add_concerned(before, case)
        posts: list[events.Event] = []
        failure: kube.ApiError | None = None
        if case.acts:
            subject = "a DeviceClass"
            try:
                posts += await self._apply_classes(case)
                subject = "what enforces spec.access"
                outcome = await self._access.write(case.entry, case.wishes)
                posts += outcome.posts
                if outcome.again_seconds is not None:
                    self._queue.add(policy_key(name), after_seconds=outcome.again_seconds)
                case = self._with_access(case, outcome.refusal)
            except (kube.Invalid, kube.Forbidden) as error:
                # Asking again will not help until somebody does something, so it is told to somebody.
                failure = error
                case = judging.with_refusal(case, _refused_by_server(error, subject))
        if self._planning.is_possible:
            posts += await self._report(case)
        else:
            self._queue.add(policy_key(name), after_seconds=_JUDGING_SECONDS)
        await self._post(posts)
        if failure is not None:
            raise failure

    def _add_concerned(self, before: judging.Case | None, case: judging.Case) -> None:
        """Ask for a run of what the verdict on a policy concerns beside the policy itself."""
        if before is None or before.weight != case.weight:
            self._add_nodes()
            self._queue.add(NAMES_KEY)
        if before is not None and before.entry.policy.spec.access != case.entry.policy.spec.access:
            # Policies that take its cards say in their status whether its quotas leave them room.
            for other in self._world.policies.keys() - {case.entry.name}:
                self._queue.add(policy_key(other))

    def _with_access(self, case: judging.Case, problem: Refusal | None) -> judging.Case:
        """Return the case, refused where who may use its classes cannot be as it is wanted."""
        if problem is None:
            return case
        self._queue.add(policy_key(case.entry.name), after_seconds=_ACCESS_SECONDS)
        return judging.with_refusal(case, problem)

    async def _apply_classes(self, case: judging.Case) -> list[events.Event]:
        """Bring the classes of a policy that acts in line; return what to tell."""
        entry = case.entry
        subject = events.Subject.policy(entry.name, entry.uid)
        posts = []
        # A name that goes from one class to another is mapped only if the old one is gone before the new one comes.
        for old in classes.obsolete(case.wishes, self._world.classes, entry.name, entry.uid):
            await apply.delete_class(self._client, old)
            self._world.drop_class(old.name, old.uid)
            self._add_rivals(entry.name)
            posts.append(events.class_deleted(subject, old.name))
        for wish in classes.handing_over(case.wishes, self._world.classes):
            await self._give_up_name(wish, entry)
        known = {c.name for c in entry.policy.status.device_classes}
        for wish in case.wishes:
            live = self._world.classes.get(wish.name)
            if live is not None and not live.belongs_to(entry.name, entry.uid):
                # Somebody made it while the others were written; the policy is judged again because of it.
                continue
            fields = classes.drift(wish, live, entry.uid) if live is not None else ()
            fields = self._without_dropped(wish, fields)
            if live is not None and not fields:
                continue
            event = _class_event(subject, wish, live, fields, was_known=wish.name in known)
            if event.reason == events.EventReason.DRIFT:
                wait_seconds = self._repairs.due_seconds(wish.name)
                if wait_seconds > 0:
                    self._queue.add(policy_key(entry.name), after_seconds=wait_seconds)
                    continue
                self._repairs.note(wish.name)
            await self._apply_class(wish, live, entry.uid)
            posts.append(event)
        return posts

    async def _give_up_name(self, bare: classes.DesiredClass, entry: PolicyEntry) -> None:
        """Take its extended name off a class of ours, which is about to be written as it is wanted.

        What it tells of its revision stays, so that it can still be told whether the policy or somebody else changed it.
        """
        live = self._world.classes.get(bare.name)
        if live is None or not live.belongs_to(entry.name, entry.uid):
            return
        body = classes.manifest(
            bare, policy_uid=entry.uid, changed_at=live.changed_at, revision=live.revision
        )
        stored, _ = await apply.device_class(self._client, body, live)
        self._world.put_class(stored)

    async def _apply_class(
        self, wish: classes.DesiredClass, live: classes.LiveClass | None, policy_uid: str
    ) -> None:
        body = classes.manifest(
            wish,
            policy_uid=policy_uid,
            changed_at=classes.changed_at(wish, live, render.timestamp(self._clock())),
            clear_config=live is not None and live.has_config,
        )
        stored, dropped = await apply.device_class(self._client, body, live)
        self._world.put_class(stored)
        self._add_rivals(wish.policy)
        if dropped:
            self._dropped[wish.name] = (wish.revision, dropped)
        else:
            self._dropped.pop(wish.name, None)

    def _add_rivals(self, policy: str) -> None:
        """Ask for a run of all whom our own write of a class concerns; its echo in the watch is no news."""
        for name in self._world.policies.keys() - {policy}:
            self._queue.add(policy_key(name))
        self._queue.add(NAMES_KEY)

    def _without_dropped(self, wish: classes.DesiredClass, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields that differ, less those that this API server is known to drop."""
        revision, dropped = self._dropped.get(wish.name, ("", ()))
        return tuple(f for f in fields if revision != wish.revision or f not in dropped)

    async def _report(self, case: judging.Case) -> list[events.Event]:
        """Write the status of a policy if it changed; return what to tell."""
        entry = case.entry
        facts = [fact async for fact in self._facts(case)]
        self._schedule_staleness(entry.name, facts)
        # Our own write may have come back while classes were applied.
        current = self._world.policies.get(entry.name, entry)
        standing = current.policy.status
        wanted = reporting.policy_status(
            case,
            facts,
            self._world,
            cases=self._planning.cases,
            dropped=self._dropped,
            now=self._clock(),
        )
        if wanted == standing:
            return []
        stored = await apply.policy_status(self._client, entry.name, entry.uid, wanted)
        self._world.put_policy(stored)
        subject = events.Subject.policy(entry.name, entry.uid)
        told = events.worth_telling(standing.conditions, wanted.conditions)
        return [events.condition_changed(subject, condition) for condition in told]

    async def _facts(self, case: judging.Case) -> AsyncIterator[rollout.NodeFacts]:
        """Yield what is to be reported of a policy on each node; other work goes on between two nodes."""
        for name in sorted(self._world.nodes):
            node = self._world.nodes.get(name)
            if node is None:
                continue
            is_stale = self._believed_seconds(node) <= 0
            self._world.note_staleness(name, is_stale=is_stale)
            fact = self._planning.facts(name, case, is_stale=is_stale)
            if fact is not None:
                yield fact
            # The first plan of a node takes milliseconds, and there may be thousands of nodes.
            await asyncio.sleep(0)

    def _schedule_staleness(self, policy: str, facts: list[rollout.NodeFacts]) -> None:
        """Look again when the next agent of these nodes would have been silent for too long."""
        living = (self._believed_seconds(f.node) for f in facts if f.wanted and not f.is_stale)
        due = min(living, default=None)
        if due is not None:
            self._queue.add(policy_key(policy), after_seconds=max(0.0, due) + 1.0)

    def _believed_seconds(self, node: ObservedNode) -> float:
        """Return for how long an agent that says nothing more is still believed.

        What it wrote before we looked can be dated by its own clock only; from its next word on ours counts.
        """
        limit = self._stale_after.total_seconds()
        seconds, is_heard = self._world.silence(node.name)
        if is_heard:
            return limit - seconds
        moment = render.parse_timestamp(node.last_observed_time)
        if moment is None:
            return 0.0
        return min(limit - seconds, limit - (self._clock() - moment).total_seconds())

    async def _node(self, name: str) -> None:
        node = self._world.nodes.get(name)
        if node is None:
            self._queue.forget(node_key(name))
            self._planning.forget(name)
            self._told.pop(name, None)
            return
        planned = self._planning.plan(name)
        if planned is None:
            # The event that brings what is missing adds the node again.
            return
        for policy in _affected(self._told.get(name), planned):
            self._queue.add(policy_key(policy))
        self._told[name] = planned
        if dict(node.assignments) == {a.uuid: a for a in planned.spec} and not node.releases:
            return
        posts = self._node_events(name, planned.spec)
        # A clean-up released cards and was not followed by the end of this controller: policies count again.
        stored = await apply.node_spec(self._client, node, planned.spec, clear_releases=bool(node.releases))
        self._world.put_node(self._world.read_node(stored))
        await self._post(posts)

    def _node_events(self, name: str, spec: tuple[GpuAssignment, ...]) -> list[events.Event]:
        """Return what to tell of a node whose spec changes."""
        node = self._world.nodes[name]
        subject = events.Subject.node(name, node.uid)
        lines = rollout.changes_of_hands(node, spec)
        posts = [events.assigned(subject, lines)] if lines else []
        leaving = [a.policy for a in node.assignments.values() if a.policy not in self._world.policies]
        for policy in sorted(set(leaving)):
            holders = self._world.pool(name).holders.get(policy, ())
            held = sorted({f"{h.claim.namespace}/{h.claim.name}" for h in holders})
            posts.append(events.policy_gone(subject, policy, leaving.count(policy), held))
        return posts

    async def _names(self) -> None:
        if not self._planning.is_possible:
            self._queue.add(NAMES_KEY, after_seconds=_JUDGING_SECONDS)
            return
        losers: dict[str, str] = {}
        for case in self._planning.cases.values():
            if case.acts:
                losers |= case.verdict.losers
        for name, taker in classes.marks(losers, self._world.classes).items():
            live = await self._annotate(name, classes.TAKEN_BY_ANNOTATION, taker)
            if live is None:
                continue
            subject = events.Subject.device_class(name, live.uid)
            resource = live.extended_resource_name or ""
            if taker is not None:
                await self._post([events.name_taken(subject, resource, taker)])
            else:
                await self._post([events.name_returned(subject, resource)])
        policies = {name: entry.uid for name, entry in self._world.policies.items()}
        for name, found in classes.rivals(self._world.classes, policies).items():
            # Where one of them is gone the scheduler maps the name to nothing until one that is left is written.
            await self._annotate(name, classes.RIVALS_ANNOTATION, found)

    async def _annotate(self, name: str, annotation: str, value: str | None) -> classes.LiveClass | None:
        """Write an annotation of a class; return the class as stored, None where it is gone."""
        live = self._world.classes.get(name)
        if live is None:
            return None
        try:
            stored = await apply.annotate_class(self._client, live, annotation, value)
        except (kube.NotFound, kube.Conflict):
            logger.info("DeviceClass %s is gone already", name)
            return None
        self._world.put_class(stored)
        return stored

    async def _post(self, posts: list[events.Event]) -> None:
        for event in posts:
            await self._poster.post(event, self._clock())


def _refused_by_server(error: kube.ApiError, subject: str) -> Refusal:
    """Return what a policy reports of which the API server does not take something."""
    if isinstance(error, kube.Invalid):
        return Refusal(
            Reason.INVALID_POLICY, f"the API server refuses {subject} of this policy: {error.message}"
        )
    return Refusal(
        Reason.DEGRADED,
        f"the controller may not write {subject} of this policy; check its ClusterRole: {error.message}",
    )


def _class_event(
    subject: events.Subject,
    wish: classes.DesiredClass,
    live: classes.LiveClass | None,
    fields: tuple[str, ...],
    *,
    was_known: bool,
) -> events.Event:
    """Return what to tell of a class that was applied: made, changed with its policy, or put right."""
    if live is None and not was_known:
        return events.class_created(subject, wish.name)
    if live is None or live.revision == wish.revision:
        return events.class_healed(subject, wish.name, fields)
    return events.class_changed(subject, wish.name, fields)


def _affected(before: PlannedNode | None, planned: PlannedNode) -> set[str]:
    """Return the policies that have something to tell of a plan that changed."""
    if before is not None and before.plan == planned.plan and before.spec == planned.spec:
        return set()
    shares = (*(before.plan.assignment.shares if before else ()), *planned.plan.assignment.shares)
    return {share.policy for share in shares}
