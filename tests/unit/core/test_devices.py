"""What is published of a card: names, attributes, order, taints; and never anything foreign or about to go."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.api import names
from gpupolicy.core import devices
from gpupolicy.core.devices import DriverFacts, Taint, Version
from gpupolicy.core.inventory import Gpu, Health, MigState, Ownership, Placement
from gpupolicy.core.layouts import StaticLayout, WholeCard
from gpupolicy.core.planner import CardPlan, plan_card
from gpupolicy.core.records import DeviceKind
from tests.unit.core.builders import H100, card, claim, instance

FACTS = DriverFacts(driver_version="550.054.15", cuda_version="12.4")
INFER = StaticLayout.of([("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)])
WHOLE_H100 = card(
    enabled=False,
    pci_bus_id="0000:1a:00.0",
    minor=3,
    architecture="Hopper",
    brand="Nvidia",
    memory_bytes=85520809984,
    compute_capability="9.0",
    numa_node=1,
    pcie_root="pci0000:16",
)


def published(gpu: Gpu, layout: object, **options: object) -> devices.Published:
    plan = plan_card(gpu, layout)  # type: ignore[arg-type]
    return devices.card_devices(gpu, "policy", plan, FACTS, **options)  # type: ignore[arg-type]


def offered(gpu: Gpu, layout: object, **options: object) -> list[str]:
    return [d.name for d in published(gpu, layout, **options).offered]


def test_a_whole_card_says_all_that_is_known() -> None:
    (device,) = published(WHOLE_H100, WholeCard()).offered
    assert device.to_wire() == {
        "name": "gpu-0000-1a-00-0",
        "attributes": {
            "policy": {"string": "policy"},
            "type": {"string": "gpu"},
            "uuid": {"string": "GPU-0"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "architecture": {"string": "Hopper"},
            "brand": {"string": "Nvidia"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "550.54.15"},
            "cudaDriverVersion": {"version": "12.4.0"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:1a:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:16"},
            "resource.kubernetes.io/numaNode": {"int": 1},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
    }
    assert (device.record.kind, device.record.minor, device.record.uuid) == (DeviceKind.GPU, 3, "GPU-0")


def test_an_instance_says_its_parent_and_its_engines() -> None:
    gpu = replace(
        WHOLE_H100,
        mig=MigState(capable=True, enabled=True, profiles=H100),
        instances=(instance("1g.10gb@6", gpu_instance_id=13),),
    )
    device = devices.mig_device(gpu, gpu.instances[0], "infer", FACTS)
    body = device.to_wire()
    assert body["name"] == "mig-0000-1a-00-0-19-6"
    assert body["attributes"]["type"] == {"string": "mig"}
    assert body["attributes"]["profile"] == {"string": "1g.10gb"}
    assert body["attributes"]["parentUUID"] == {"string": "GPU-0"}
    assert body["attributes"]["uuid"] == {"string": "MIG-1g.10gb@6"}
    assert body["attributes"]["productName"] == {"string": "NVIDIA H100 80GB HBM3"}
    assert {key: value["value"] for key, value in body["capacity"].items()} == {
        "memory": "9984Mi",
        "multiprocessors": "0",
        "copyEngines": "0",
        "decoders": "1",
        "encoders": "0",
        "jpegEngines": "1",
        "ofaEngines": "0",
    }
    assert device.record.gpu_instance_id == 13
    assert device.record.instance is not None
    assert device.record.instance.placement == Placement(6, 1)


def test_what_is_not_known_is_left_out() -> None:
    bare = Gpu(uuid="GPU-6f7a0c1e-0000-0000-0000-000000000000", index=0)
    body = devices.gpu_device(bare, "train", DriverFacts()).to_wire()
    assert body == {
        "name": "gpu-6f7a0c1e-0000-0000-0000-000000000000",
        "attributes": {
            "policy": {"string": "train"},
            "type": {"string": "gpu"},
            "uuid": {"string": "GPU-6f7a0c1e-0000-0000-0000-000000000000"},
        },
        "capacity": {},
    }


def test_a_placed_layout_is_offered_with_the_least_blocking_places_first() -> None:
    gpu = card(instance("3g.40gb@4"), instance("1g.10gb@2"), instance("1g.10gb@3"), instance("2g.20gb@0"))
    assert offered(gpu, INFER) == ["mig-0-19-2", "mig-0-19-3", "mig-0-14-0", "mig-0-9-4"]


def test_seven_slices_fill_up_from_the_places_that_matter_least() -> None:
    """The last slice lies under fewer profiles than any other, so it goes first."""
    gpu = card(*(instance(f"1g.10gb@{start}") for start in range(7)))
    order = [int(name.rsplit("-", 1)[1]) for name in offered(gpu, StaticLayout.of([("1g.10gb", 7)]))]
    assert order[0] == 6
    assert sorted(order) == list(range(7))


@pytest.mark.parametrize(
    ("gpu", "layout", "names_offered"),
    [
        pytest.param(card(enabled=False), INFER, [], id="not cut yet"),
        pytest.param(card(), INFER, [], id="empty"),
        pytest.param(card(instance("1g.10gb@2")), INFER, ["mig-0-19-2"], id="a part that is right"),
        pytest.param(card(instance("7g.80gb@0")), INFER, [], id="idle and not wanted"),
        pytest.param(card(instance("1g.10gb@2", broken=True)), INFER, [], id="without a compute instance"),
        pytest.param(card(), WholeCard(), [], id="in MIG mode and to be whole"),
        pytest.param(card(enabled=False), WholeCard(), ["gpu-0"], id="whole"),
    ],
)
def test_only_what_stands_and_is_wanted_is_offered(
    gpu: Gpu, layout: object, names_offered: list[str]
) -> None:
    assert offered(gpu, layout) == names_offered


@pytest.mark.parametrize(
    ("gpu", "layout", "name"),
    [
        pytest.param(card(instance("7g.80gb@0", used_by="c")), INFER, "mig-0-0-0", id="instance to go"),
        pytest.param(
            card(instance("1g.10gb@2", used_by="c")), WholeCard(), "mig-0-19-2", id="card to be whole"
        ),
        pytest.param(card(enabled=False, claims=(claim(),)), INFER, "gpu-0", id="card to be cut"),
    ],
)
def test_what_is_in_use_and_not_wanted_retires(gpu: Gpu, layout: object, name: str) -> None:
    (device,) = published(gpu, layout).offered
    assert device.name == name
    assert device.taints == (Taint(names.RETIRING_TAINT),)
    assert device.to_wire()["taints"] == [{"key": names.RETIRING_TAINT, "effect": "NoSchedule"}]
    assert offered(gpu, layout, taints_served=False) == []
    assert [d.name for d in published(gpu, layout, taints_served=False).standing] == [name]


@pytest.mark.parametrize("health", [Health.UNHEALTHY, Health.UNKNOWN])
def test_a_sick_cards_devices_are_tainted_and_stay(health: Health) -> None:
    gpu = replace(WHOLE_H100, health=health, health_message="XID 79")
    (device,) = published(gpu, WholeCard()).offered
    assert device.to_wire()["taints"] == [
        {"key": names.UNHEALTHY_TAINT, "value": health.value, "effect": "NoSchedule"}
    ]
    assert (device.health, device.health_message) == (health, "XID 79")
    assert offered(gpu, WholeCard(), taints_served=False) == []


def test_nothing_foreign_is_offered_or_held() -> None:
    gpu = card(instance("1g.10gb@2", ownership=Ownership.FOREIGN), instance("1g.10gb@3"))
    plan = plan_card(replace(gpu, instances=gpu.instances[1:]), INFER)
    found = devices.card_devices(gpu, "infer", plan, FACTS)
    assert [d.name for d in found.offered] == ["mig-0-19-3"]
    assert [d.name for d in found.standing] == ["mig-0-19-3"]


def test_cards_fill_one_after_the_other_by_address() -> None:
    cards = [
        replace(WHOLE_H100, uuid="GPU-b", pci_bus_id="0000:9a:00.0", index=0),
        replace(WHOLE_H100, uuid="GPU-a", pci_bus_id="0000:1a:00.0", index=1),
    ]
    found = devices.in_order((gpu, published(gpu, WholeCard())) for gpu in cards)
    assert [d.name for d in found] == ["gpu-0000-1a-00-0", "gpu-0000-9a-00-0"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.054.15", "550.54.15"),
        ("580.65.06", "580.65.6"),
        ("12.4", "12.4.0"),
        ("9.0", "9.0.0"),
        ("470", "470.0.0"),
        ("550.54.15.01", "550.54.15"),
        ("550.54.15-grid", "550.54.15"),
        ("", None),
        ("unknown", None),
        ("550..15", None),
    ],
)
def test_versions_become_semantic_ones(text: str, version: str | None) -> None:
    assert devices.semantic_version(text) == (Version(version) if version else None)


@given(st.text(max_size=30))
def test_no_text_makes_a_version_that_the_api_server_refuses(text: str) -> None:
    version = devices.semantic_version(text)
    if version is not None:
        assert re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", version.text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (1, "1"), (1024, "1Ki"), (85520809984, "81559Mi"), (80 * 1024**3, "80Gi"), (1000, "1000")],
)
def test_amounts_are_written_as_the_api_server_writes_them(amount: int, text: str) -> None:
    assert devices.quantity(amount) == text


@given(st.integers(0, 2**62))
def test_an_amount_is_exact(amount: int) -> None:
    text = devices.quantity(amount)
    powers = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4}
    unit = next((u for u in powers if text.endswith(u)), None)
    assert (int(text[:-2]) * 1024 ** powers[unit] if unit else int(text)) == amount


@given(product=st.text(max_size=120), policy=st.text(min_size=1, max_size=120))
def test_values_fit_into_64_bytes_and_stay_text(product: str, policy: str) -> None:
    gpu = replace(WHOLE_H100, product_name=product)
    body = devices.gpu_device(gpu, policy, FACTS).to_wire()
    for value in body["attributes"].values():
        assert len(value.get("string", "").encode()) <= 64
    json.dumps(body)


@given(
    address=st.from_regex(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True),
    profile=st.sampled_from(H100),
)
def test_names_are_dns_labels_and_tell_places_apart(address: str, profile: object) -> None:
    gpu = replace(WHOLE_H100, pci_bus_id=address)
    found = [devices.mig_name(gpu, p.id, place) for p in H100 for place in p.placements]
    found.append(devices.gpu_name(gpu))
    assert len(set(found)) == len(found)
    for name in found:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)


def test_names_lead_back_to_places() -> None:
    gpu = replace(WHOLE_H100, mig=MigState(capable=True, enabled=True, profiles=H100))
    named = {"mig-0000-1a-00-0-19-6", "mig-0000-1a-00-0-9-4", "mig-0000-9a-00-0-19-0", "gpu-0000-1a-00-0"}
    assert devices.places_named(gpu, named) == {(19, Placement(6, 1)), (9, Placement(4, 4))}
    assert devices.places_named(gpu, ()) == frozenset()


def test_a_plan_that_keeps_is_what_is_offered() -> None:
    """Whatever the layout, every offered device without a taint is kept by the plan, and nothing kept is missing."""
    gpu = card(*(instance(f"1g.10gb@{start}") for start in range(7)))
    plan = plan_card(gpu, INFER)
    assert isinstance(plan, CardPlan)
    kept = {devices.mig_name(gpu, i.profile_id, i.placement) for i in plan.keep}
    assert set(offered(gpu, INFER)) == kept
    assert kept
