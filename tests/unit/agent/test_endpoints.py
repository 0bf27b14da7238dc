"""Alive while the loop answers; ready when nothing is missing, and otherwise what is; a taken port stops nobody."""

import asyncio
import logging
import socket

import aiohttp
import pytest

from gpupolicy.adapters import listening
from gpupolicy.agent import endpoints, metrics
from gpupolicy.agent.state import NodeState


async def ask(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, (await answer.text()).strip()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the errors that our own code has told of."""
    return [
        r.message for r in caplog.records if r.levelno >= logging.ERROR and r.name.startswith("gpupolicy")
    ]


async def test_probes() -> None:
    async with endpoints.Endpoints(0, host="127.0.0.1") as doors:
        port = await doors.port
        assert (await ask(port, "/healthz"))[0] == 200
        assert await ask(port, "/readyz") == (503, "the agent is starting")
        assert await ask(port, "/metrics") == (200, "")
        assert await ask(port, "/") == (404, "there are /healthz, /readyz and /metrics")
        doors.unready, doors.measured = (
            lambda: "the cards have not been seen yet",
            metrics.for_node(NodeState("n", ledger=None)),
        )
        assert await ask(port, "/readyz") == (503, "the cards have not been seen yet")
        assert "gpupolicy_node_gpus" in (await ask(port, "/metrics"))[1]
        doors.unready = lambda: ""
        assert await ask(port, "/readyz") == (200, "ok")
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(port, "/healthz")


async def test_no_port_serves_nothing() -> None:
    async with endpoints.Endpoints(None) as doors:
        await asyncio.sleep(0)
        assert not doors.port.done()


async def test_a_taken_port_is_told_once_and_used_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        listening.listen, "__kwdefaults__", {**listening.listen.__kwdefaults__, "retry_seconds": 0.01}
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with caplog.at_level(logging.INFO):
            async with endpoints.Endpoints(port, host="127.0.0.1") as doors:
                async with asyncio.timeout(60):
                    while not errors(caplog):  # noqa: ASYNC110 - a log tells nobody that it has grown
                        await asyncio.sleep(0.01)
                # Long enough for many more attempts.
                await asyncio.sleep(0.2)
                assert not doors.port.done()
                (line,) = errors(caplog)
                for part in (f"port {port}", "in use", "agent.healthPort", "--health-port"):
                    assert part in line
                other.close()
                assert await asyncio.wait_for(doors.port, 60) == port
                assert (await ask(port, "/healthz"))[0] == 200
    assert len(errors(caplog)) == 1


async def test_who_waits_for_a_port_can_be_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        async with endpoints.Endpoints(other.getsockname()[1], host="127.0.0.1") as doors:
            await asyncio.sleep(0.05)
        assert not doors.port.done()
