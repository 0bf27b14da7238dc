"""Finding cards, cards that are lost, detached or swapped, and what a card tells about itself."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode
from tests.simulator import Simulator, SimulatorError


def bus_ids(nvml: Any) -> list[str]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    return [nvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles]


def test_cards_are_found_by_every_name(make_node: MakeNode) -> None:
    node = make_node(gpus=8)
    with node.nvml() as nvml:
        assert nvml.nvmlDeviceGetCount() == 8
        for index in range(8):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, pci = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetPciInfo(handle)
            short = pci.busId.lower()[4:]
            names = {
                nvml.nvmlDeviceGetHandleByUUID: uuid,
                nvml.nvmlDeviceGetHandleBySerial: nvml.nvmlDeviceGetSerial(handle),
                nvml.nvmlDeviceGetHandleByPciBusId: short,
            }
            for find, name in names.items():
                assert nvml.nvmlDeviceGetUUID(find(name)) == uuid
            assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByPciBusId(pci.busId)) == uuid
            assert nvml.nvmlDeviceGetIndex(handle) == index
            assert (pci.pciDeviceId & 0xFFFF, len(pci.busId)) == (0x10DE, 16)
        assert bus_ids(nvml) == sorted(bus_ids(nvml))
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetHandleByIndex(8)
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")


def test_minor_numbers_and_indices_are_two_things(make_node: MakeNode) -> None:
    node = make_node(gpus=2, per_gpu={0: {"minor_number": 1}, 1: {"minor_number": 0}})
    with node.nvml() as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        assert [nvml.nvmlDeviceGetMinorNumber(h) for h in handles] == [1, 0]
        assert [nvml.nvmlDeviceGetIndex(h) for h in handles] == [0, 1]


def test_a_lost_card_answers_nothing_and_keeps_its_place(make_node: MakeNode) -> None:
    node = make_node(gpus=3)
    with node.nvml() as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
        uuid = nvml.nvmlDeviceGetUUID(handles[1])
        node.lose(1)
        assert nvml.nvmlDeviceGetCount() == 3
        for call in (
            lambda: nvml.nvmlDeviceGetHandleByIndex(1),
            lambda: nvml.nvmlDeviceGetHandleByUUID(uuid),
            lambda: nvml.nvmlDeviceGetUUID(handles[1]),
            lambda: nvml.nvmlDeviceGetMemoryInfo(handles[1]),
        ):
            with pytest.raises(nvml.NVMLError_GpuIsLost):
                call()
        assert nvml.nvmlDeviceGetIndex(handles[2]) == 2
        node.recover(1)
        assert nvml.nvmlDeviceGetUUID(handles[1]) == uuid


def test_a_detached_card_shifts_the_indices_behind_it(make_node: MakeNode) -> None:
    node = make_node(gpus=3)
    with node.nvml() as nvml:
        before = bus_ids(nvml)
        node.detach(1)
        assert bus_ids(nvml) == [before[0], before[2]]
        node.attach(1)
        assert bus_ids(nvml) == before


def test_a_swapped_card_is_another_card_at_the_same_address(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    with node.nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(1)
        uuid, serial, bus = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetSerial(handle), bus_ids(nvml)
        node.swap(1)
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetUUID(handle)
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetHandleByUUID(uuid)
        new = nvml.nvmlDeviceGetHandleByIndex(1)
        assert nvml.nvmlDeviceGetUUID(new) != uuid
        assert nvml.nvmlDeviceGetSerial(new) != serial
        assert bus_ids(nvml) == bus


def test_a_reset_is_refused_while_clients_hold_the_card(make_node: MakeNode) -> None:
    node = make_node()
    node.add_client(0, 4711)
    with pytest.raises(SimulatorError, match="in use by another client"):
        node.reset(0)
    node.reset(0, force=True)
    assert node.dump()["clients"] == []


def test_a_client_that_follows_a_process_ends_with_it(node: Simulator, nvml: Any) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.add_client(0, os.getpid(), while_alive=True)
    assert [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [os.getpid()]
    node.remove_client(os.getpid())
    os.waitpid(pid, 0)
    node.add_client(0, pid, while_alive=True)
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []


def test_telemetry_can_be_turned(make_node: MakeNode) -> None:
    readings: dict[str, object] = {
        "temperature_celsius": 77,
        "utilization_percent": 55,
        "remapped_correctable": 1,
        "remapped_uncorrectable": 2,
        "remap_pending": 1,
        "ecc_uncorrected": 3,
        "numa_node": 1,
        "architecture": 99,
    }
    with make_node(per_gpu={0: readings}).nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetTemperature(handle, 0) == 77
        assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 55
        assert nvml.nvmlDeviceGetRemappedRows(handle) == (1, 2, 1, 0)
        assert nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0) == 3
        assert nvml.nvmlDeviceGetNumaNodeId(handle) == 1
        assert nvml.nvmlDeviceGetArchitecture(handle) == 99
        assert nvml.nvmlDeviceGetSupportedEventTypes(handle) & 8
        assert nvml.nvmlDeviceGetPersistenceMode(handle) == 0
        info = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        assert info.total == info.free + info.used + info.reserved


def test_versions_of_the_node(make_node: MakeNode) -> None:
    node = make_node(driver_version="550.163.01", cuda="12.4")
    with node.nvml() as nvml:
        assert nvml.nvmlSystemGetDriverVersion() == "550.163.01"
        assert nvml.nvmlSystemGetNVMLVersion() == "12.550.163.01"
        assert nvml.nvmlSystemGetCudaDriverVersion() == 12040


def test_no_state_and_no_driver_are_the_same_to_a_client(
    tmp_path: Path, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node(properties={"driver_loaded": 0})
    missing = Simulator(tmp_path / "nowhere")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "state").write_bytes(b"\0" * 4096)
    for simulator in (node, missing, Simulator(tmp_path / "broken")):
        with pytest.raises(Exception, match="Driver Not Loaded"), simulator.nvml():
            pass
    node.set(driver_loaded=1)
    with node.nvml() as nvml:
        assert nvml.nvmlDeviceGetCount() == 1


def test_a_container_sees_the_cards_whose_nodes_it_has(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process has no device nodes of any card, so nothing is there; `test_root` shows the other half."""
    node = make_node(gpus=2)
    monkeypatch.setenv("GPUSIM_VISIBLE", "devices")
    with node.nvml() as nvml:
        assert nvml.nvmlDeviceGetCount() == 0
        with pytest.raises(nvml.NVMLError_NotFound):
            nvml.nvmlDeviceGetHandleByUUID(node.gpu(0)["uuid"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"model": "h9000"}, "no model", id="model"),
        pytest.param({"gpus": 17}, "--gpus", id="too-many"),
        pytest.param({"cuda": "new"}, "--cuda", id="cuda"),
        pytest.param({"per_gpu": {0: {"nonsense": 1}}}, "no such property", id="property"),
        pytest.param({"per_gpu": {0: {"gi_map": "odd"}}}, "identity half-swapped", id="word"),
        pytest.param({"gpus": 2, "per_gpu": {1: {"pci_bus": 1}}}, "ascend", id="order"),
        pytest.param({"gpus": 2, "per_gpu": {1: {"minor_number": 0}}}, "taken by GPU 0", id="minor"),
    ],
)
def test_impossible_nodes_are_refused(make_node: MakeNode, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        make_node(**arguments)
