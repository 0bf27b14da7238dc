"""What the agent costs a node with eight cards while nothing happens: memory, also after 1,000 claims, and CPU.

Memory is the resident set of the process as the kernel counts it, libraries included. CPU is the time of all its
threads over the idle period. A kubelet is registered with it, so its health stream and its watches are at work.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from bench import world as worlds
from bench.registry import Bench, Session
from bench.result import Result, against_limit
from gpupolicy.adapters import kube

CYCLES: Final = 1000
MEMORY_LIMIT_MIB: Final = 64.0
CPU_LIMIT_PERCENT: Final = 0.2
SETTLE_SECONDS: Final = 10.0


def measure(session: Session) -> Iterable[Result]:
    """Watch the agent idle, then after many claims."""
    world = session.world()
    asyncio.run(_offer(world))
    time.sleep(SETTLE_SECONDS)
    pid = world.agent.pid
    began, used = time.monotonic(), _cpu_seconds(pid)
    time.sleep(session.idle_seconds)
    share = (_cpu_seconds(pid) - used) / (time.monotonic() - began) * 100
    yield against_limit([_resident_mib(pid)], "MiB", MEMORY_LIMIT_MIB)
    yield against_limit(
        [share], "%", CPU_LIMIT_PERCENT, name="cpu", details={"seconds": session.idle_seconds}
    )
    asyncio.run(_cycle(world, session.count(CYCLES)))
    if world.agent.pid != pid:
        raise RuntimeError("the agent was started again in between")
    yield against_limit([_resident_mib(pid)], "MiB", MEMORY_LIMIT_MIB, name="claims")


async def _offer(world: worlds.World) -> None:
    async with world.admin() as admin:
        await world.offer(admin, worlds.exclusive(), worlds.CARDS)


async def _cycle(world: worlds.World, count: int) -> None:
    """Prepare and unprepare claims, each a new one, eight at a time."""
    async with world.admin() as admin, world.kubelet() as kubelet:
        devices = [device["name"] for device in await world.devices(admin)]

        async def use(device: str, times: int) -> None:
            for _ in range(times):
                claim = await world.claim(admin, device)
                await kubelet.prepare(claim)
                await kubelet.unprepare(claim)
                await admin.delete(kube.RESOURCE_CLAIMS, claim.name, "default")

        await asyncio.gather(*(use(device, count // len(devices)) for device in devices))


def _cpu_seconds(pid: int) -> float:
    # The clock of another process (CPUCLOCK_SCHED in the kernel's clock ids): exact, where /proc counts in ticks of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def _resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:  # noqa: PTH123
        return next(int(line.split()[1]) for line in file if line.startswith("Rss:")) / 1024


BENCHES: Final = (
    Bench(
        "agent-idle",
        "memory and CPU of an idle agent with eight cards, and memory after 1,000 claims",
        measure,
    ),
)
