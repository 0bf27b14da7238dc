"""What an installation takes, and what controller and agents take while nothing happens.

The benchmarks of this module share one cluster.
"""

from collections.abc import Iterable
from statistics import median
from typing import Final

from bench.registry import Bench, Session
from bench.result import Result, against_limit

READY_LIMIT_SECONDS: Final = 20.0
INSTALLATIONS: Final = 3
MEMORY_LIMIT_MIB: Final = 100.0
CPU_LIMIT_PERCENT: Final = 1.0
REQUESTS_LIMIT: Final = 12.0


def measure_ready(session: Session) -> Iterable[Result]:
    """Install the chart a few times."""
    installed = session.installed()
    done = [installed.install() for _ in range(session.count(INSTALLATIONS))]
    details = {
        "each": [round(seconds, 1) for seconds, _ in done],
        # On a busy machine the pods wait for this, at the end of the queue: they ask for little.
        "pods_cpu_seconds": round(median(used for _, used in done), 1),
    }
    yield against_limit([seconds for seconds, _ in done], "s", READY_LIMIT_SECONDS, details=details)


def measure_controller(session: Session) -> Iterable[Result]:
    """Tell memory and CPU of the controller."""
    rest = session.installed().rest(session.idle_seconds)
    memory = rest.after[rest.controller]["process_resident_memory_bytes"] / 2**20
    yield against_limit([memory], "MiB", MEMORY_LIMIT_MIB)
    # What `agent-idle` leaves out: the kubelet's probes are at work here.
    agents = median(rest.cpu_percent(pod) for pod in rest.agents.values())
    details = {"seconds": session.idle_seconds, "agents": round(agents, 3)}
    share = rest.cpu_percent(rest.controller)
    yield against_limit([share], "%", CPU_LIMIT_PERCENT, name="cpu", details=details)


def measure_requests(session: Session) -> Iterable[Result]:
    """Tell the requests to the API server, as it saw them; of the agents those of the busiest."""
    rest = session.installed().rest(session.idle_seconds)

    def counted(pod: str) -> float:
        return round(rest.per_minute(rest.gain(pod, "gpupolicy_api_requests_total")), 2)

    controller = rest.per_minute(rest.audited["controller", ""])
    node = max(rest.agents, key=lambda name: rest.audited["agent", name])
    agent = rest.per_minute(rest.audited["agent", node])
    for name, value, pod in (
        ("controller", controller, rest.controller),
        ("agent", agent, rest.agents[node]),
    ):
        details = {"counted": counted(pod), "seconds": session.idle_seconds}
        yield against_limit([value], "1/min", REQUESTS_LIMIT, name=name, details=details)


BENCHES: Final = (
    Bench(
        "helm-to-ready",
        "from `helm install` to controller and eight agents ready, images on the nodes",
        measure_ready,
    ),
    Bench(
        "controller-idle",
        "memory and CPU of the controller of eight nodes while nothing happens",
        measure_controller,
    ),
    Bench(
        "requests-idle",
        "requests a minute of the controller and of one agent while nothing happens",
        measure_requests,
    ),
)
