"""Injected failures and delays, and the record of what was called."""

import threading
import time
from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode
from tests.simulator import Simulator, SimulatorError


def outcome(nvml: Any, call: Any) -> int:
    try:
        call()
    except nvml.NVMLError as error:
        return int(error.value)
    return 0


def test_the_nth_call_fails_with_the_given_code(node: Simulator, nvml: Any) -> None:
    node.add_fault("nvmlDeviceGetCount", code=999, skip=2, count=2)
    assert [outcome(nvml, nvml.nvmlDeviceGetCount) for _ in range(6)] == [0, 0, 999, 999, 0, 0]


def test_faults_without_end_stay_until_they_are_cleared(node: Simulator, nvml: Any) -> None:
    fault = node.add_fault("nvmlDeviceGetCount", code=3, count=-1)
    assert [outcome(nvml, nvml.nvmlDeviceGetCount) for _ in range(20)] == [3] * 20
    node.clear_faults(fault)
    assert outcome(nvml, nvml.nvmlDeviceGetCount) == 0


def test_a_fault_of_one_card_spares_its_neighbours(make_node: MakeNode) -> None:
    node = make_node(gpus=3)
    with node.nvml() as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
        node.add_fault("nvmlDeviceGetMemoryInfo", code=3, gpu=1, count=-1)
        node.add_fault("nvmlDeviceGetHandleByIndex", code=15, gpu=2, count=-1)
        memory = [outcome(nvml, lambda h=h: nvml.nvmlDeviceGetMemoryInfo(h)) for h in handles]
        lookups = [outcome(nvml, lambda i=i: nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(3)]
    assert (memory, lookups) == ([0, 3, 0], [0, 0, 15])


@pytest.mark.parametrize(
    ("symbol", "hit"),
    [
        pytest.param("nvmlDeviceGetMemoryInfo", [13, 13], id="every-version"),
        pytest.param("nvmlDeviceGetMemoryInfo_v2", [0, 13], id="one-version"),
        pytest.param("*", [13, 13], id="everything"),
        pytest.param("writes", [0, 0], id="only-writes"),
    ],
)
def test_which_calls_a_name_means(node: Simulator, nvml: Any, symbol: str, hit: list[int]) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.add_fault(symbol, code=13, count=-1)
    plain = outcome(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    second = outcome(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
    assert [plain, second] == hit


@pytest.mark.parametrize(("mode", "made"), [("before", 0), ("after", 1)])
def test_a_failed_creation_may_have_taken_place(
    node: Simulator, nvml: Any, gpu: Any, mode: str, made: int
) -> None:
    node.reset_counters()
    node.add_fault("nvmlDeviceCreateGpuInstance", code=999, mode=mode)
    assert outcome(nvml, lambda: nvml.nvmlDeviceCreateGpuInstance(gpu, 9)) == 999
    assert len(node.layout(0)) == made
    (entry,) = node.journal()
    assert (entry["result"], entry["effect"]) == (999, 0 if made else 999)


def test_an_activation_that_fails(node: Simulator, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    node.add_fault("nvmlDeviceSetMigMode", code=3, mode="activation")
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == 3
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 1]
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == 0
    assert nvml.nvmlDeviceGetMigMode(handle) == [1, 1]


def test_initialisation_can_fail_and_then_work(node: Simulator) -> None:
    node.add_fault("nvmlInitWithFlags", code=18)
    with pytest.raises(Exception, match="version mismatch"), node.nvml():
        pass
    with node.nvml() as nvml:
        assert nvml.nvmlDeviceGetCount() == 1


def test_a_hanging_call_holds_up_nobody_else(make_node: MakeNode) -> None:
    node = make_node(gpus=2)
    with node.nvml() as nvml:
        slow, other = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        node.add_fault("nvmlDeviceGetMemoryInfo", gpu=0, mode="hang", hang_ms=8000)
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(nvml.nvmlDeviceGetMemoryInfo(slow).total))
        thread.start()
        while "nvmlDeviceGetMemoryInfo" not in node.calls():
            pass
        nvml.nvmlDeviceGetMemoryInfo(other)
        assert not answers, "the other card answered while the first still hung"
        thread.join()
        assert len(answers) == 1


def test_a_call_may_outlive_the_shutdown(node: Simulator) -> None:
    """An agent that gives up on a hanging call must not crash when it ends."""
    with node.nvml() as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        node.add_fault("nvmlDeviceGetMemoryInfo", mode="hang", hang_ms=3000)
        thread = threading.Thread(target=nvml.nvmlDeviceGetMemoryInfo, args=[handle])
        thread.start()
        while "nvmlDeviceGetMemoryInfo" not in node.calls():
            pass
    thread.join()
    with node.nvml() as nvml:
        assert nvml.nvmlDeviceGetCount() == 1


@pytest.mark.parametrize("target", ["everything", "symbol", "card"])
def test_latency(make_node: MakeNode, target: str) -> None:
    """Only a lower bound is claimed: the clock is a busy machine's."""
    node = make_node(gpus=2)
    with node.nvml() as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2)]
        if target == "everything":
            node.set_latency(50_000)
        elif target == "symbol":
            node.set_latency(50_000, symbol="nvmlDeviceGetUUID")
        else:
            node.set_latency(50_000, gpu=1)
        started = time.monotonic()
        nvml.nvmlDeviceGetUUID(handles[1])
        assert time.monotonic() - started >= 0.05
        node.clear_latency()
        assert node.dump()["latencies"] == []
        assert node.dump()["global_latency_microseconds"] == 0


def test_calls_and_writes_are_counted(node: Simulator, nvml: Any) -> None:
    node.reset_counters()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceGetMigMode(handle)
    nvml.nvmlDeviceGetMigMode(handle)
    assert node.writes() == 0
    nvml.nvmlDeviceSetMigMode(handle, 1)
    assert outcome(nvml, lambda: nvml.nvmlDeviceCreateGpuInstance(handle, 77)) == 2
    assert node.writes() == 2
    assert node.calls()["nvmlDeviceGetMigMode"] == 2
    assert [(e["symbol"], e["gpu"], e["result"]) for e in node.journal()] == [
        ("nvmlDeviceSetMigMode", 0, 0),
        ("nvmlDeviceCreateGpuInstance", 0, 2),
    ]


def test_functions_that_are_not_simulated_are_counted_and_not_supported(node: Simulator, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetEncoderCapacity(handle, 0)
    assert node.calls()["nvmlDeviceGetEncoderCapacity"] == 1


def test_nothing_answers_before_initialisation(node: Simulator, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetUUID(handle)
    nvml.nvmlShutdown()
    for call in (
        nvml.nvmlShutdown,
        nvml.nvmlDeviceGetCount,
        lambda: nvml.nvmlDeviceGetUUID(handle),
        lambda: nvml.nvmlDeviceGetEncoderCapacity(handle, 0),
    ):
        with pytest.raises(nvml.NVMLError_Uninitialized):
            call()


@pytest.mark.parametrize(
    "words",
    [
        ["fault", "add", "--symbol", "nvmlNothing"],
        ["fault", "add", "--code", "0"],
        ["fault", "add", "--mode", "sometimes"],
        ["fault", "add", "--gpu", "4"],
        ["fault", "add", "surplus"],
        ["latency", "-5"],
        ["client", "add", "--gpu", "0"],
        ["xid", "all", "79"],
        ["set", "colour"],
        ["dance"],
    ],
    ids=" ".join,
)
def test_impossible_commands_are_refused_and_change_nothing(node: Simulator, words: list[str]) -> None:
    before = node.dump()
    with pytest.raises(SimulatorError):
        node.command(*words)
    assert node.dump() == before
