"""Fixtures for the Kubernetes adapter: the canned server and a client of it."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import transport
from tests.integration.adapters.kube.canned import Server, Sleeps, Tokens


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server on a loopback port."""
    made = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
async def client(server: Server, sleeps: Sleeps) -> AsyncIterator[kube.Kube]:
    """A client of the server that does not really wait between attempts."""
    async with kube.Kube(transport.Transport(Tokens(server.url), sleep=sleeps)) as made:
        yield made
