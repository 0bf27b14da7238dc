"""How long after a policy was edited the slices of an idle node show the new layout: eight cards, NVML without latency.

The clock runs from the admin's request until a watch has shown the whole pool in the new layout: every card re-cut, the
devices of before gone, none tainted. On the way are the controller, the agent's withdrawal of the old devices and
the pause after it, the carving, and two generations of the pool.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bench import world as worlds
from bench.registry import Bench, Session
from bench.result import Result, against_limit
from gpupolicy.adapters import kube
from gpupolicy.api import names

SAMPLES: Final = 9
LIMIT_SECONDS: Final = 5.0
GIVE_UP_SECONDS: Final = 120.0
LAYOUTS: Final[tuple[Mapping[str, int], ...]] = (
    {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2},
    {"1g.10gb": 7},
    {"4g.40gb": 1, "3g.40gb": 1},
)
"""No two that follow each other share an instance that could stay on all cards."""


def measure(session: Session) -> Iterable[Result]:
    """Edit the policy from layout to layout."""
    yield against_limit(asyncio.run(_run(session.world(), session.count(SAMPLES))), "s", LIMIT_SECONDS)


async def _run(world: worlds.World, count: int) -> list[float]:
    async with world.admin() as admin:
        await world.offer(admin, worlds.exclusive(), worlds.CARDS)
        await world.offer(admin, worlds.mig(LAYOUTS[-1]), worlds.CARDS * sum(LAYOUTS[-1].values()))
        pool = _Pool()
        copy = kube.Reflector(
            admin,
            kube.RESOURCE_SLICES,
            field_selector=f"spec.driver={names.DRIVER}",
            on_event=pool.hear,
        )
        samples = []
        watch = asyncio.create_task(copy.run())
        try:
            for number in range(count):
                layout = LAYOUTS[number % len(LAYOUTS)]
                began = time.perf_counter()
                await world.apply(admin, worlds.mig(layout))
                try:
                    async with asyncio.timeout(GIVE_UP_SECONDS):
                        await pool.wait(layout)
                except TimeoutError as error:
                    raise TimeoutError(f"no layout {layout}\n{world.stack.report()}") from error
                samples.append(time.perf_counter() - began)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        return samples


class _Pool:
    """The slices as a watch shows them."""

    def __init__(self) -> None:
        self._slices: dict[str, Mapping[str, Any]] = {}
        self._changed = asyncio.Event()

    def hear(self, event: kube.Event) -> None:
        name = event.object["metadata"]["name"]
        if event.change is kube.Change.DELETED:
            self._slices.pop(name, None)
        else:
            self._slices[name] = event.object["spec"]
        self._changed.set()

    async def wait(self, layout: Mapping[str, int]) -> None:
        """Wait until all cards are published with a layout."""
        while not self._shows(layout):
            self._changed.clear()
            await self._changed.wait()

    def _shows(self, layout: Mapping[str, int]) -> bool:
        generations = {spec["pool"]["generation"] for spec in self._slices.values()}
        if len(generations) != 1:
            return False
        pieces = next(iter(self._slices.values()))["pool"]["resourceSliceCount"]
        devices = [d for spec in self._slices.values() for d in spec.get("devices") or ()]
        if len(self._slices) != pieces or any(d.get("taints") for d in devices):
            return False
        shown = Counter(d["attributes"].get("profile", {}).get("string", "") for d in devices)
        return shown == {profile: worlds.CARDS * count for profile, count in layout.items()}


BENCHES: Final = (
    Bench(
        "policy-to-slices",
        "from an edited policy to the slices of an idle node of eight cards in the new layout",
        measure,
    ),
)
