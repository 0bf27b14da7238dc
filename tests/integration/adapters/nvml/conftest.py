"""A simulated node for tests of the NVML adapter."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpupolicy.adapters.nvml import events
from gpupolicy.adapters.nvml.session import Nvml
from tests.integration.adapters.nvml.nvml_node import Node


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    directory = tmp_path / "gpusim"
    monkeypatch.setenv("GPUSIM_DIR", str(directory))
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.1)
    # A busy machine is no slow card: only the tests that are about those give up waiting.
    monkeypatch.setattr(
        Nvml.observe, "__kwdefaults__", {**(Nvml.observe.__kwdefaults__ or {}), "patience_seconds": 60.0}
    )
    node = Node(directory)
    yield node
    node.simulator.clear_faults()
    for nvml in node.open:
        await nvml.close()
