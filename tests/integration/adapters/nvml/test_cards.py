"""Cards through NVML: everything is read, every fault is told apart, one sick card hides no other."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from gpupolicy.adapters.nvml.lanes import HangError
from gpupolicy.adapters.nvml.session import Nvml
from gpupolicy.core import xids
from gpupolicy.core.inventory import Gpu, Health, Placement
from tests.integration.adapters.nvml.nvml_node import Node, eventually, profile_id

H100_PROFILES = {"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}


async def test_the_whole_inventory_is_read(node: Node) -> None:
    node.simulator.create(gpus=8)
    seen = await node.nvml().observe()
    assert seen.available
    assert seen.message == ""
    assert seen.driver_version
    assert len(seen.gpus) == 8
    assert len({g.uuid for g in seen.gpus}) == 8
    card = seen.gpus[3]
    truth = node.simulator.gpu(3)
    assert card.uuid == truth["uuid"]
    assert card.serial == truth["serial"]
    assert (card.product_name, card.architecture, card.brand) == ("NVIDIA H100 80GB HBM3", "Hopper", "Nvidia")
    assert card.compute_capability == "9.0"
    assert card.memory_bytes
    assert card.memory_bytes > 79 * 1024**3
    assert card.health is Health.HEALTHY
    assert card.mig.capable
    assert not card.mig.enabled
    assert not card.mig.mode_needs_reset
    assert {p.name for p in card.mig.profiles} == H100_PROFILES
    assert card.pci_bus_id == sorted(g.pci_bus_id for g in seen.gpus)[3]


@pytest.mark.parametrize(
    ("model", "architecture", "capable", "needs_reset"),
    [
        ("a100-40gb", "Ampere", True, True),
        ("a30", "Ampere", True, True),
        ("h100-80gb", "Hopper", True, False),
        ("h200-141gb", "Hopper", True, False),
        ("b200-180gb", "Blackwell", True, False),
        ("t4", "Turing", False, False),
        ("l40s", "Ada Lovelace", False, False),
    ],
)
async def test_every_model_is_understood(
    node: Node, model: str, architecture: str, capable: bool, needs_reset: bool
) -> None:
    node.simulator.create(model=model)
    (card,) = (await node.nvml().observe()).gpus
    assert (card.architecture, card.mig.capable, card.mig.mode_needs_reset) == (
        architecture,
        capable,
        needs_reset,
    )
    assert bool(card.mig.profiles) is capable


OPTIONAL = {
    "nvmlDeviceGetName": "product_name",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetBrand": "brand",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetMinorNumber": "minor",
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetPciInfo": "pci_bus_id",
}


@pytest.mark.parametrize("code", [3, 999], ids=["not supported", "unknown error"])
@pytest.mark.parametrize(("symbol", "field"), OPTIONAL.items(), ids=list(OPTIONAL))
async def test_a_missing_fact_is_a_gap_and_not_a_missing_card(
    node: Node, symbol: str, field: str, code: int
) -> None:
    node.simulator.create(gpus=2)
    node.simulator.add_fault(symbol, code=code, gpu=0, count=-1)
    nvml = node.nvml()
    by_index = {g.index: g for g in (await nvml.observe()).gpus}
    assert by_index[0].health is Health.HEALTHY
    assert not getattr(by_index[0], field)
    assert getattr(by_index[1], field) not in ("", None)
    node.simulator.clear_faults()
    by_index = {g.index: g for g in (await nvml.observe()).gpus}
    assert bool(getattr(by_index[0], field) in ("", None)) is (code == 3), (
        "a gap that can close is asked again"
    )


@pytest.mark.parametrize(
    ("function", "health"),
    [
        pytest.param("nvmlDeviceGetName", Health.HEALTHY, id="a fact"),
        pytest.param("nvmlDeviceGetMigMode", Health.UNKNOWN, id="what plans rest on"),
    ],
)
async def test_an_answer_without_sense_is_a_trouble_of_its_card(
    node: Node, monkeypatch: pytest.MonkeyPatch, function: str, health: Health
) -> None:
    """Such as a text in no known encoding; it must not end the agent of all the others."""
    node.simulator.create(gpus=2)
    nvml = node.nvml()
    first, second = (await nvml.observe()).gpus
    ask = getattr(pynvml, function)

    def ask_of(handle: object) -> object:
        if pynvml.nvmlDeviceGetIndex(handle) == 1:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return ask(handle)

    monkeypatch.setattr(pynvml, function, ask_of)
    fresh = node.nvml()
    seen = {gpu.uuid: gpu for gpu in (await fresh.observe()).gpus}
    assert seen[first.uuid] == first
    assert (seen[second.uuid].health, seen[second.uuid].product_name) == (health, "")


async def test_an_unknown_architecture_is_left_out(node: Node) -> None:
    node.simulator.create(per_gpu={0: {"architecture": 77}})
    (card,) = (await node.nvml().observe()).gpus
    assert (card.architecture, card.health) == ("", Health.HEALTHY)
    assert card.mig.profiles


@pytest.mark.parametrize(
    "symbol",
    ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo", "nvmlDeviceGetUUID"],
)
async def test_a_card_whose_state_cannot_be_read_is_unknown_and_keeps_its_identity(
    node: Node, symbol: str
) -> None:
    node.simulator.create(gpus=2)
    nvml, card = await node.enabled()
    await nvml.create_instance(card.uuid, profile_id(card, "1g.10gb"), Placement(0, 1))
    before = (await nvml.observe()).gpus
    node.simulator.add_fault(symbol, gpu=0, count=-1)
    seen = (await nvml.observe()).gpus
    assert [g.uuid for g in seen] == [g.uuid for g in before]
    assert [g.health for g in seen] == [Health.UNKNOWN, Health.HEALTHY]
    assert symbol in seen[0].health_message
    assert seen[0].instances == before[0].instances
    node.simulator.clear_faults()
    assert (await nvml.observe()).gpus == before


PROFILE_QUESTIONS = ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstancePossiblePlacements")


@pytest.mark.parametrize("symbol", PROFILE_QUESTIONS)
async def test_a_card_with_instances_is_not_known_while_one_of_its_profiles_is_not(
    node: Node, symbol: str
) -> None:
    """Instances of that profile cannot be seen, and their places are not free."""
    node.simulator.create(gpus=2)
    nvml, before = await node.enabled()
    await nvml.create_instance(before.uuid, profile_id(before, "3g.40gb"), Placement(4, 4))
    node.simulator.add_fault(symbol, code=999, gpu=0, skip=2)
    node.simulator.add_fault(symbol, code=999, gpu=1, skip=2)
    fresh = node.nvml()
    cut, whole = (await fresh.observe()).gpus
    assert cut.health is Health.UNKNOWN
    assert symbol.removesuffix("V") in cut.health_message
    assert whole.health is Health.HEALTHY, "nothing stands on it"
    assert whole.mig.profiles != before.mig.profiles
    cut, whole = (await fresh.observe()).gpus
    assert [i.profile for i in cut.instances] == ["3g.40gb"]
    assert (cut.health, cut.mig.profiles, whole.mig.profiles) == (Health.HEALTHY, *[before.mig.profiles] * 2)


async def test_a_card_that_denies_its_mig_once_is_not_believed(node: Node) -> None:
    """Neither when it said before that it has MIG, nor for ever when it was the first that it said."""
    node.simulator.create(gpus=1)
    nvml, before = await node.enabled()
    await nvml.create_instance(before.uuid, profile_id(before, "7g.80gb"), Placement(0, 8))
    await nvml.observe()
    node.simulator.add_fault("nvmlDeviceGetMigMode", code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    (denied,) = (await nvml.observe()).gpus
    assert (denied.health, len(denied.instances)) == (Health.UNKNOWN, 1)
    assert "said before that it has" in denied.health_message

    node.simulator.add_fault("nvmlDeviceGetMigMode", code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    fresh = node.nvml()
    (first,) = (await fresh.observe()).gpus
    assert not first.mig.capable
    for reader in (nvml, fresh):
        (now,) = (await reader.observe()).gpus
        assert (now.health, len(now.instances)) == (Health.HEALTHY, 1)
        assert now.mig.profiles == before.mig.profiles


async def test_a_lost_card_is_unhealthy_and_its_neighbours_are_not(node: Node) -> None:
    node.simulator.create(gpus=3)
    nvml = node.nvml()
    before = (await nvml.observe()).gpus
    node.simulator.lose(1, quiet=True)
    seen = (await nvml.observe()).gpus
    assert [g.uuid for g in seen] == [g.uuid for g in before]
    assert [g.health for g in seen] == [Health.HEALTHY, Health.UNHEALTHY, Health.HEALTHY]
    node.simulator.recover(1)
    assert (await nvml.observe()).gpus == before


async def test_a_card_that_is_lost_from_the_start_is_told_of(node: Node) -> None:
    node.simulator.create(gpus=2)
    node.simulator.lose(0, quiet=True)
    seen = await node.nvml().observe()
    assert [g.index for g in seen.gpus] == [1]
    assert "card 0" in seen.message


async def test_a_card_that_left_the_list_is_unhealthy_and_indices_may_shift(node: Node) -> None:
    node.simulator.create(gpus=3)
    nvml = node.nvml()
    before = (await nvml.observe()).gpus
    node.simulator.detach(0)
    seen = {g.uuid: g for g in (await nvml.observe()).gpus}
    assert seen[before[0].uuid].health is Health.UNHEALTHY
    assert (seen[before[1].uuid].index, seen[before[1].uuid].health) == (0, Health.HEALTHY)
    node.simulator.attach(0)
    assert (await nvml.observe()).gpus == before


@pytest.mark.parametrize("noticed", [False, True], ids=["between two looks", "seen to go"])
async def test_a_card_that_comes_back_with_another_device_node_is_asked_again(
    node: Node, noticed: bool
) -> None:
    """The driver numbers nodes in the order in which it meets cards; a container must not get its neighbour's."""
    node.simulator.create(gpus=2)
    nvml = node.nvml()
    first, second = (await nvml.observe()).gpus
    node.simulator.detach(0)
    node.simulator.detach(1)
    if noticed:
        assert {g.health for g in (await nvml.observe()).gpus} == {Health.UNHEALTHY}
    node.simulator.set(0, minor_number=7)
    node.simulator.set(1, minor_number=0)
    node.simulator.attach(0)
    node.simulator.attach(1)
    seen = {g.uuid: g for g in (await nvml.observe()).gpus}
    assert (seen[first.uuid].minor, seen[second.uuid].minor) == (7, 0)
    assert seen[first.uuid] == replace(first, minor=7)


async def test_a_swapped_card_takes_the_place_of_the_old_one(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml = node.nvml()
    before = (await nvml.observe()).gpus
    node.simulator.swap(1)
    seen = (await nvml.observe()).gpus
    assert [g.pci_bus_id for g in seen] == [g.pci_bus_id for g in before]
    assert seen[0] == before[0]
    assert seen[1].uuid not in {g.uuid for g in before}
    assert seen[1].health is Health.HEALTHY


async def test_a_hung_call_closes_its_card_only_and_is_forgotten_when_it_returns(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml = node.nvml(call_seconds=1.5)
    before = (await nvml.observe()).gpus
    node.simulator.add_fault("nvmlDeviceGetMigMode", mode="hang", hang_ms=8000, gpu=0)
    seen = (await nvml.observe()).gpus
    assert [g.health for g in seen] == [Health.UNKNOWN, Health.HEALTHY]
    assert "nvmlDeviceGetMigMode: hangs since" in seen[0].health_message
    calls = _calls_of_cards(node)
    with pytest.raises(HangError):
        await nvml.read(before[0].uuid)
    with pytest.raises(HangError):
        await nvml.create_instance(before[0].uuid, 19, Placement(0, 1))
    assert _calls_of_cards(node) == calls, "nothing may be asked of a card that hangs"

    async def is_back() -> bool:
        return (await nvml.observe()).gpus == before

    await eventually(is_back)


def _calls_of_cards(node: Node) -> dict[str, int]:
    """How often each function was called, without the listening for events, which goes on by itself."""
    return {name: n for name, n in node.simulator.calls().items() if not name.startswith("nvmlEventSet")}


async def test_an_observation_does_not_wait_for_a_slow_card(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml = node.nvml(call_seconds=30)
    before = (await nvml.observe()).gpus
    node.simulator.add_fault("nvmlDeviceGetMigMode", mode="hang", hang_ms=9000, gpu=0)
    node.simulator.lose(1, quiet=True)
    seen = (await nvml.observe(patience_seconds=4.0)).gpus
    assert seen[0] == before[0], "what was last known of the slow card"
    assert seen[1].health is Health.UNHEALTHY

    async def was_told() -> bool:
        return node.heard > 0

    await eventually(was_told)
    assert (await nvml.observe()).gpus[0] == before[0]


async def test_a_slow_card_is_known_also_beside_one_that_was_lost_from_the_start(node: Node) -> None:
    """The one that never said which it is must not make the node forget who the others are, look by look."""
    node.simulator.create(gpus=3)
    node.simulator.lose(0, quiet=True)
    nvml = node.nvml(call_seconds=30)
    before = {g.uuid: g for g in (await nvml.observe(patience_seconds=20)).gpus}
    assert len(before) == 2
    slow = node.simulator.gpu(1)["uuid"]
    node.simulator.add_fault("nvmlDeviceGetMigMode", mode="hang", hang_ms=3000, gpu=1)
    seen = {g.uuid: g for g in (await nvml.observe(patience_seconds=1.0)).gpus}
    assert seen[slow] == before[slow]
    skipped = await nvml.observe(skip=frozenset({slow}), patience_seconds=1.0)
    assert {g.uuid: g for g in skipped.gpus}[slow] == before[slow]

    async def has_answered() -> bool:
        return node.heard > 0 and not nvml._lanes.busy

    await eventually(has_answered)


async def test_a_library_that_is_not_there_is_found_later(node: Node, tmp_path: Path) -> None:
    missing = tmp_path / "later" / "libnvidia-ml.so.1"
    nvml = Nvml(missing, sysfs=tmp_path)
    node.open.append(nvml)
    seen = await nvml.observe()
    assert not seen.available
    assert "--nvml-library" in seen.message
    node.simulator.create()
    missing.parent.mkdir()
    missing.symlink_to(node.simulator.library_path)
    assert (await nvml.observe()).available


async def test_a_driver_that_is_not_loaded_is_waited_for(node: Node) -> None:
    node.simulator.create()
    node.simulator.set(driver_loaded=0)
    nvml = node.nvml()
    seen = await nvml.observe()
    assert not seen.available
    assert "load the NVIDIA kernel driver" in seen.message
    node.simulator.set(driver_loaded=1)
    assert len((await nvml.observe()).gpus) == 1


async def test_a_reload_of_the_driver_is_survived(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml = node.nvml()
    before = (await nvml.observe()).gpus
    node.simulator.reload()

    async def is_back() -> bool:
        seen = await nvml.observe()
        return seen.available and seen.gpus == before

    await eventually(is_back)


async def test_an_outage_shows_the_cards_as_unknown(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml = node.nvml()
    before = (await nvml.observe()).gpus
    node.simulator.add_fault("nvmlDeviceGetCount", code=999, count=-1)
    seen = await nvml.observe()
    assert not seen.available
    assert [g.uuid for g in seen.gpus] == [g.uuid for g in before]
    assert {g.health for g in seen.gpus} == {Health.UNKNOWN}
    node.simulator.clear_faults()
    assert (await nvml.observe()).gpus == before


async def test_an_xid_makes_its_card_unhealthy(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml = node.nvml()
    await nvml.observe()
    await hear(node, nvml, 1, 48)
    seen = (await nvml.observe()).gpus
    assert [g.health for g in seen] == [Health.HEALTHY, Health.UNHEALTHY]
    assert "XID 48" in seen[1].health_message
    assert (await nvml.read(seen[1].uuid)).health is Health.UNHEALTHY, (
        "a change under way must hear of it too"
    )


async def hear(node: Node, nvml: Nvml, index: int, number: int) -> Gpu:
    """Report one XID of a card, wait until the adapter has heard it, and return the card as it is then seen."""
    await report(node, nvml, (index, number))
    return (await nvml.observe()).gpus[index]


async def report(node: Node, nvml: Nvml, *xids: tuple[int, int]) -> None:
    """Report each of these XIDs of cards once, and wait until the adapter has heard of one that matters.

    The listener registers in its own time, and an event before that is nobody's. A second one to be sure might be heard
    when the test is further on.
    """
    cards = len((await nvml.observe()).gpus)

    def called(symbol: str) -> int:
        return node.simulator.calls().get(symbol, 0)

    async def is_registered() -> bool:
        return called("nvmlDeviceRegisterEvents") >= cards

    async def is_waiting() -> bool:
        return called("nvmlEventSetWait_v2") > before

    async def is_heard() -> bool:
        return node.heard > 0

    await eventually(is_registered)
    before = called("nvmlEventSetWait_v2")
    await eventually(is_waiting)
    node.heard = 0
    for index, number in xids:
        node.simulator.xid(index, number)
    await eventually(is_heard)


async def test_an_xid_outlives_the_process_that_heard_it(node: Node) -> None:
    node.simulator.create(gpus=2)
    first = node.nvml()
    await first.observe()
    sick = await hear(node, first, 1, 79)
    told = (await first.observe()).xids
    assert {uuid: xid.number for uuid, xid in told.items()} == {sick.uuid: 79}
    await first.close()

    second = node.nvml()
    second.remember(sick.uuid, told[sick.uuid])
    seen = await second.observe()
    assert [g.health for g in seen.gpus] == [Health.HEALTHY, Health.UNHEALTHY]
    assert seen.xids == told
    assert "until it is reset or the node is rebooted" in seen.gpus[1].health_message


async def test_a_reset_ends_what_an_xid_began_and_the_next_one_is_heard(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml = node.nvml()
    await nvml.observe()
    sick = await hear(node, nvml, 1, 79)
    assert (await nvml.observe()).gpus[1].health is Health.UNHEALTHY, "it stands as long as nothing happens"
    node.simulator.reset(0)
    assert (await nvml.observe()).gpus[1].health is Health.UNHEALTHY, "another card was reset"
    node.simulator.reset_counters()
    node.simulator.reset(1)
    seen = await nvml.observe()
    assert [g.health for g in seen.gpus] == [Health.HEALTHY, Health.HEALTHY]
    assert seen.xids == {}
    assert (await hear(node, nvml, 1, 62)).uuid == sick.uuid
    assert (await nvml.observe()).gpus[1].health is Health.UNHEALTHY


async def test_a_driver_that_is_loaded_anew_has_no_past(node: Node) -> None:
    node.simulator.create(gpus=1)
    nvml = node.nvml()
    await nvml.observe()
    await hear(node, nvml, 0, 79)
    node.simulator.add_fault("nvmlDeviceGetCount", code=9, count=1)
    seen = await nvml.observe()
    assert (seen.available, seen.xids) == (False, {})
    async with asyncio.timeout(120):
        while not (seen := await nvml.observe()).available:  # noqa: ASYNC110 - nobody tells of a driver that comes back
            await asyncio.sleep(0.1)
    assert [g.health for g in seen.gpus] == [Health.HEALTHY]
    # The fault only pretended: the first session was never ended, and would keep the next test at this node.
    pynvml.nvmlShutdown()


async def test_what_the_driver_asks_for_counts_without_an_xid(node: Node) -> None:
    """Somebody heard the XID while no agent ran; a reset is what it takes."""
    node.simulator.create(gpus=2)
    node.simulator.set(gpu="all", recovery_action=0)
    nvml = node.nvml()
    assert [g.health for g in (await nvml.observe()).gpus] == [Health.HEALTHY] * 2
    node.simulator.set(gpu=1, recovery_action=1)
    seen = (await nvml.observe()).gpus
    assert [g.health for g in seen] == [Health.HEALTHY, Health.UNHEALTHY]
    assert seen[1].health_message == "the driver asks for a reset of the card"
    node.simulator.reset(1)
    assert [g.health for g in (await nvml.observe()).gpus] == [Health.HEALTHY] * 2


async def test_the_driver_is_believed_that_nothing_needs_to_be_done(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, and for good: the card does not flap."""
    node.simulator.create(gpus=1)
    node.simulator.set(gpu=0, recovery_action=0)
    nvml = node.nvml()
    await nvml.observe()
    assert (await hear(node, nvml, 0, 79)).health is Health.UNHEALTHY
    assert (await nvml.observe()).gpus[0].health is Health.UNHEALTHY
    with monkeypatch.context() as patch:
        patch.setattr(xids, "TRUST_SECONDS", -1.0)
        assert (await nvml.observe()).gpus[0].health is Health.HEALTHY
    seen = await nvml.observe()
    assert (seen.gpus[0].health, seen.xids) == (Health.HEALTHY, {})


async def test_an_old_driver_is_asked_once_for_what_it_does_not_know(node: Node) -> None:
    node.simulator.create(gpus=1)
    nvml = node.nvml()
    for _ in range(3):
        await nvml.observe()
    assert node.simulator.calls()["nvmlDeviceGetFieldValues"] == 1


async def test_an_xid_of_a_faulty_program_is_no_sickness(node: Node) -> None:
    node.simulator.create(gpus=2)
    nvml = node.nvml()
    await nvml.observe()
    await report(node, nvml, (0, 31), (1, 62))
    seen = (await nvml.observe()).gpus
    assert [g.health for g in seen] == [Health.HEALTHY, Health.UNHEALTHY]
