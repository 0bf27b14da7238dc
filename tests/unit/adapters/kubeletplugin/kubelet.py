"""A kubelet written by hand: the calls of the protocol through grpclib's client, in the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod

from gpupolicy.adapters.kubeletplugin import messages, services

DRA = {services.DRA_V1: messages.DRA_V1, services.DRA_V1BETA1: messages.DRA_V1BETA1}
HEALTH = {services.HEALTH_V1: messages.HEALTH_V1, services.HEALTH_V1ALPHA1: messages.HEALTH_V1ALPHA1}


@asynccontextmanager
async def connect(path: Path) -> AsyncIterator["Kubelet"]:
    channel = Channel(path=str(path))
    try:
        yield Kubelet(channel)
    finally:
        channel.close()


class Kubelet:
    """One connection to one socket."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def get_info(self) -> Any:
        types = messages.REGISTRATION
        return await self._call(
            "/pluginregistration.Registration/GetInfo", types.InfoRequest(), types.PluginInfo
        )

    async def notify(self, *, registered: bool, error: str = "") -> None:
        types = messages.REGISTRATION
        status = types.RegistrationStatus(plugin_registered=registered, error=error)
        path = "/pluginregistration.Registration/NotifyRegistrationStatus"
        await self._call(path, status, types.RegistrationStatusResponse)

    async def prepare(
        self,
        claims: Sequence[tuple[str, str, str]],
        *,
        version: str = services.DRA_V1,
        seconds: float = 45,
    ) -> dict[str, Any]:
        """Call with (namespace, name, uid) of each claim; return the answer's entries by uid."""
        types = DRA[version]
        return await self._dra("Prepare", version, claims, seconds, types.NodePrepareResourcesResponse)

    async def unprepare(
        self,
        claims: Sequence[tuple[str, str, str]],
        *,
        version: str = services.DRA_V1,
        seconds: float = 45,
    ) -> dict[str, Any]:
        types = DRA[version]
        return await self._dra("Unprepare", version, claims, seconds, types.NodeUnprepareResourcesResponse)

    @asynccontextmanager
    async def watch_health(self, version: str = services.HEALTH_V1) -> AsyncIterator[AsyncIterator[Any]]:
        types = HEALTH[version]
        method = UnaryStreamMethod(
            self._channel,
            f"/{version}/NodeWatchResources",
            types.NodeWatchResourcesRequest,
            types.NodeWatchResourcesResponse,
        )
        async with method.open() as stream:
            await stream.send_message(types.NodeWatchResourcesRequest(), end=True)
            yield aiter(stream)
            await stream.cancel()

    async def _dra(
        self,
        verb: str,
        version: str,
        claims: Sequence[tuple[str, str, str]],
        seconds: float,
        reply: Any,
    ) -> dict[str, Any]:
        types = DRA[version]
        request = getattr(types, f"Node{verb}ResourcesRequest")(
            claims=[{"namespace": namespace, "name": name, "uid": uid} for namespace, name, uid in claims]
        )
        path = f"/k8s.io.kubelet.pkg.apis.dra.{version}/Node{verb}Resources"
        answer = await self._call(path, request, reply, seconds)
        return dict(answer.claims)

    async def _call(self, path: str, request: Any, reply: Any, seconds: float = 60) -> Any:
        method = UnaryUnaryMethod(self._channel, path, type(request), reply)
        return await method(request, timeout=seconds)


async def eventually(check: Any, *, seconds: float = 120) -> None:
    """Wait until a condition holds; fail loudly when it never does."""
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.005)
