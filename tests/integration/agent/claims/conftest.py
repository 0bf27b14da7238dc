"""The node on which claims are prepared, and waits that end soon."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpupolicy.agent import claims as agent_claims
from tests.integration.agent.claims.claims_node import Claims, Node, claim


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    source = Claims(
        claim("u1", "gpu-0"), claim("u2", "gpu-1", "mig-2-0"), claim("u3", "gpu-0"), claim("u4", "gpu-9")
    )
    made = await Node(tmp_path, source).start()
    made.source = source  # type: ignore[attr-defined]
    yield made
    await made.ledger.aclose()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that end soon, for the paths that end in a refusal."""
    monkeypatch.setattr(agent_claims, "ABSENT_SECONDS", 0.3)
    monkeypatch.setattr(agent_claims, "HOLDER_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(agent_claims, "CALL_SECONDS", 3.0)
    monkeypatch.setattr(agent_claims, "LOOK_AGAIN_SECONDS", 0.05)
