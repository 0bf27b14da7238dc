"""Events: each set of each process gets each event that it asked for, once."""

import threading
from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode
from tests.simulator import Simulator

XID, NOT_MIG = 8, 0xFFFFFFFF


def listen(nvml: Any, *handles: Any, types: int = XID) -> Any:
    """Create an event set for some cards."""
    events = nvml.nvmlEventSetCreate()
    for handle in handles:
        nvml.nvmlDeviceRegisterEvents(handle, types, events)
    return events


def test_every_set_gets_every_event(node: Simulator, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    sets = [listen(nvml, handle) for _ in range(3)]
    node.xid(0, 79)
    node.xid(0, 48, gi=3, ci=0)
    for events in sets:
        first, second = (nvml.nvmlEventSetWait_v2(events, 1000) for _ in range(2))
        assert (first.eventType, first.eventData) == (XID, 79)
        assert (first.gpuInstanceId, first.computeInstanceId) == (NOT_MIG, NOT_MIG)
        assert (second.eventData, second.gpuInstanceId, second.computeInstanceId) == (48, 3, 0)
        assert nvml.nvmlDeviceGetUUID(first.device) == node.gpu(0)["uuid"]
        with pytest.raises(nvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait_v2(events, 0)


def test_a_set_hears_only_what_it_asked_for(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    with node.nvml() as nvml:
        first, second = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        node.xid(1, 1)
        events = listen(nvml, second)
        node.xid(0, 2)
        node.command("xid", 1, 3, "--type", 2)
        node.xid(1, 4)
        assert nvml.nvmlEventSetWait_v2(events, 1000).eventData == 4
        node.xid(0, 5)
        nvml.nvmlDeviceRegisterEvents(first, XID, events)
        with pytest.raises(nvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait_v2(events, 0)
        node.xid(0, 5)
        assert nvml.nvmlEventSetWait_v2(events, 1000).eventData == 5


def test_a_waiter_wakes_up(node: Simulator, nvml: Any) -> None:
    events = listen(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    heard: list[int] = []
    waiter = threading.Thread(target=lambda: heard.append(nvml.nvmlEventSetWait_v2(events, 60_000).eventData))
    waiter.start()
    while "nvmlEventSetWait_v2" not in node.calls():
        pass
    node.lose(0)
    waiter.join()
    assert heard == [79], "a card that falls off the bus says so first"


def test_a_quiet_loss_and_the_card_in_the_place_of_another(node: Simulator, nvml: Any) -> None:
    events = listen(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    node.lose(0, quiet=True)
    node.swap(0)
    node.xid(0, 31)
    with pytest.raises(nvml.NVMLError_Timeout):
        nvml.nvmlEventSetWait_v2(events, 0)
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), XID, events)
    node.xid(0, 32)
    assert nvml.nvmlEventSetWait_v2(events, 1000).eventData == 32


def test_sets_that_were_freed_or_never_made(node: Simulator, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    freed = listen(nvml, handle)
    nvml.nvmlEventSetFree(freed)
    for events in (freed, nvml.c_nvmlEventSet_t(), handle):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            nvml.nvmlEventSetWait_v2(events, 0)
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            nvml.nvmlEventSetFree(events)


def test_a_nested_initialisation_ends_no_set_and_the_last_shutdown_ends_all(
    node: Simulator, nvml: Any
) -> None:
    events = listen(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    node.xid(0, 13)
    assert nvml.nvmlEventSetWait_v2(events, 1000).eventData == 13
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlEventSetWait_v2(events, 0)


def test_unknown_event_types_are_not_supported(node: Simulator, nvml: Any) -> None:
    with pytest.raises(nvml.NVMLError_NotSupported):
        listen(nvml, nvml.nvmlDeviceGetHandleByIndex(0), types=1 << 40)


def test_the_ring_drops_the_oldest(node: Simulator, nvml: Any) -> None:
    events = listen(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    for code in range(300):
        node.xid(0, code)
    heard = []
    while True:
        try:
            heard.append(nvml.nvmlEventSetWait_v2(events, 0).eventData)
        except nvml.NVMLError_Timeout:
            break
    assert heard == list(range(300 - 256, 300))
