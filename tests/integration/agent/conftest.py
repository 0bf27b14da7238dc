"""The agent's loop on two simulated cards."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpupolicy.adapters.nvml import events
from tests.integration.agent.agent_node import AgentNode


@pytest.fixture
def quick_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener for XIDs that notices its end soon."""
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.05)


@pytest.fixture
async def node(tmp_path: Path, quick_listener: None) -> AsyncIterator[AgentNode]:
    """An agent on two cards."""
    node = AgentNode(tmp_path)
    node.simulator.create(gpus=2)
    async with node:
        yield node
