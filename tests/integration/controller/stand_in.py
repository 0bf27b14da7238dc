"""Stands in for the agent of a node: reports cards, carries out the node's spec, publishes slices.

It shares nothing with the real agent but the wire format, written out here once more, so that what the controller
makes of it is compared with what a person would count.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from tests.cluster.rest import ApiError, RestClient

GPUNODES = "/apis/gpupolicy.dev/v1alpha1/gpunodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DRIVER = "gpu.gpupolicy.dev"

H100_PROFILES = (
    # id, name, compute slices, MiB, size, most, starts
    (19, "1g.10gb", 1, 9984, 1, 7, range(7)),
    (20, "1g.10gb+me", 1, 9984, 1, 1, range(7)),
    (15, "1g.20gb", 1, 20096, 2, 4, (0, 2, 4, 6)),
    (14, "2g.20gb", 2, 20096, 2, 3, (0, 2, 4)),
    (9, "3g.40gb", 3, 40448, 4, 2, (0, 4)),
    (5, "4g.40gb", 4, 40448, 4, 1, (0,)),
    (0, "7g.80gb", 7, 81152, 8, 1, (0,)),
)


def timestamp(age_seconds: float = 0.0) -> str:
    """Return a moment in the past as Kubernetes writes it."""
    moment = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def h100(node: str, index: int) -> dict[str, Any]:
    """Return a card as an agent reports it before anybody wanted anything of it."""
    return {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "minor": index,
        "pciBusID": f"0000:{0x1A + index:02x}:00.0",
        "productName": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "brand": "Nvidia",
        "memory": "81559Mi",
        "computeCapability": "9.0",
        "health": "Healthy",
        "ownership": "Observed",
        "layout": "whole",
        "reason": "Idle",
        "appliedRevision": "",
        "devices": 0,
        "instances": [],
        "claims": [],
        "mig": {
            "capable": True,
            "enabled": False,
            "profiles": [
                {
                    "id": number,
                    "name": name,
                    "slices": slices,
                    "memoryMiB": memory,
                    "maxInstances": most,
                    "placements": [{"start": start, "size": size} for start in starts],
                }
                for number, name, slices, memory, size, most, starts in H100_PROFILES
            ],
        },
    }


class StandIn:
    """One node's agent, step by step as the test wants it."""

    def __init__(
        self, admin: RestClient, node: str, cards: list[dict[str, Any]], labels: dict[str, str]
    ) -> None:
        self.admin = admin
        self.node = node
        self.cards = cards
        self.observed = "True"
        self.silent_for_seconds = 0.0
        self.generation = 0
        self._slice_generation = 0
        admin.create("/api/v1/nodes", {"metadata": {"name": node, "labels": labels}})
        admin.create(GPUNODES, {**self._kind(), "metadata": {"name": node}, "spec": {}})

    @staticmethod
    def _kind() -> dict[str, str]:
        return {"apiVersion": "gpupolicy.dev/v1alpha1", "kind": "GpuNode"}

    def assignments(self) -> dict[str, dict[str, Any]]:
        """Return what the controller wants, by card."""
        spec = self.admin.get(f"{GPUNODES}/{self.node}").get("spec", {})
        return {entry["uuid"]: entry for entry in spec.get("gpus", [])}

    def report(self) -> None:
        """Write the status of the GpuNode."""
        now = timestamp()
        status = {
            "observedGeneration": self.generation,
            "conditions": [
                {
                    "type": "Observed",
                    "status": self.observed,
                    "reason": "Observed" if self.observed == "True" else "NvmlUnavailable",
                    "message": "",
                    "lastTransitionTime": now,
                    "observedGeneration": self.generation,
                }
            ],
            "driverVersion": "580.82.07",
            "cudaVersion": "13.0",
            "lastObservedTime": timestamp(self.silent_for_seconds),
            "gpuCount": len(self.cards),
            "gpus": self.cards,
        }
        body = {**self._kind(), "metadata": {"name": self.node}, "status": status}
        self.admin.apply(f"{GPUNODES}/{self.node}/status", body, "gpupolicy-agent", force=True)

    def carry_out(self, *, only: set[int] | None = None) -> None:
        """Give the cards (all, or some by index) the layout that is wanted, and report; publish nothing yet."""
        wanted = self.assignments()
        for card in self.cards:
            if only is not None and card["index"] not in only:
                continue
            entry = wanted.get(card["uuid"])
            if entry is None:
                card |= {"instances": [], "layout": "whole", "reason": "Idle", "appliedRevision": ""}
                card.pop("policy", None)
                continue
            layout = entry.get("mig", {}).get("layout", [])
            card["instances"] = [
                {
                    "profile": part["profile"],
                    "profileID": next(p[0] for p in H100_PROFILES if p[1] == part["profile"]),
                    "placement": {"start": number, "size": 1},
                    "uuid": f"MIG-{card['uuid']}-{part['profile']}-{number}",
                    "gpuInstanceID": number,
                    "computeInstanceID": 0,
                    "ownership": "Owned",
                }
                for part in layout
                for number in range(part["count"])
            ]
            card["mig"]["enabled"] = bool(layout)
            card |= {
                "policy": entry["policy"],
                "appliedRevision": entry["revision"],
                "reason": "Applied",
                "ownership": "Owned",
            }
        self.generation = self.admin.get(f"{GPUNODES}/{self.node}")["metadata"]["generation"]
        self.report()

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices of the cards as they stand."""
        result = []
        for card in self.cards:
            if not card.get("policy"):
                continue
            common = {"policy": {"string": card["policy"]}, "productName": {"string": card["productName"]}}
            if not card["instances"]:
                attributes = {**common, "type": {"string": "gpu"}, "uuid": {"string": card["uuid"]}}
                result.append({"name": f"gpu-{card['index']}", "attributes": attributes})
            for number, instance in enumerate(card["instances"]):
                attributes = {
                    **common,
                    "type": {"string": "mig"},
                    "profile": {"string": instance["profile"]},
                    "parentUUID": {"string": card["uuid"]},
                    "uuid": {"string": f"MIG-{card['index']}-{number}"},
                }
                result.append({"name": f"mig-{card['index']}-{number}", "attributes": attributes})
        return result

    def publish(self, devices: list[dict[str, Any]] | None = None) -> None:
        """Write the slices of the pool, at most 64 devices each, in a new generation."""
        devices = self.devices() if devices is None else devices
        self._slice_generation += 1
        parts = [devices[i : i + 64] for i in range(0, len(devices), 64)] or [[]]
        pool = {
            "name": f"{self.node}/gpupolicy",
            "generation": self._slice_generation,
            "resourceSliceCount": len(parts),
        }
        for number, part in enumerate(parts):
            name = f"{number:05}-{self.node}"
            spec = {"driver": DRIVER, "nodeName": self.node, "pool": pool, "devices": part}
            body = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name},
                "spec": spec,
            }
            try:
                current = self.admin.get(f"{SLICES}/{name}")
            except ApiError:
                self.admin.create(SLICES, body)
            else:
                body["metadata"] = {"name": name, "resourceVersion": current["metadata"]["resourceVersion"]}
                self.admin.replace(f"{SLICES}/{name}", body)

    def converge(self) -> None:
        """Do all that a healthy agent on idle cards does."""
        self.carry_out()
        self.publish()

    def remove(self) -> None:
        """Take the node and all of its objects away."""
        for path in (
            f"/api/v1/nodes/{self.node}",
            f"{GPUNODES}/{self.node}",
            f"{SLICES}/00000-{self.node}",
            f"{SLICES}/00001-{self.node}",
        ):
            try:
                self.admin.delete(path)
            except ApiError as error:
                if error.status != 404:
                    raise
