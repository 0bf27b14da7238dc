"""Cards as pynvml shows them, and steps carried out through pynvml: raw, with nothing of our own in between."""

import ctypes
from typing import Any

from gpupolicy.core.inventory import Gpu, Instance, MigProfile, MigState, Ownership, Placement, Process
from gpupolicy.core.steps import CreateInstance, DestroyInstance, SetMigMode, Step

LAST_PROFILE_NUMBER = 0x11
NO_INSTANCE = 0xFFFFFFFF


class CardDriver:
    """One card of a node whose NVML is initialised."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.profiles = tuple(self._profiles())

    def read(self) -> Gpu:
        """Return the card as it is. Every instance counts as ours."""
        current, pending = self.nvml.nvmlDeviceGetMigMode(self.handle)
        return Gpu(
            uuid=self.nvml.nvmlDeviceGetUUID(self.handle),
            index=self.index,
            product_name=self.nvml.nvmlDeviceGetName(self.handle),
            mig=MigState(
                capable=True,
                enabled=bool(current),
                pending_enabled=None if current == pending else bool(pending),
                profiles=self.profiles,
            ),
            instances=tuple(self._instances()) if current else (),
        )

    def carry_out(self, step: Step) -> None:
        """Do one step; NVML's errors pass through."""
        nvml = self.nvml
        match step:
            case SetMigMode():
                status = nvml.nvmlDeviceSetMigMode(self.handle, int(step.enabled))
                assert status == nvml.NVML_SUCCESS
            case DestroyInstance():
                gpu_instance = nvml.nvmlDeviceGetGpuInstanceById(self.handle, step.gpu_instance_id)
                compute = nvml.nvmlGpuInstanceGetComputeInstanceById(gpu_instance, step.compute_instance_id)
                nvml.nvmlComputeInstanceDestroy(compute)
                nvml.nvmlGpuInstanceDestroy(gpu_instance)
            case CreateInstance():
                placement = nvml.c_nvmlGpuInstancePlacement_t(step.placement.start, step.placement.size)
                gpu_instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                    self.handle, step.profile_id, ctypes.byref(placement)
                )
                nvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, self._full_compute(gpu_instance))

    def _full_compute(self, gpu_instance: Any) -> int:
        """Return the id of the compute instance profile that fills a GPU instance."""
        found = []
        for number in range(9):
            try:
                found.append(self.nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, number, 0))
            except self.nvml.NVMLError:
                continue
        return int(max((i for i in found if i.instanceCount == 1), key=lambda i: i.sliceCount).id)

    def _profiles(self) -> Any:
        for number in range(LAST_PROFILE_NUMBER + 1):
            try:
                info = self.nvml.nvmlDeviceGetGpuInstanceProfileInfo(self.handle, number, 2)
            except self.nvml.NVMLError:
                continue
            yield MigProfile(
                id=info.id,
                name=info.name.decode() if isinstance(info.name, bytes) else info.name,
                slices=info.sliceCount,
                memory_mib=info.memorySizeMB,
                max_instances=info.instanceCount,
                placements=tuple(self._placements(info.id)),
                decoders=info.decoderCount,
                encoders=info.encoderCount,
                jpeg_engines=info.jpegCount,
                ofa_engines=info.ofaCount,
            )

    def _placements(self, profile_id: int) -> Any:
        count = ctypes.c_uint()
        self.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            self.handle, profile_id, None, ctypes.byref(count)
        )
        places = (self.nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        self.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            self.handle, profile_id, places, ctypes.byref(count)
        )
        return (Placement(place.start, place.size) for place in places)

    def _instances(self) -> Any:
        for profile in self.profiles:
            handles = (self.nvml.c_nvmlGpuInstance_t * profile.max_instances)()
            count = ctypes.c_uint(profile.max_instances)
            self.nvml.nvmlDeviceGetGpuInstances(self.handle, profile.id, handles, ctypes.byref(count))
            for gpu_instance in handles[: count.value]:
                yield self._instance(profile, gpu_instance)

    def _instance(self, profile: MigProfile, gpu_instance: Any) -> Instance:
        info = self.nvml.nvmlGpuInstanceGetInfo(gpu_instance)
        compute = self.nvml.nvmlComputeInstanceGetInfo(
            self.nvml.nvmlGpuInstanceGetComputeInstanceById(gpu_instance, 0)
        )
        device = compute.device
        return Instance(
            profile_id=profile.id,
            profile=profile.name,
            placement=Placement(info.placement.start, info.placement.size),
            gpu_instance_id=info.id,
            compute_instance_id=compute.id,
            uuid=self.nvml.nvmlDeviceGetUUID(device),
            ownership=Ownership.OWNED,
            processes=tuple(Process(p.pid) for p in self.nvml.nvmlDeviceGetComputeRunningProcesses(device)),
        )
