"""The loop: look at the cards, decide on each, publish, change what may be changed, report. Level-based throughout.

A pass never waits for hardware or for the API server's writes. What takes time runs beside it: publishing and the
status have tasks of their own, and a card that needs a change goes through a *round*:

    pass:  its doomed devices are no longer wished for ──> round begins
    round: the API server shows that ──> a moment, for allocations that were on their way ──> claims are listed ──>
           under the card's lock the card is read and decided on again, now with those claims ──> it is changed
    pass:  the new devices are published

All cards that need a change at one time share the first steps of a round; then each goes its own way, so a slow card
delays itself only. A round that finds a device allocated, or that the plan now dooms another one, does nothing; the
next pass starts from there. A card whose change failed, be it by a bug of ours, is tried again after a pause that grows.
"""

import asyncio
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpupolicy.adapters import files, kube, ledger, logs
from gpupolicy.adapters.nvml.session import Observation
from gpupolicy.agent import changes
from gpupolicy.agent.claimlist import ClaimList
from gpupolicy.agent.journal import Journal
from gpupolicy.agent.ports import Hardware, Slices, Surroundings, Timing, Wish
from gpupolicy.agent.state import NodeState
from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuNodeSpec
from gpupolicy.core import node_status, ownership
from gpupolicy.core.convergence import CardDecision, Circumstances, decide_card
from gpupolicy.core.devices import DriverFacts, Published, in_order
from gpupolicy.core.inventory import Gpu, Health, Inventory
from gpupolicy.core.records import GpuRecord
from gpupolicy.core.refusals import Refusal

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = (1.0, 60.0)
_GLANCE_SECONDS: Final = 0.05


@dataclass(slots=True)
class _Failure:
    refusal: Refusal
    attempts: int
    retry_at: float
    revision: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a pass goes by."""

    observation: Observation
    circumstances: Circumstances
    around: Surroundings


class Reconciler:
    """The loop of one node.

    Args:
        state: the node in memory.
        hardware: its cards.
        slices: its devices in the API server.
        wish: its GpuNode.
        claims: allocations in the API server.
        surroundings: asked in every pass.
        on_change: called after a card was changed; must not block.
        boot_id: of this boot.
        agent_version: of this program.
        timing: how long things take.
        journal: is told what the loop does.
    """

    def __init__(
        self,
        state: NodeState,
        hardware: Hardware,
        slices: Slices,
        wish: Wish,
        claims: ClaimList,
        *,
        surroundings: Callable[[], Surroundings] = Surroundings,
        on_change: Callable[[], None] = lambda: None,
        boot_id: str = "",
        agent_version: str = "",
        timing: Timing | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._state = state
        self._hardware = hardware
        self._slices = slices
        self._wish = wish
        self._claims = claims
        self._surroundings = surroundings
        self._on_change = on_change
        self._boot_id = boot_id
        self._agent_version = agent_version
        self._timing = timing or Timing()
        self._journal = journal or Journal()
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._changing: set[str] = set()
        # When the last change of a card ended, on the monotonic clock: what was read before then says nothing.
        self._changed_at: dict[str, float] = {}
        self._failures: dict[str, _Failure] = {}
        self._decisions: dict[str, CardDecision] = {}
        self._bugs: dict[str, str] = {}
        """Cards on which no decision can be made, and what was logged of that."""
        self._latest: _Seen | None = None
        self._seen_at: float | None = None
        self._started_at = time.monotonic()
        self._ledger_problem = ""
        self._stopping = False

    async def run(self) -> None:
        """Reconcile until cancelled; changes that are under way go on to their end."""
        try:
            while True:
                began = time.monotonic()
                await self.reconcile_once()
                self._journal.looked(time.monotonic() - began)
                await self._state.reconcile.wait(self._pause_seconds())
        finally:
            self._stopping = True

    async def drain(self) -> None:
        """Wait for changes that are under way."""
        self._stopping = True
        changing = [self._rounds[uuid] for uuid in self._changing if uuid in self._rounds]
        for uuid, task in self._rounds.items():
            if uuid not in self._changing:
                task.cancel()
        if changing:
            await asyncio.wait(changing)

    async def look(self) -> None:
        """Look at the cards and remember what stands, without deciding on anything."""
        await self._look()

    async def reconcile_once(self) -> None:
        """Make one pass."""
        seen = self._latest = await self._look()
        if self._wish.spec is None:
            return
        # Nothing may come between deciding and wishing: a round that began there could destroy what is wished for.
        if self._may_publish(seen.observation):
            self._slices.publish(in_order((d.gpu, d.published) for d in self._decisions.values()))
        await self._state.announce()
        # A round decides on what it has listed itself, and so must the passes while it is under way and the one that
        # begins the next: else each would doom another device than the other has withdrawn, and so for ever. A card
        # that failed and pauses does not keep the others from hearing of the claims that they wait for.
        is_changing = self._rounds or any(
            d.needs_change and uuid not in self._failures for uuid, d in self._decisions.items()
        )
        if not is_changing and await self._claims.refresh(self._awaited()):
            self._state.reconcile.set()
        await self._note_applied(seen.observation)
        self._forget_failures(self._decisions)
        self._begin_round(seen)
        self._report(seen)

    async def _look(self) -> _Seen:
        observation = await self._hardware.observe(skip=frozenset(self._changing))
        inventory = self._judged(observation)
        await self._note_xids(inventory.gpus, observation)
        if observation.available:
            await self._settle_records(inventory.gpus, observation)
        around = self._surroundings()
        circumstances = self._circumstances(inventory, observation, around)
        gpus = {gpu.uuid: self._with_users(gpu) for gpu in inventory.gpus}
        fresh = {uuid for uuid in gpus if self._is_fresh(uuid, observation)}
        spec = self._wish.spec or GpuNodeSpec()
        # While a card is being changed, or was meanwhile, what was decided on it before holds for one pass more.
        named = self._claims.allocated.keys()
        before = self._decisions
        self._decisions = {
            uuid: self._decide_or_tell(gpu, spec, circumstances, around, named)
            if uuid in fresh or uuid not in before
            else before[uuid]
            for uuid, gpu in gpus.items()
        }
        self._tell_drift(before)
        self._state.inventory = replace(inventory, gpus=tuple(d.gpu for d in self._decisions.values()))
        self._remember_devices(
            {uuid: d for uuid, d in self._decisions.items() if uuid in fresh}, set(self._decisions)
        )
        if observation.available:
            self._state.loaded.set()
        return _Seen(observation, circumstances, around)

    def _tell_drift(self, before: Mapping[str, CardDecision]) -> None:
        """Tell of cards that have not the layout any more that they had, though they are well and nothing else is wanted."""
        for uuid, decision in self._decisions.items():
            old = before.get(uuid)
            if old is None or not old.is_applied or old.assignment != decision.assignment:
                continue
            if not decision.is_applied and not isinstance(decision.plan, Refusal):
                _log.warning("card %d (%s) has not its layout any more", decision.gpu.index, uuid)
                self._journal.drifted()

    def _judged(self, observation: Observation) -> Inventory:
        """Return the cards; while NVML is away for a moment only, as healthy as they were."""
        now = time.monotonic()
        if observation.available:
            self._seen_at = now
        gpus = observation.gpus
        if (
            not observation.available
            and self._seen_at is not None
            and now - self._seen_at < self._timing.outage
        ):
            before = {g.uuid: g for g in self._state.inventory.gpus}
            gpus = tuple(
                replace(g, health=before[g.uuid].health, health_message=before[g.uuid].health_message)
                if g.uuid in before
                else g
                for g in gpus
            )
        return Inventory(
            node=self._state.node,
            gpus=gpus,
            driver_version=observation.driver_version,
            cuda_version=observation.cuda_version,
            boot_id=self._boot_id,
            message=observation.message,
        )

    def _is_fresh(self, uuid: str, observation: Observation) -> bool:
        """Return whether a card was read after its last change, and is not being changed now."""
        read_at = observation.read_at.get(uuid, -math.inf)
        return uuid not in self._changing and read_at >= self._changed_at.get(uuid, -math.inf)

    async def _settle_records(self, gpus: Iterable[Gpu], observation: Observation) -> None:
        """Write what the hardware bears out of each card's record, where that is news."""
        for gpu in gpus:
            is_known = gpu.uuid in self._state.gpus and self._is_fresh(gpu.uuid, observation)
            if gpu.health is Health.HEALTHY and is_known:
                await self._update_record(
                    gpu.uuid, observation, functools.partial(ownership.settled, gpu=gpu)
                )

    async def _note_xids(self, gpus: Iterable[Gpu], observation: Observation) -> None:
        """Write down for which XID each card counts as sick, where that is news: the next process does not hear it."""
        for gpu in gpus:
            xid = observation.xids.get(gpu.uuid)
            if gpu.uuid in self._state.gpus or xid is not None:
                await self._update_record(gpu.uuid, observation, functools.partial(replace, xid=xid))

    async def _update_record(
        self, uuid: str, observation: Observation, change: Callable[[GpuRecord], GpuRecord]
    ) -> None:
        """Change a card's record where that is news; not while somebody has the card, the next pass will do then."""
        known = self._state.gpus.get(uuid) or GpuRecord(uuid)
        if change(known) == known or self._state.is_held(uuid):
            return
        async with self._state.hold([uuid]):
            if self._is_fresh(uuid, observation):
                await self._save(change(self._state.gpus.get(uuid) or GpuRecord(uuid)))

    async def _save(self, record: GpuRecord) -> None:
        """Write a record; what the disk refuses is a trouble of the node and tried again in the next pass."""
        try:
            await self._state.save_gpu(record)
        except (files.FileError, ledger.DamagedRecordError) as error:
            self._ledger_problem = str(error)
        else:
            self._ledger_problem = ""

    def _with_users(self, gpu: Gpu) -> Gpu:
        owned = ownership.owned(gpu, self._state.gpus.get(gpu.uuid))
        return ownership.held(owned, self._state.claims.values(), self._claims.allocated)

    def _awaited(self) -> frozenset[str]:
        """Return the UIDs of claims that a card waits for and that this node has not prepared."""
        uses = (
            use
            for decision in self._decisions.values()
            if decision.waiting is not None
            for use in decision.waiting.claims
        )
        return frozenset(use.uid for use in uses if use.uid not in self._state.claims)

    def _circumstances(
        self, inventory: Inventory, observation: Observation, around: Surroundings
    ) -> Circumstances:
        hands_off = None
        if not observation.available:
            hands_off = Refusal(Reason.NVML_UNAVAILABLE, observation.message)
        elif around.device_plugin:
            hands_off = Refusal(
                Reason.OWNERSHIP_CONFLICT,
                f"a device plugin advertises {around.device_plugin} on this node, and two allocators hand out the "
                "same card twice. Take the plugin off this node (for NVIDIA's GPU operator, label the node "
                "nvidia.com/gpu.deploy.device-plugin=false)",
            )
        return Circumstances(
            facts=DriverFacts(inventory.driver_version, inventory.cuda_version),
            taints_served=self._slices.taints_served,
            hands_off=hands_off,
            offers_nothing=bool(around.device_plugin),
        )

    def _decide_or_tell(
        self,
        gpu: Gpu,
        spec: GpuNodeSpec,
        circumstances: Circumstances,
        around: Surroundings,
        named: Collection[str],
    ) -> CardDecision:
        """Decide on a card; where that fails by a bug of ours, leave the card as it is and say so.

        A card that brings it to light (a new product, a strange answer) must not end the agent of all others, nor take
        the devices from its own pods.
        """
        try:
            decision = self._decide(gpu, spec, circumstances, around, named=named)
        except Exception as error:  # noqa: BLE001 - see above
            text = f"card {gpu.uuid}: the agent failed ({type(error).__name__}: {error}); its log says where"
            if self._bugs.get(gpu.uuid) != text:
                self._bugs[gpu.uuid] = text
                _log.exception("no decision can be made on card %s", gpu.uuid)
            before = self._decisions.get(gpu.uuid)
            published = before.published if before else Published()
            assignment = next((a for a in spec.gpus if a.uuid == gpu.uuid), None)
            return CardDecision(gpu, assignment, Refusal(Reason.DEGRADED, text), published)
        self._bugs.pop(gpu.uuid, None)
        return decision

    def _decide(
        self,
        gpu: Gpu,
        spec: GpuNodeSpec,
        circumstances: Circumstances,
        around: Surroundings,
        *,
        named: Collection[str],
    ) -> CardDecision:
        damage = (around.damaged or {}).get(gpu.uuid)
        unproven = None if damage is None else Refusal(Reason.LEDGER_CORRUPT, damage)
        return decide_card(
            gpu,
            spec,
            circumstances,
            named=named,
            unproven=unproven,
            mode_is_ours=ownership.mode_is_ours(self._state.gpus.get(gpu.uuid)),
        )

    def _remember_devices(self, decisions: Mapping[str, CardDecision], existing: set[str]) -> None:
        """Bring `state.devices` up to date, except for cards that are being changed."""
        devices = {
            name: record
            for name, record in self._state.devices.items()
            if record.gpu_uuid in existing and record.gpu_uuid not in decisions
        }
        health = {name: self._state.health[name] for name in devices if name in self._state.health}
        for decision in decisions.values():
            for device in decision.published.standing:
                devices[device.name] = device.record
                health[device.name] = (device.health, device.health_message)
        self._state.devices, self._state.health = devices, health

    def _may_publish(self, observation: Observation) -> bool:
        """Whether enough is known to publish. A node whose NVML never worked says so only after a while."""
        return observation.available or self._seen_at is not None or self._is_blind(observation)

    def _is_blind(self, observation: Observation) -> bool:
        since = self._started_at if self._seen_at is None else self._seen_at
        return not observation.available and time.monotonic() - since >= self._timing.outage

    async def _note_applied(self, observation: Observation) -> None:
        """Record the policy and the revision of cards on which what is wanted stands, or which nobody wants."""
        for uuid, decision in self._decisions.items():
            assignment = decision.assignment
            if not self._is_fresh(uuid, observation) or (assignment is None and uuid not in self._state.gpus):
                continue
            if assignment is not None and not decision.is_applied:
                continue
            facts = {
                "pci_bus_id": decision.gpu.pci_bus_id,
                "policy": assignment.policy if assignment else "",
                "revision": assignment.revision if assignment else "",
            }
            await self._update_record(uuid, observation, functools.partial(replace, **facts))

    def _forget_failures(self, decisions: Mapping[str, CardDecision]) -> None:
        for uuid in list(self._failures):
            decision = decisions.get(uuid)
            if decision is None or not decision.needs_change:
                del self._failures[uuid]
            elif _revision(decision) != self._failures[uuid].revision:
                # Something else is wanted now; that it failed before says nothing about this.
                del self._failures[uuid]

    def _begin_round(self, seen: _Seen) -> None:
        now = time.monotonic()
        due = {
            uuid: decision
            for uuid, decision in self._decisions.items()
            if decision.needs_change
            and uuid not in self._rounds
            # A decision that is kept from before would begin rounds without end, each in the way of the next look.
            and self._is_fresh(uuid, seen.observation)
            and (uuid not in self._failures or self._failures[uuid].retry_at <= now)
        }
        if not due or self._stopping:
            return
        doomed = frozenset(name for decision in due.values() for name in decision.doomed)
        ready = asyncio.create_task(self._prepare_round(doomed))

        def decide(gpu: Gpu, allocated: ownership.Allocations) -> CardDecision:
            # A round may last: what holds for the node is what the latest pass saw, not the one that began the round.
            now = self._latest or seen
            spec = self._wish.spec or GpuNodeSpec()
            users = ownership.held(gpu, self._state.claims.values(), allocated)
            return self._decide(users, spec, now.circumstances, now.around, named=allocated.keys())

        def may_be_shown(name: str) -> bool:
            # Of a device that this round did not wait for the list of claims may be too old, even if nobody shows it.
            return name not in doomed or self._may_be_shown(name)

        for uuid, decision in due.items():
            self._rounds[uuid] = asyncio.create_task(
                self._round(uuid, ready, decide, may_be_shown, _revision(decision))
            )

    async def _prepare_round(self, doomed: frozenset[str]) -> ownership.Allocations | Refusal:
        """Wait until nobody can be allocated a doomed device any more, and return who was; or why that is not known."""
        try:
            async with asyncio.timeout(self._timing.withdraw):
                while any(map(self._may_be_shown, doomed)):  # noqa: ASYNC110 - time alone decides in the end
                    await asyncio.sleep(_GLANCE_SECONDS)
                return await self._claims.list()
        except TimeoutError:
            problem = self._slices.problem or "it does not answer"
            return Refusal(
                Reason.WAITING_FOR_SLICES,
                f"before the card is changed the API server has to show that its devices are withdrawn: {problem}",
            )
        except kube.KubeError as error:
            return Refusal(
                Reason.WAITING_FOR_CLAIMS, f"before the card is changed the claims have to be listed: {error}"
            )

    async def _round(
        self,
        uuid: str,
        ready: Awaitable[ownership.Allocations | Refusal],
        decide: Callable[[Gpu, ownership.Allocations], CardDecision],
        may_be_shown: Callable[[str], bool],
        revision: str,
    ) -> None:
        try:
            with logs.operation(f"card {uuid}"):
                failure = await self._change(uuid, ready, decide, may_be_shown)
            if failure is None:
                self._failures.pop(uuid, None)
            else:
                before = self._failures.get(uuid)
                attempts = before.attempts + 1 if before else 1
                pause = min(_RETRY_SECONDS[0] * 2 ** (attempts - 1), _RETRY_SECONDS[1])
                self._failures[uuid] = _Failure(failure, attempts, time.monotonic() + pause, revision)
        finally:
            self._changed_at[uuid] = time.monotonic()
            self._changing.discard(uuid)
            self._rounds.pop(uuid, None)
            self._state.reconcile.set()

    async def _change(
        self,
        uuid: str,
        ready: Awaitable[ownership.Allocations | Refusal],
        decide: Callable[[Gpu, ownership.Allocations], CardDecision],
        may_be_shown: Callable[[str], bool],
    ) -> Refusal | None:
        began = time.monotonic()
        try:
            allocated = await ready
            if isinstance(allocated, Refusal):
                outcome = changes.Outcome(failure=allocated)
            elif self._stopping:
                return None
            else:
                self._changing.add(uuid)
                outcome = await changes.change_card(
                    self._state, self._hardware, uuid, lambda gpu: decide(gpu, allocated), may_be_shown
                )
                self._on_change()
        except Exception as error:  # noqa: BLE001 - a bug that one card brings to light must not end the agent of all
            _log.exception("the change of card %s failed", uuid)
            text = f"card {uuid}: the agent failed ({type(error).__name__}: {error}); its log says where"
            outcome = changes.Outcome(failure=Refusal(Reason.DEGRADED, text))
        if not outcome.shown:
            self._journal.applied(time.monotonic() - began, outcome.failure)
        return outcome.failure

    def _may_be_shown(self, name: str) -> bool:
        return self._slices.may_be_shown(name, settle_seconds=self._timing.settle)

    def _pause_seconds(self) -> float:
        """Return how long the loop may sleep."""
        pause = self._timing.poll
        if any(
            d.waiting is not None and d.waiting.reason is Reason.WAITING_FOR_CLAIMS
            for d in self._decisions.values()
        ):
            pause = min(pause, self._timing.waiting)
        now = time.monotonic()
        retries = [f.retry_at - now for uuid, f in self._failures.items() if uuid not in self._rounds]
        return max(0.05, min([pause, *retries]))

    def _report(self, seen: _Seen) -> None:
        observation, around = seen.observation, seen.around
        hands_off = seen.circumstances.hands_off
        troubles = around.troubles
        if self._slices.problem:
            troubles = (*troubles, Refusal(Reason.WAITING_FOR_SLICES, self._slices.problem))
        if self._ledger_problem:
            troubles = (*troubles, Refusal(Reason.LEDGER_CORRUPT, self._ledger_problem))
        if hands_off is not None and observation.available:
            troubles = (hands_off, *troubles)
        facts = node_status.NodeFacts(
            inventory=self._state.inventory,
            decisions=self._decisions,
            records=self._state.gpus,
            failures={uuid: failure.refusal for uuid, failure in self._failures.items()},
            slow=self._hardware.slow(),
            shown=self._slices.shown,
            troubles=troubles,
            blind=observation.message if self._is_blind(observation) or self._seen_at is None else None,
            was_seen=self._seen_at is not None,
            allocator=node_status.allocator(
                device_plugin=bool(around.device_plugin),
                ours=bool(self._slices.shown or self._state.claims),
            ),
            generation=self._wish.generation,
            agent_version=self._agent_version,
        )
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._wish.report(node_status.node_status(facts, self._wish.status, now=now))


def _revision(decision: CardDecision) -> str:
    return decision.assignment.revision if decision.assignment else ""
