"""Alive while the loop answers; ready when nothing is missing, and otherwise what is."""

import aiohttp

from gpupolicy.agent import endpoints, metrics
from gpupolicy.agent.state import NodeState


async def test_probes() -> None:
    missing = ["the cards have not been seen yet"]
    measured = metrics.for_node(NodeState("n", ledger=None))
    runner = await endpoints.serve(0, lambda: missing[0], measured, host="127.0.0.1")
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
            async with session.get("/healthz") as answer:
                assert answer.status == 200
            async with session.get("/readyz") as answer:
                assert (answer.status, (await answer.text()).strip()) == (503, missing[0])
            missing[0] = ""
            async with session.get("/readyz") as answer:
                assert (answer.status, (await answer.text()).strip()) == (200, "ok")
    finally:
        await runner.cleanup()
