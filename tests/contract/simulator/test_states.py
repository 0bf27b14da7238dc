"""Every state that can be reached: whatever is done in whatever order, the card obeys its documented rules.

The oracle is a model in this file, built on `expectations.py` alone; it never asks the simulator what is allowed.
"""

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.contract.simulator.expectations import (
    MODELS,
    ComputeProfile,
    Profile,
    compatible,
    driver_choice,
    profiles_of,
)
from tests.simulator import Simulator

OK, INVALID, NOT_SUPPORTED, IN_USE, EXHAUSTED = 0, 2, 3, 19, 23


class Instance:
    """A GPU instance as the oracle knows it."""

    def __init__(self, profile: Profile, start: int) -> None:
        self.profile = profile
        self.start = start
        self.identifier = -1
        self.handle: Any = None
        self.computes: dict[int, tuple[ComputeProfile, int]] = {}
        self.held = False

    def taken(self) -> set[int]:
        """Return the compute slices in use."""
        return {s for profile, start in self.computes.values() for s in range(start, start + profile.slices)}


class Card(RuleBasedStateMachine):
    """One simulated card of any model and what the oracle expects of it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.enabled = False
        self.live: list[Instance] = []

    @initialize(model=st.sampled_from(sorted(MODELS)), swapped=st.booleans(), fresh=st.booleans())
    def power_on(self, model: str, swapped: bool, fresh: bool) -> None:
        self.simulator = Simulator(self.folder).create(
            model=model,
            options=["--state-only"],
            per_gpu={
                0: {
                    "gi_map": "half-swapped" if swapped else "identity",
                    "uuid_mode": "fresh" if fresh else "by-place",
                }
            },
        )
        self.profiles = profiles_of(model)
        self.context = self.simulator.nvml()
        self.nvml = self.context.__enter__()
        self.gpu = self.nvml.nvmlDeviceGetHandleByIndex(0)

    def teardown(self) -> None:
        if hasattr(self, "context"):
            self.context.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    def attempt(self, call: Any, *arguments: Any) -> tuple[int, Any]:
        try:
            return OK, call(*arguments)
        except self.nvml.NVMLError as error:
            return int(error.value), None

    def occupied(self) -> frozenset[int]:
        return frozenset(itertools.chain.from_iterable(i.profile.units(i.start) for i in self.live))

    def expected_creation(self, profile: Profile, start: int | None) -> int:
        if not self.enabled:
            return NOT_SUPPORTED
        if start is not None and start not in profile.starts:
            return INVALID
        count = sum(i.profile == profile for i in self.live)
        if count >= profile.max_instances or not compatible(profile, [i.profile for i in self.live]):
            return EXHAUSTED
        if start is None:
            start = driver_choice(self.profiles, profile, self.occupied())
        return EXHAUSTED if start is None or profile.units(start) & self.occupied() else OK

    @rule(data=st.data(), explicit=st.booleans(), anywhere=st.booleans())
    def create(self, data: st.DataObject, explicit: bool, anywhere: bool) -> None:
        profile = data.draw(st.sampled_from(self.profiles))
        start = data.draw(st.sampled_from(range(13) if anywhere else profile.starts)) if explicit else None
        expected = self.expected_creation(profile, start)
        if start is None:
            code, handle = self.attempt(self.nvml.nvmlDeviceCreateGpuInstance, self.gpu, profile.id)
            start = driver_choice(self.profiles, profile, self.occupied())
        else:
            place = self.nvml.c_nvmlGpuInstancePlacement_t(start, profile.size)
            code, handle = self.attempt(
                self.nvml.nvmlDeviceCreateGpuInstanceWithPlacement,
                self.gpu,
                profile.id,
                self.nvml.byref(place),
            )
        assert code == expected, (profile.name, start)
        if code == OK:
            assert start is not None
            instance = Instance(profile, start)
            instance.handle = handle
            instance.identifier = self.nvml.nvmlGpuInstanceGetInfo(handle).id
            self.live.append(instance)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(self.live))
        code, _ = self.attempt(self.nvml.nvmlGpuInstanceDestroy, instance.handle)
        assert code == (IN_USE if instance.computes or instance.held else OK)
        if code == OK:
            self.live.remove(instance)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def create_compute(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(self.live))
        profile = data.draw(st.sampled_from(instance.profile.compute))
        free = [s for s in profile.starts if not set(range(s, s + profile.slices)) & instance.taken()]
        code, made = self.attempt(self.nvml.nvmlGpuInstanceCreateComputeInstance, instance.handle, profile.id)
        assert code == (OK if free else EXHAUSTED)
        if code == OK:
            info = self.nvml.nvmlComputeInstanceGetInfo(made)
            assert info.placement.start == free[0]
            assert info.id not in instance.computes
            instance.computes[info.id] = (profile, free[0])

    @precondition(lambda self: any(i.computes for i in self.live))
    @rule(data=st.data())
    def destroy_compute(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from([i for i in self.live if i.computes]))
        identifier = data.draw(st.sampled_from(sorted(instance.computes)))
        made = self.nvml.nvmlGpuInstanceGetComputeInstanceById(instance.handle, identifier)
        code, _ = self.attempt(self.nvml.nvmlComputeInstanceDestroy, made)
        # The client holds compute instance 0 of its GPU instance.
        assert code == (IN_USE if instance.held and identifier == 0 else OK)
        if code == OK:
            del instance.computes[identifier]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(self.live))
        if instance.held:
            self.simulator.remove_client(1000 + instance.identifier)
        else:
            self.simulator.add_client(0, 1000 + instance.identifier, gi=instance.identifier, ci=0)
        instance.held = not instance.held

    @rule(enable=st.booleans())
    def switch(self, enable: bool) -> None:
        code, activation = self.attempt(self.nvml.nvmlDeviceSetMigMode, self.gpu, int(enable))
        assert code == (IN_USE if self.live and not enable else OK)
        if code == OK:
            assert activation == OK or (activation == IN_USE and any(i.held for i in self.live))
            self.enabled = enable if activation == OK else self.enabled

    @precondition(lambda self: not any(i.held for i in self.live))
    @rule()
    def reset(self) -> None:
        self.simulator.reset(0)
        self.gpu = self.nvml.nvmlDeviceGetHandleByIndex(0)
        self.live.clear()

    @invariant()
    def the_card_shows_what_the_oracle_knows(self) -> None:
        if not self.enabled:
            return
        seen = {}
        for profile in self.profiles:
            count = self.nvml.c_uint(0)
            buffer = (self.nvml.c_nvmlGpuInstance_t * profile.max_instances)()
            self.nvml.nvmlDeviceGetGpuInstances(self.gpu, profile.id, buffer, self.nvml.byref(count))
            assert count.value <= profile.max_instances
            for handle in buffer[: count.value]:
                info = self.nvml.nvmlGpuInstanceGetInfo(handle)
                seen[info.id] = (info.profileId, info.placement.start, info.placement.size)
        units = [unit for _, start, size in seen.values() for unit in range(start, start + size)]
        assert len(units) == len(set(units)), "instances overlap"
        assert seen == {i.identifier: (i.profile.id, i.start, i.profile.size) for i in self.live}

    @invariant()
    def capacities_are_what_creation_would_allow(self) -> None:
        for profile in self.profiles:
            code, capacity = self.attempt(
                self.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, self.gpu, profile.id
            )
            assert code == (OK if self.enabled else NOT_SUPPORTED)
            if code == OK:
                assert (capacity > 0) == (self.expected_creation(profile, None) == OK), profile.name

    @invariant()
    def mig_devices_are_numbered_without_gaps_and_told_apart(self) -> None:
        expected = sum(len(i.computes) for i in self.live)
        uuids = set()
        for index in range(expected):
            device = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.gpu, index)
            uuids.add(self.nvml.nvmlDeviceGetUUID(device))
        assert len(uuids) == expected


Card.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestEveryReachableState = Card.TestCase
