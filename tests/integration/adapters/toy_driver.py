"""A whole DRA driver in a few lines, on the parts under test: plugin, publisher, ledger and CDI writer.

Run as a program on a node; the tests start, kill and restart it. Its devices are numbers. Every event is a line of
JSON on standard output. A claim named `refused...` is refused.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpupolicy.adapters import cdi, kube, ledger
from gpupolicy.adapters.kubeletplugin import claims, publisher, server, services, slices
from gpupolicy.adapters.slice_store import KubeSliceStore

DRIVER = "toy.example.com"
KIND = f"{DRIVER}/claim"


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


class Driver:
    """Prepares what the claim's allocation says: a variable in the container's environment per device."""

    def __init__(self, client: kube.Kube, book: ledger.Ledger, cdi_dir: Path, sick: Sequence[str]) -> None:
        self.client = client
        self.book = book
        self.cdi_dir = cdi_dir
        self.sick = sick
        self.pool: slices.Pool | None = None

    async def prepare(
        self, asked: Sequence[claims.ClaimRef]
    ) -> Mapping[str, claims.PreparedClaim | claims.ClaimError]:
        say("prepare", claims=[claim.name for claim in asked])
        return {claim.uid: await self._prepare(claim) for claim in asked}

    async def _prepare(self, ref: claims.ClaimRef) -> claims.PreparedClaim | claims.ClaimError:
        if ref.name.startswith("refused"):
            return claims.ClaimError("this claim is refused by the toy")
        claim = await self.client.get(kube.RESOURCE_CLAIMS, ref.name, ref.namespace)
        if claim["metadata"]["uid"] != ref.uid:
            return claims.ClaimError(f"claim {ref} was deleted and made again")
        results = [
            result
            for result in claim["status"]["allocation"]["devices"]["results"]
            if result["driver"] == DRIVER
        ]
        devices = {
            result["device"]: cdi.ContainerEdits(env=(f"TOY={result['device']}",)) for result in results
        }
        await self.book.write("claims", ref.uid, {"devices": list(devices)})
        ids = cdi.write_spec(self.cdi_dir, KIND, ref.uid, devices, cdi.ContainerEdits(env=("TOYS=1",)))
        return claims.PreparedClaim(
            devices=tuple(
                claims.PreparedDevice(
                    pool=result["pool"],
                    device=result["device"],
                    requests=(result["request"],),
                    cdi_ids=(ids[result["device"]],),
                    share_id=result.get("shareID"),
                )
                for result in results
            )
        )

    async def unprepare(self, asked: Sequence[claims.ClaimRef]) -> Mapping[str, claims.ClaimError | None]:
        for claim in asked:
            cdi.remove_spec(self.cdi_dir, KIND, claim.uid)
            existed = await self.book.remove("claims", claim.uid)
            say("unprepare", claim=claim.name, existed=existed)
        return dict.fromkeys(claim.uid for claim in asked)

    async def health(self) -> Sequence[claims.DeviceHealth]:
        assert self.pool is not None
        return [
            claims.DeviceHealth(
                pool=self.pool.name,
                device=device["name"],
                state=claims.HealthState.UNHEALTHY
                if device["name"] in self.sick
                else claims.HealthState.HEALTHY,
                message="toy is broken" if device["name"] in self.sick else "",
            )
            for device in self.pool.devices
        ]


async def main(arguments: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with (
        kube.Kube.connect(arguments.kubeconfig) as client,
        ledger.Ledger(arguments.root, kinds=["claims"]) as book,
    ):
        contents = await book.load()
        say("loaded", claims=len(contents.records), damaged=len(contents.damaged))
        node = await client.get(kube.NODES, arguments.node)
        owner = slices.Owner(driver=DRIVER, node_name=arguments.node, node_uid=node["metadata"]["uid"])
        driver = Driver(client, book, arguments.cdi_dir, arguments.sick)
        driver.pool = slices.Pool(
            name=f"{arguments.node}/toy",
            devices=tuple({"name": f"toy-{n}"} for n in range(arguments.devices)),
        )
        store = KubeSliceStore(client, DRIVER, arguments.node, "toy")
        slice_publisher = publisher.SlicePublisher(
            store,
            kube.dropped_fields,
            on_change=lambda publication: say(
                "publication", complete=publication.complete, problem=publication.problem
            ),
        )

        def hear(status: server.PluginStatus) -> None:
            say("status", registered=status.registered, problem=status.problem)
            slice_publisher.wake()

        plugin = server.KubeletPlugin(
            DRIVER,
            Path("/var/lib/kubelet/plugins") / DRIVER,
            Path("/var/lib/kubelet/plugins_registry"),
            driver,
            health=driver,
            instance_id=arguments.instance,
            versions=arguments.versions or server.VERSIONS,
            on_status=hear,
            on_call=lambda report: say(
                "call", version=report.version, method=report.method, errors=dict(report.errors)
            ),
        )
        tasks = [
            asyncio.create_task(slice_publisher.run()),
            asyncio.create_task(store.reflector(slice_publisher).run()),
        ]
        slice_publisher.publish(driver.pool, owner)
        async with plugin:
            await stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    say("stopped")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--root", type=Path, default=Path("/var/lib/kubelet/plugins/toy.example.com"))
    parser.add_argument("--cdi-dir", type=Path, default=Path("/run/cdi"))
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--instance")
    parser.add_argument("--versions", nargs="*", choices=[*server.VERSIONS, services.DRA_V1BETA1])
    parser.add_argument("--sick", nargs="*", default=[])
    asyncio.run(main(parser.parse_args()))
