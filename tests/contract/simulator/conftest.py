"""Fixtures: simulated nodes, and pynvml on one of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulator import Simulator

MakeNode = Callable[..., Simulator]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Create nodes without a driver root, which most rules do not need; arguments are those of `create`."""

    def make(name: str = "node", **arguments: Any) -> Simulator:
        arguments.setdefault("options", ["--state-only"])
        return Simulator(tmp_path / name).create(**arguments)

    return make


@pytest.fixture
def node(make_node: MakeNode) -> Simulator:
    """One H100."""
    return make_node()


@pytest.fixture
def nvml(node: Simulator) -> Iterator[Any]:
    """Unchanged pynvml, initialised on `node`."""
    with node.nvml() as module:
        yield module


@pytest.fixture
def gpu(nvml: Any) -> Any:
    """The first card of `node`, with MIG on."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceSetMigMode(handle, 1) == 0
    return handle
