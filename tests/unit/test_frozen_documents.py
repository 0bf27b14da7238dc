"""What release 0.1.0 wrote on disks and into clusters, and what every later release must read.

The files in tests/golden/documents are not generated again. A change of a format keeps them and adds new ones: a
failure here means that an upgrade would lose records of a node, or a policy.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupolicy.adapters import ledger
from gpupolicy.agent import state
from gpupolicy.api.node import GpuNode
from gpupolicy.api.policy import GpuPolicy, OnBusy, RolloutMode
from gpupolicy.controller.world import World
from gpupolicy.core import records
from gpupolicy.core.inventory import Ownership, Placement
from tests.paths import ROOT

DOCUMENTS = ROOT / "tests/golden/documents"
FROZEN = {
    "gpunode.json": "2771be2c2584f04b289106dcf3b5eef75705cbfeb364f0f22d9bbd3a92d4af35",
    "gpupolicy.yaml": "bfece9f6815aa9686cb891d645da3582d7b71c64b10314b95e09a1d5eeb6413a",
    "ledger-claim.json": "30e63ea720fec566dd4e7546b997d0237ce6493cca1622b0bbb06daea53ca0e5",
    "ledger-gpu.json": "e921a9e2948c4818b5c9b00df00911c4716fe881f98a772cb0d426d5423d9996",
}
BOOT = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
CARD = "GPU-11111111-2222-3333-4444-555555555555"
MIG = "MIG-aaaaaaaa-1111-2222-3333-444444444444"
CLAIM = "c0ffee00-1111-2222-3333-444444444444"


@pytest.mark.parametrize("name", FROZEN)
def test_the_documents_are_the_ones_that_were_written(name: str) -> None:
    """Whoever edits one of them finds out here that it is not a file to edit."""
    assert hashlib.sha256((DOCUMENTS / name).read_bytes()).hexdigest() == FROZEN[name]


async def read(folder: Path, name: str, kind: str, key: str) -> ledger.Record:
    """Put a frozen file where the agent looks for it, and return what it finds."""
    boot = folder / "boot"
    boot.write_text(f"{BOOT}\n")
    root = folder / "ledger"
    arguments: dict[str, Any] = {"kinds": state.LEDGER_KINDS, "volatile": state.VOLATILE_KINDS}
    async with ledger.Ledger(root, boot_id_path=boot, **arguments) as book:
        await book.load()
        book.path(kind, key).write_bytes((DOCUMENTS / name).read_bytes())
        contents = await book.load()
    assert contents.damaged == ()
    (record,) = contents.records
    assert (record.kind, record.key, record.boot_id) == (kind, key, BOOT)
    return record


async def test_the_record_of_a_card(tmp_path: Path) -> None:
    record = await read(tmp_path, "ledger-gpu.json", state.GPU_KIND, CARD)
    assert records.decode_gpu(record.data) == records.GpuRecord(
        gpu_uuid=CARD,
        pci_bus_id="0000:1b:00.0",
        policy="infer",
        revision="0123456789abcdef",
        instances=(
            records.InstanceRecord(19, "1g.10gb", Placement(4, 1), records.InstanceState.CREATED, 3, MIG),
            records.InstanceRecord(9, "3g.40gb", Placement(0, 4), records.InstanceState.CREATING),
            records.InstanceRecord(
                14, "2g.20gb", Placement(4, 2), records.InstanceState.DESTROYING, 5, MIG.replace("a", "b")
            ),
        ),
        mode_before=False,
        mode_intent=True,
    )


async def test_the_record_of_a_claim(tmp_path: Path) -> None:
    record = await read(tmp_path, "ledger-claim.json", state.CLAIM_KIND, CLAIM)
    assert records.decode_claim(record.data) == records.ClaimRecord(
        uid=CLAIM,
        namespace="team-a",
        name="slice-gpu-x7k2p",
        state=records.ClaimState.PREPARE_COMPLETED,
        devices=(
            records.PreparedDevice(
                device=records.DeviceRecord(
                    name="mig-0-19-4",
                    kind=records.DeviceKind.MIG,
                    policy="infer",
                    gpu_uuid=CARD,
                    pci_bus_id="0000:1b:00.0",
                    minor=0,
                    profile="1g.10gb",
                    profile_id=19,
                    placement=Placement(4, 1),
                    gpu_instance_id=3,
                    compute_instance_id=0,
                    mig_uuid=MIG,
                ),
                pool="gpu-01/gpupolicy",
                requests=("gpu",),
                cdi_ids=(f"gpu.gpupolicy.dev/claim={CLAIM}-mig-0-19-4",),
            ),
        ),
        pods=("slice",),
    )


async def test_a_record_of_a_newer_format_is_told_apart_and_kept(tmp_path: Path) -> None:
    """The other direction: an agent that was rolled back refuses what it cannot understand, and destroys nothing."""
    boot = tmp_path / "boot"
    boot.write_text(f"{BOOT}\n")
    arguments: dict[str, Any] = {"kinds": state.LEDGER_KINDS, "volatile": state.VOLATILE_KINDS}
    async with ledger.Ledger(tmp_path / "l", boot_id_path=boot, version=2, **arguments) as newer:
        await newer.load()
        await newer.write(state.GPU_KIND, CARD, {"gpu_uuid": CARD, "future": 1})
    async with ledger.Ledger(tmp_path / "l", boot_id_path=boot, **arguments) as book:
        (damaged,) = (await book.load()).damaged
        assert damaged.damage is ledger.Damage.NEWER
        with pytest.raises(ledger.DamagedRecordError, match="run the release that wrote it"):
            await book.write(state.GPU_KIND, CARD, {"gpu_uuid": CARD})


def test_a_gpunode() -> None:
    """Read by the controller: cards, instances, owners, claims, and what is wanted."""
    body = json.loads((DOCUMENTS / "gpunode.json").read_text())
    assert covers(GpuNode.model_validate(body).status.to_wire(), body["status"])
    found = World().read_node(body)
    assert found.sees_all
    assert (found.generation, found.observed_generation) == (3, 3)
    assert found.assignments["GPU-0"].revision == "r1"
    gpu = found.cards["GPU-0"].gpu
    assert gpu.ownership is Ownership.OWNED
    assert [(i.profile, i.placement.start, len(i.claims), len(i.processes)) for i in gpu.instances] == [
        ("3g.40gb", 4, 1, 0),
        ("1g.10gb", 2, 0, 1),
        ("1g.10gb", 3, 0, 0),
    ]
    assert len(gpu.mig.profiles) == 7


def test_a_gpunode_of_a_newer_agent() -> None:
    """Fields and words that this release does not know are no reason to call the node unreadable."""
    body = json.loads((DOCUMENTS / "gpunode.json").read_text())
    body["status"]["future"] = {"a": 1}
    body["status"]["gpus"][0] |= {"health": "Tired", "ownership": "Shared", "reason": "Dreaming", "future": 1}
    found = World().read_node(body)
    assert found.has_reported
    card = found.cards["GPU-0"]
    assert (card.reason, card.gpu.health, card.gpu.ownership) == ("Dreaming", "Unknown", Ownership.FOREIGN)


def test_a_policy() -> None:
    body = yaml.safe_load((DOCUMENTS / "gpupolicy.yaml").read_text())
    policy = GpuPolicy.model_validate(body)
    wire = policy.spec.to_wire()
    # What was written then means the same now: nothing is lost, whatever defaults were added since.
    for key, value in body["spec"].items():
        assert covers(wire[key], value), key
    assert (policy.spec.rollout.mode, policy.spec.rollout.on_busy) == (RolloutMode.APPLY, OnBusy.WAIT)
    assert covers(policy.status.to_wire(), body["status"])


def covers(found: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is found, among other things."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and covers(found[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(covers, found, wanted))
    return bool(found == wanted)
