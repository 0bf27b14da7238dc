"""Layouts, made as the vendor's partition editor makes them, and what the simulated node says that it has then.

The editor knows no table of cards. It counts slices by the constants of NVML, lets the driver choose places, tries the
orders of a layout until one works, and asks for a second compute instance before it asks for a new GPU instance. So it
leans on refusals, and a wrong success shows as a wrong layout.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode
from tests.contract.simulator.expectations import MODELS, Profile, profiles_of
from tests.simulator import Simulator

# Slices by constant of a compute instance profile, in the order in which the editor tries them.
COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 7: 1}

# (constant of the GPU instance profile, slices of the compute instance)
Part = tuple[int, int]
Layout = Counter[Part]


class Editor:
    """Reads and changes the layout of one card in MIG mode."""

    def __init__(self, nvml: Any, card: Any) -> None:
        self.nvml = nvml
        self.card = card
        self.refused = 0

    def instances(self) -> Iterator[tuple[int, Any]]:
        """Walk over the GPU instances: constant of the profile, handle."""
        for constant in range(self.nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self.nvml.nvmlDeviceGetGpuInstanceProfileInfo(self.card, constant)
            except self.nvml.NVMLError_NotSupported:
                continue
            count = self.nvml.c_uint(0)
            found = (self.nvml.c_nvmlGpuInstance_t * info.instanceCount)()
            self.nvml.nvmlDeviceGetGpuInstances(self.card, info.id, found, self.nvml.byref(count))
            for instance in found[: count.value]:
                yield constant, instance

    def compute_instances(self, instance: Any) -> Iterator[tuple[int, Any]]:
        """Walk over the compute instances of a GPU instance: slices, handle."""
        for constant, slices in COMPUTE_SLICES.items():
            try:
                info = self.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, constant, 0)
            except self.nvml.NVMLError_NotSupported:
                continue
            count = self.nvml.c_uint(0)
            found = (self.nvml.c_nvmlComputeInstance_t * info.instanceCount)()
            self.nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, found, self.nvml.byref(count))
            for compute in found[: count.value]:
                yield slices, compute

    def read(self) -> Layout:
        return Counter(
            (constant, slices)
            for constant, instance in self.instances()
            for slices, _ in self.compute_instances(instance)
        )

    def clear(self) -> None:
        for _, instance in list(self.instances()):
            for _, compute in list(self.compute_instances(instance)):
                self.nvml.nvmlComputeInstanceDestroy(compute)
            self.nvml.nvmlGpuInstanceDestroy(instance)

    def add_compute(self, instance: Any, slices: int) -> None:
        constant = next(number for number, width in COMPUTE_SLICES.items() if width == slices)
        info = self.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, constant, 0)
        self.nvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)

    def make(self, parts: Sequence[Part]) -> bool:
        """Make the parts in this order; False when the driver refuses one."""
        last: tuple[int, Any] | None = None
        for constant, slices in parts:
            if last is not None and last[0] == constant:
                try:
                    self.add_compute(last[1], slices)
                    continue
                except self.nvml.NVMLError_InsufficientResources:
                    self.refused += 1
            profile = self.nvml.nvmlDeviceGetGpuInstanceProfileInfo(self.card, constant)
            try:
                last = constant, self.nvml.nvmlDeviceCreateGpuInstance(self.card, profile.id)
            except self.nvml.NVMLError_InsufficientResources:
                return False
            self.add_compute(last[1], slices)
        return True

    def apply(self, layout: Layout) -> bool:
        if self.read() == layout:
            return True
        parts = sorted(layout.elements(), key=lambda part: part[1], reverse=True)
        for order in dict.fromkeys(permutations(parts)):
            self.clear()
            if self.make(order):
                return True
        return False


def in_dump(node: Simulator, profiles: Sequence[Profile]) -> Layout:
    constants = {profile.id: profile.enum for profile in profiles}
    return Counter(
        (constants[instance["profile_id"]], compute["size"])
        for instance in node.gpu(0)["gpu_instances"]
        for compute in instance["compute_instances"]
    )


@pytest.mark.parametrize("model", [model for model in MODELS if MODELS[model].get("profiles")])
def test_as_many_as_fit_of_each_profile(make_node: MakeNode, model: str) -> None:
    """One layout after the other on the same card, as an admin goes through a file of them."""
    node, profiles = make_node(model=model), profiles_of(model)
    with node.nvml() as nvml:
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(card, 1)
        editor = Editor(nvml, card)
        for profile in profiles:
            layout = Counter({(profile.enum, profile.slices): profile.max_instances})
            assert editor.make(list(layout.elements())), profile.name
            assert editor.read() == layout == in_dump(node, profiles), profile.name
            editor.clear()
            assert node.layout(0) == []
        assert editor.refused == sum(profile.max_instances - 1 for profile in profiles)


@pytest.mark.parametrize(
    ("model", "layouts"),
    [
        pytest.param(
            "h100-80gb",
            [
                {(2, 3): 1, (1, 2): 1, (0, 1): 2},
                {(3, 4): 1, (2, 3): 1},
                {(7, 1): 1, (9, 1): 1, (2, 1): 2},
                {(9, 1): 1, (2, 2): 1, (2, 1): 1},
                {(4, 4): 1, (4, 3): 1},
            ],
            id="seven-slices",
        ),
        pytest.param("a100-40gb", [{(2, 3): 1, (1, 2): 1, (0, 1): 2}, {(9, 1): 2, (2, 3): 1}], id="ampere"),
        pytest.param("a30", [{(1, 2): 1, (0, 1): 2}, {(8, 2): 1, (1, 1): 2}], id="four-slices"),
    ],
)
def test_one_mixed_layout_after_the_other(
    make_node: MakeNode, model: str, layouts: list[dict[Part, int]]
) -> None:
    node = make_node(model=model)
    with node.nvml() as nvml:
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetMigMode(card, 1)
        editor = Editor(nvml, card)
        for layout in map(Counter, layouts):
            assert editor.apply(layout)
            assert editor.read() == layout == in_dump(node, profiles_of(model))
            writes = node.writes()
            assert editor.apply(layout), "what is there already is left alone"
            assert node.writes() == writes
        assert not editor.apply(Counter({(0, 1): 8}))
        editor.clear()
        nvml.nvmlDeviceSetMigMode(card, 0)
        assert (node.gpu(0)["mig_current"], node.layout(0)) == (0, [])
