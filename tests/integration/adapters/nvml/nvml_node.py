"""A simulated node, and the NVML adapter on it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from gpupolicy.adapters.nvml.session import Nvml
from gpupolicy.core.inventory import Gpu
from tests.simulator import Simulator


class Node:
    """A simulated node and the adapter on it."""

    def __init__(self, directory: Path) -> None:
        self.simulator = Simulator(directory)
        self.heard = 0
        self.open: list[Nvml] = []

    def nvml(self, *, call_seconds: float = 60.0) -> Nvml:
        def hear() -> None:
            self.heard += 1

        nvml = Nvml(
            self.simulator.library_path,
            sysfs=self.simulator.root / "sys",
            call_seconds=call_seconds,
            heard=hear,
        )
        self.open.append(nvml)
        return nvml

    async def enabled(self, index: int = 0, *, call_seconds: float = 60.0) -> tuple[Nvml, Gpu]:
        """Return the adapter and a card in MIG mode."""
        nvml = self.nvml(call_seconds=call_seconds)
        uuid = (await nvml.observe()).gpus[index].uuid
        await nvml.set_mig_mode(uuid, enabled=True)
        return nvml, await nvml.read(uuid)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so; a simulated node tells nobody when it changes."""
    async with asyncio.timeout(120):
        while not await condition():  # noqa: ASYNC110 - there is nothing else to wait on.
            await asyncio.sleep(0.05)


def profile_id(gpu: Gpu, name: str) -> int:
    return next(p.id for p in gpu.mig.profiles if p.name == name)
