"""What the ledger remembers survives being written as JSON and read back, and hostile content is told apart."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.core import records
from gpupolicy.core.inventory import Placement

placements = st.builds(Placement, start=st.integers(0, 11), size=st.integers(1, 12))
texts = st.text(max_size=40)
devices = st.builds(
    records.DeviceRecord,
    name=texts,
    kind=st.sampled_from(records.DeviceKind),
    policy=texts,
    gpu_uuid=texts,
    pci_bus_id=texts,
    minor=st.none() | st.integers(0, 255),
    profile=texts,
    profile_id=st.none() | st.integers(0, 255),
    placement=st.none() | placements,
    gpu_instance_id=st.none() | st.integers(0, 14),
    compute_instance_id=st.none() | st.integers(0, 7),
    mig_uuid=texts,
)
claims = st.builds(
    records.ClaimRecord,
    uid=texts,
    namespace=texts,
    name=texts,
    state=st.sampled_from(records.ClaimState),
    devices=st.lists(
        st.builds(
            records.PreparedDevice,
            device=devices,
            pool=texts,
            requests=st.lists(texts, max_size=3).map(tuple),
            cdi_ids=st.lists(texts, max_size=3).map(tuple),
            share_id=texts,
        ),
        max_size=3,
    ).map(tuple),
)
gpus = st.builds(
    records.GpuRecord,
    gpu_uuid=texts,
    pci_bus_id=texts,
    policy=texts,
    revision=texts,
    instances=st.lists(
        st.builds(
            records.InstanceRecord,
            profile_id=st.integers(0, 255),
            profile=texts,
            placement=placements,
            state=st.sampled_from(records.InstanceState),
            gpu_instance_id=st.none() | st.integers(0, 14),
            uuid=texts,
        ),
        max_size=7,
    ).map(tuple),
    mode_before=st.none() | st.booleans(),
    mode_intent=st.none() | st.booleans(),
)


@given(claims)
def test_a_claim_record_survives_the_ledger(record: records.ClaimRecord) -> None:
    assert records.decode_claim(json.loads(json.dumps(records.encode_claim(record)))) == record


@given(gpus)
def test_a_card_record_survives_the_ledger(record: records.GpuRecord) -> None:
    assert records.decode_gpu(json.loads(json.dumps(records.encode_gpu(record)))) == record


@pytest.mark.parametrize(
    ("content", "field"),
    [
        pytest.param(None, "GpuRecord|ClaimRecord|dictionary", id="nothing"),
        pytest.param([], "ClaimRecord|dictionary", id="a list"),
        pytest.param({"uid": "u", "namespace": "n", "name": "c"}, "state", id="no state"),
        pytest.param(
            {"uid": "u", "namespace": "n", "name": "c", "state": "Done"}, "state", id="unknown state"
        ),
        pytest.param(
            {"uid": "u", "namespace": "n", "name": "c", "state": "Unpreparing", "devices": [{"pool": "p"}]},
            "devices.0.device",
            id="device missing",
        ),
    ],
)
def test_what_is_no_claim_record_is_refused_by_field(content: object, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        records.decode_claim(content)


def test_fields_of_a_newer_release_are_ignored() -> None:
    content = {"gpu_uuid": "GPU-1", "colour": "green", "instances": []}
    assert records.decode_gpu(content) == records.GpuRecord("GPU-1")


def test_a_claim_locks_its_cards_in_one_order() -> None:
    def device(gpu: str) -> records.PreparedDevice:
        return records.PreparedDevice(
            records.DeviceRecord(f"d-{gpu}", records.DeviceKind.GPU, "train", gpu), pool="p"
        )

    claim = records.ClaimRecord(
        "u", "n", "c", records.ClaimState.PREPARE_STARTED, (device("GPU-b"), device("GPU-a"), device("GPU-b"))
    )
    assert claim.gpu_uuids == ("GPU-a", "GPU-b")


@pytest.mark.parametrize(
    ("device", "uuid", "instance"),
    [
        pytest.param(
            records.DeviceRecord("gpu-1", records.DeviceKind.GPU, "train", "GPU-1"), "GPU-1", None, id="card"
        ),
        pytest.param(
            records.DeviceRecord(
                "mig-1",
                records.DeviceKind.MIG,
                "infer",
                "GPU-1",
                profile_id=19,
                placement=Placement(6, 1),
                mig_uuid="MIG-1",
            ),
            "MIG-1",
            records.InstanceKey("GPU-1", 19, Placement(6, 1)),
            id="instance",
        ),
    ],
)
def test_a_device_names_one_thing(
    device: records.DeviceRecord, uuid: str, instance: records.InstanceKey | None
) -> None:
    assert device.uuid == uuid
    assert device.instance == instance
