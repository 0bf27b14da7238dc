"""From the wire models to what planning reads."""

import pytest

from gpupolicy.api.node import GpuAssignment
from gpupolicy.api.policy import GpuPolicy
from gpupolicy.core.labels import LabelRequirement, LabelSelector
from gpupolicy.core.layouts import OnDemand, ProfileCount, StaticLayout, WholeCard
from gpupolicy.core.matching import CardSelector
from gpupolicy.core.policies import PolicyView, by_precedence, layout_of, view


def test_the_whole_of_a_policy() -> None:
    policy = GpuPolicy.model_validate(
        {
            "metadata": {"name": "infer", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "priority": 100,
                "nodeSelector": {"matchLabels": {"gpu-pool": "infer"}},
                "gpuSelector": {
                    "products": ["NVIDIA H100*"],
                    "architectures": ["Hopper"],
                    "minMemory": "79Gi",
                    "minComputeCapability": "9.0",
                    "cel": "true",
                },
                "gpusPerNode": 4,
                "adopt": True,
                "sharing": {
                    "strategy": "MIG",
                    "mig": {
                        "layout": [{"profile": "3g.40gb", "count": 1}, {"profile": "1g.10gb", "count": 2}]
                    },
                },
            },
        }
    )

    assert view(policy) == PolicyView(
        name="infer",
        created="2026-01-01T00:00:00Z",
        priority=100,
        layout=StaticLayout((ProfileCount("1g.10gb", 2), ProfileCount("3g.40gb", 1))),
        node_selector=LabelSelector((LabelRequirement("gpu-pool", "In", ("infer",)),)),
        cards=CardSelector(
            products=("NVIDIA H100*",),
            architectures=("Hopper",),
            min_memory_bytes=79 * 2**30,
            min_compute_capability="9.0",
        ),
        cel="true",
        gpus_per_node=4,
        adopt=True,
    )


def test_an_empty_policy_means_every_card_whole() -> None:
    assert view(GpuPolicy.model_validate({"metadata": {"name": "all"}})) == PolicyView(name="all")


@pytest.mark.parametrize(
    ("mig", "layout"),
    [
        (None, WholeCard()),
        ({"mode": "OnDemand"}, OnDemand()),
        ({"layout": [{"profile": "1g.10gb", "count": 7}]}, StaticLayout((ProfileCount("1g.10gb", 7),))),
    ],
    ids=["whole", "on-demand", "static"],
)
def test_the_spec_of_a_node_says_it_the_same_way(mig: dict | None, layout) -> None:
    wire = GpuAssignment.model_validate({"uuid": "GPU-0", "policy": "infer", "mig": mig})

    assert layout_of(wire.mig) == layout


@pytest.mark.parametrize(("text", "size"), [("1.5Gi", 1610612736), ("1k", 1000), ("0.3", 1)])
def test_sizes_are_whole_bytes(text: str, size: int) -> None:
    policy = GpuPolicy.model_validate(
        {"metadata": {"name": "a"}, "spec": {"gpuSelector": {"minMemory": text}}}
    )

    assert view(policy).cards.min_memory_bytes == size


def test_precedence() -> None:
    policies = [
        PolicyView("z", created="2026-01-01T00:00:00Z"),
        PolicyView("a", created="2026-01-02T00:00:00Z"),
        PolicyView("b", created="2026-01-02T00:00:00Z"),
        PolicyView("high", created="2026-06-01T00:00:00Z", priority=1),
    ]

    assert [p.name for p in by_precedence(reversed(policies))] == ["high", "z", "a", "b"]


def test_layouts_are_one_value_however_written() -> None:
    assert StaticLayout.of([("b", 1), ("a", 2), ("b", 2)]) == StaticLayout.of([("a", 2), ("b", 3)])
    assert str(StaticLayout.of([("b", 1), ("a", 2)])) == "2xa 1xb"
    assert (str(WholeCard()), str(OnDemand())) == ("whole", "on-demand")
