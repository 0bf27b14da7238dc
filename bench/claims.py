"""How long the agent takes to prepare and unprepare claims, against the least that it could take.

The floor is one GET of that very claim and one fsynced write of a 1 KiB file, both in the benchmark's process: with the
same client and the same identity as the agent, and on the file system of the agent's ledger. What the agent adds to
that is the call through its socket, its own records, and the CDI file. Floors and samples alternate, so that both
see the same noise; one value of a batch stands beside the sum of eight floors.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench import world as worlds
from bench.registry import Bench, Session
from bench.result import Result, against_floor
from gpupolicy.adapters import kube

SERIAL_SAMPLES: Final = 200
BATCH_SAMPLES: Final = 40
WARM_UP: Final = 3
SERIAL_BAR: Final = 3.0
BATCH_BAR: Final = 2.5
AT_ONCE: Final = 8


@dataclass(slots=True)
class _Times:
    """Samples of one run in seconds."""

    floor: list[float] = field(default_factory=list)
    prepare: list[float] = field(default_factory=list)
    unprepare: list[float] = field(default_factory=list)


def measure(call: str, kind: str, batch: bool, session: Session) -> Iterable[Result]:
    """Measure one of `prepare` and `unprepare` on devices of one kind (`gpu`, `mig`)."""
    count = session.count(BATCH_SAMPLES if batch else SERIAL_SAMPLES)
    times = asyncio.run(_run(session.world(), kind, count, batch=batch))
    samples = times.prepare if call == "prepare" else times.unprepare
    yield against_floor(samples, times.floor, bar=BATCH_BAR if batch else SERIAL_BAR)


async def _run(world: worlds.World, kind: str, count: int, *, batch: bool) -> _Times:
    async with world.admin() as admin, world.client() as client, world.kubelet() as kubelet:
        if kind == "gpu":
            devices = await world.offer(admin, worlds.exclusive(), worlds.CARDS)
        else:
            devices = await world.offer(admin, worlds.mig(), worlds.CARDS * sum(worlds.LAYOUT.values()))
        # The scheduler takes devices in the order of the slices, so slices that are claimed together share a card.
        claims = [await world.claim(admin, device) for device in devices[:AT_ONCE]]
        try:
            groups = [claims] if batch else [[claim] for claim in claims]
            times = _Times()
            for number in range(-WARM_UP, count):
                group = groups[number % len(groups)]
                floor = partial(_floor, client, world.ledger_disk, group)
                # The floor stands before the call and after it in turn, so that neither gets the warmer caches.
                first = await _timed(floor) if number % 2 else None
                prepared = await _timed(partial(_all, kubelet.prepare, group))
                unprepared = await _timed(partial(_all, kubelet.unprepare, group))
                last = first if first is not None else await _timed(floor)
                if number >= 0:
                    times.floor.append(last)
                    times.prepare.append(prepared)
                    times.unprepare.append(unprepared)
            return times
        finally:
            await worlds.remove(admin, claims)


async def _floor(client: kube.Kube, directory: Path, claims: list[worlds.Claim]) -> None:
    for claim in claims:
        await client.get(kube.RESOURCE_CLAIMS, claim.name, "default")
        _write(directory / f".bench-{secrets.token_hex(4)}")


def _write(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, b"x" * 1024)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()


async def _all(call: Callable[[worlds.Claim], Awaitable[None]], claims: list[worlds.Claim]) -> None:
    await asyncio.gather(*(call(claim) for claim in claims))


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


_KINDS: Final = {"gpu": "a whole card", "mig": "a static MIG slice"}

BENCHES: Final = tuple(
    Bench(
        f"{call}-{kind}{f'-{AT_ONCE}' if batch else ''}",
        f"{call} {AT_ONCE} claims at once, each for {what}" if batch else f"{call} one claim for {what}",
        partial(measure, call, kind, batch),
    )
    for kind, what in _KINDS.items()
    for call in ("prepare", "unprepare")
    for batch in (False, True)
)
