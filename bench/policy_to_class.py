"""How long after a GpuPolicy was applied its DeviceClass is there: real API server, real controller, one ready node.

The clock starts when the API server has answered the apply, and stops when a GET of the class succeeds.
"""

import time
from typing import Final

from bench.registry import Bench
from bench.result import against_limit
from tests.cluster.cluster import Cluster
from tests.integration.controller.conftest import CLASSES, POLICIES, World, install

SAMPLES = 30
LIMIT_SECONDS = 30.0
POLL_SECONDS = 0.002


def measure(count: int = SAMPLES) -> list[float]:
    """Apply policies one after the other; return the seconds that each one's class took."""
    samples = []
    with Cluster.start() as cluster:
        install(cluster)
        world = World(cluster)
        world.add_node("gpu-01", gpu_pool="a")
        world.start_controller()
        world.policy("warm", {})
        world.wait("the first class", lambda: "warm" in world.classes())
        for number in range(count):
            name = f"policy-{number}"
            world.policy(name, {"nodeSelector": {"matchLabels": {"gpu-pool": name}}})
            samples.append(_until_there(world, name))
            world.admin.delete(f"{POLICIES}/{name}")
        world.clean()
    return samples


def _until_there(world: World, name: str) -> float:
    began = time.monotonic()
    while world.admin.call("GET", f"{CLASSES}/{name}").status != 200:  # noqa: PLR2004 - HTTP
        if time.monotonic() - began > LIMIT_SECONDS:
            raise TimeoutError(f"no DeviceClass {name} within {LIMIT_SECONDS} s")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


BENCHES: Final = (
    Bench(
        "policy-to-class",
        "from an applied policy to its DeviceClass, on a ready cluster",
        lambda session: [against_limit(measure(session.count(SAMPLES)), "s", 1.0)],
    ),
)
