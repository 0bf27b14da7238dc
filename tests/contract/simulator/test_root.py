"""The driver root: files that follow the state, and commands and containers that see them."""

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulator import Simulator, SimulatorError

MIG_ON = {"mig_current": 1, "mig_pending": 1}


@pytest.fixture
def node(tmp_path: Path) -> Simulator:
    return Simulator(tmp_path / "node").create(gpus=2, seed="root", per_gpu={0: MIG_ON})


def access_files(node: Simulator) -> dict[str, str]:
    """Return the capability files of instances and their contents."""
    capabilities = node.root / "proc/driver/nvidia/capabilities"
    return {
        str(p.relative_to(capabilities).parent): p.read_text()
        for p in capabilities.glob("gpu*/mig/**/access")
    }


def caps_nodes(node: Simulator) -> set[int]:
    return {int(p.name.removeprefix("nvidia-cap")) for p in (node.root / "dev/nvidia-caps").iterdir()}


def cut(nvml: Any) -> tuple[Any, Any]:
    """Create a 1g instance on the first card: GPU instance 13, where the driver puts it."""
    instance = nvml.nvmlDeviceCreateGpuInstance(nvml.nvmlDeviceGetHandleByIndex(0), 19)
    return instance, nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)


def test_libraries_and_tools(node: Simulator) -> None:
    for name in ("libnvidia-ml", "libcuda"):
        link = node.root / "usr/lib64" / f"{name}.so.1"
        assert str(link.readlink()) == f"{name}.so.580.65.06", (
            "links are relative: they are resolved from outside"
        )
        dynamic = subprocess.run(["readelf", "-d", link], capture_output=True, text=True, check=True).stdout
        assert f"Library soname: [{name}.so.1]" in dynamic
    assert os.access(node.nvidia_smi_path, os.X_OK)
    assert os.access(node.mps_control_path, os.X_OK)


def test_device_nodes(node: Simulator) -> None:
    expected = {
        "nvidia0": (195, 0),
        "nvidia1": (195, 1),
        "nvidiactl": (195, 255),
        "nvidia-modeset": (195, 254),
        "nvidia-uvm": (235, 0),
        "nvidia-uvm-tools": (235, 1),
        "nvidia-caps/nvidia-cap1": (234, 1),
        "nvidia-caps/nvidia-cap2": (234, 2),
    }
    for name, numbers in expected.items():
        status = os.lstat(node.root / "dev" / name)
        assert stat.S_ISCHR(status.st_mode), name
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == numbers
    assert len(list((node.root / "dev").iterdir())) == 7


def test_a_node_without_devices(tmp_path: Path) -> None:
    node = Simulator(tmp_path / "bare").create(options=["--no-devices"])
    assert list((node.root / "dev").iterdir()) == []
    with node.nvml() as nvml:
        nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByIndex(0), 1)
        cut(nvml)
    assert set(access_files(node)) == {"gpu0/mig/gi13", "gpu0/mig/gi13/ci0"}


def test_access_files_come_and_go_with_instances(node: Simulator) -> None:
    with node.nvml() as nvml:
        assert access_files(node) == {}
        instance, compute = cut(nvml)
        content = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        assert access_files(node) == {
            "gpu0/mig/gi13": content.format(120),
            "gpu0/mig/gi13/ci0": content.format(121),
        }
        assert caps_nodes(node) == {1, 2, 120, 121}
        nvml.nvmlComputeInstanceDestroy(compute)
        assert set(access_files(node)) == {"gpu0/mig/gi13"}
        nvml.nvmlGpuInstanceDestroy(instance)
        assert access_files(node) == {}
    assert caps_nodes(node) == {1, 2, 120, 121}, "nobody removes device nodes"


def test_an_administrator_who_has_to_make_the_nodes(node: Simulator) -> None:
    node.set(caps_nodes="none")
    with node.nvml() as nvml:
        cut(nvml)
    assert caps_nodes(node) == {1, 2}


@pytest.mark.parametrize("event", ["reset", "swap", "reboot", "reload"])
def test_what_ends_instances_ends_their_files(node: Simulator, event: str) -> None:
    with node.nvml() as nvml:
        cut(nvml)
    node.command(event, *([0] if event in {"reset", "swap"} else []))
    assert access_files(node) == {}


def test_minor_numbers_name_files_and_nodes(tmp_path: Path) -> None:
    node = Simulator(tmp_path / "node").create(gpus=2, per_gpu={0: {"minor_number": 5, **MIG_ON}})
    with node.nvml() as nvml:
        cut(nvml)
    assert set(access_files(node)) == {"gpu5/mig/gi13", "gpu5/mig/gi13/ci0"}
    assert {120 + 5 * 135, 121 + 5 * 135} <= caps_nodes(node)
    assert (node.root / "dev/nvidia5").exists()
    assert not (node.root / "dev/nvidia0").exists()


def test_the_static_table_of_minors(node: Simulator) -> None:
    lines = (node.root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    table = dict(line.split() for line in lines)
    assert (table["config"], table["monitor"]) == ("1", "2")
    assert (table["gpu0/gi0/access"], table["gpu0/gi0/ci0/access"]) == ("3", "4")
    assert table["gpu31/gi14/ci7/access"] == "4322"
    assert len(set(table.values())) == len(lines)


def pci_devices(node: Simulator) -> dict[str, str]:
    """Return the PCI addresses and the root that each hangs below."""
    folder = node.root / "sys/bus/pci/devices"
    return {link.name: link.resolve().relative_to(node.root).parts[2] for link in folder.iterdir()}


def test_the_pci_tree_follows_the_cards(node: Simulator) -> None:
    assert pci_devices(node) == {"0000:1a:00.0": "pci0000:10", "0000:3b:00.0": "pci0000:30"}
    device = node.root / "sys/bus/pci/devices/0000:1a:00.0"
    contents = {
        name: (device / name).read_text().strip() for name in ("vendor", "class", "device", "numa_node")
    }
    assert contents == {"vendor": "0x10de", "class": "0x030200", "device": "0x2330", "numa_node": "0"}
    start, end, flags = (device / "resource").read_text().splitlines()[0].split()
    assert int(end, 16) > int(start, 16) > 0
    assert int(flags, 16) > 0
    assert str((device / "driver").resolve().relative_to(node.root)) == "sys/bus/pci/drivers/nvidia"
    node.detach(0)
    assert list(pci_devices(node)) == ["0000:3b:00.0"]
    assert [path.name for path in (node.root / "sys/bus/pci/drivers/nvidia").iterdir()] == ["0000:3b:00.0"]
    node.attach(0)
    assert len(pci_devices(node)) == 2


def capabilities_of(space: bytes) -> dict[int, bytes]:
    """Follow the list of capabilities in a PCI configuration space: id -> what stands from there on."""
    assert space[0x06] & 0x10, "the status says that there is a list"
    place, found = space[0x34], dict[int, bytes]()
    while place:
        assert space[place] not in found
        found[space[place]] = space[place:]
        place = space[place + 1]
    return found


def test_the_configuration_space_says_what_the_files_beside_it_say(node: Simulator) -> None:
    device = node.root / "sys/bus/pci/devices/0000:3b:00.0"
    space = (device / "config").read_bytes()
    said = {
        name: int((device / name).read_text(), 16)
        for name in ("vendor", "device", "class", "revision", "subsystem_vendor", "subsystem_device")
    }
    vendor, model, class_and_revision = struct.unpack_from("<HH4xI", space)
    assert len(space) == 4096
    assert (vendor, model) == (said["vendor"], said["device"])
    assert (class_and_revision >> 8, class_and_revision & 0xFF) == (said["class"], said["revision"])
    assert struct.unpack_from("<HH", space, 0x2C) == (said["subsystem_vendor"], said["subsystem_device"])
    assert struct.unpack_from("<I", space, 0x10)[0] == int((device / "resource").read_text().split()[0], 16)
    assert set(capabilities_of(space)) == {0x01, 0x10}, "power management, PCI Express"
    with node.nvml() as nvml:
        info = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(1))
    assert info.pciDeviceId == said["device"] << 16 | said["vendor"]
    assert info.pciSubSystemId == said["subsystem_device"] << 16 | said["subsystem_vendor"]


def test_a_guest_reads_the_hosts_driver_from_the_configuration_space(node: Simulator) -> None:
    node.set(1, virtualization=2)
    guest, whole = (
        (node.root / f"sys/bus/pci/devices/{name}/config").read_bytes()
        for name in ("0000:3b:00.0", "0000:1a:00.0")
    )
    record = capabilities_of(guest)[0x09]
    assert (record[2], record[3:5]) == (27, b"VF")
    assert (record[5], record[6]) == (0, 22)
    assert (record[7:17].strip(b"\0"), record[17:27].strip(b"\0")) == (b"580.65.06", b"r580_00")
    assert 0x09 not in capabilities_of(whole)


def test_the_driver_tells_of_each_card(node: Simulator) -> None:
    folder = node.root / "proc/driver/nvidia/gpus"
    for gpu, name in zip(node.dump()["gpus"], ("0000:1a:00.0", "0000:3b:00.0"), strict=True):
        lines = (folder / name / "information").read_text().splitlines()
        said = {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}
        assert said["Model"] == gpu["name"]
        assert (said["GPU UUID"], said["Video BIOS"]) == (gpu["uuid"], gpu["vbios"])
        assert (said["Bus Location"], said["Device Minor"]) == (name, str(gpu["minor_number"]))
    before = (folder / "0000:1a:00.0/information").read_text()
    node.swap(0)
    assert node.gpu(0)["uuid"] in (folder / "0000:1a:00.0/information").read_text() != before
    node.detach(1)
    assert [path.name for path in folder.iterdir()] == ["0000:1a:00.0"]
    assert "ModifyDeviceFiles: 1" in (node.root / "proc/driver/nvidia/params").read_text()


def test_a_command_finds_the_files_at_their_places(node: Simulator) -> None:
    with node.nvml() as nvml:
        cut(nvml)
    script = """
        readlink -f /sys/bus/pci/devices/0000:1a:00.0
        cat /sys/bus/pci/devices/0000:1a:00.0/vendor
        cat /proc/sys/kernel/random/boot_id
        cat /proc/driver/nvidia/capabilities/gpu0/mig/gi13/ci0/access | head -1
        grep nvidia-caps /proc/devices
        ls /sys/devices/system/cpu/online
        ls -d /proc/$$
        nvidia-smi -L | head -1
        readlink -f /sys/bus/pci/drivers/nvidia/0000:3b:00.0/driver
        grep -h Minor /proc/driver/nvidia/gpus/*/information
        """
    done = node.execute(["sh", "-ec", script])
    assert done.returncode == 0, done.stderr
    state = node.dump()
    assert done.stdout.splitlines()[:5] == [
        "/sys/devices/pci0000:10/0000:1a:00.0",
        "0x10de",
        state["boot_id"],
        "DeviceFileMinor: 121",
        "234 nvidia-caps",
    ]
    assert state["gpus"][0]["uuid"] in done.stdout
    assert "/sys/bus/pci/drivers/nvidia" in done.stdout.splitlines()
    assert [line.split()[-1] for line in done.stdout.splitlines()[-2:]] == ["0", "1"]
    assert not Path("/proc/driver/nvidia").exists(), "the host sees nothing of it"


def test_a_running_command_sees_changes(node: Simulator) -> None:
    """The files are live: what another process creates is there at once."""
    script = """
        ls /proc/driver/nvidia/capabilities/gpu0/mig
        nvidia-smi mig -i 0 -cgi 19 -C > /dev/null
        ls /proc/driver/nvidia/capabilities/gpu0/mig
        """
    assert node.execute(["sh", "-ec", script]).stdout.split() == ["gi13"]


def test_a_kernel_without_modules_can_be_given_some(node: Simulator) -> None:
    done = node.execute(
        ["sh", "-ec", "grep '^nvidia ' /proc/modules; cat /proc/self/comm"], options=["--modules"]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "cat"


@pytest.mark.parametrize("options", [[], ["--modules"]])
def test_a_command_gets_its_own_words_and_no_others(node: Simulator, options: list[str]) -> None:
    words = ["one", "--dir", "--", "last"]
    done = node.execute(["sh", "-c", 'printf "%s\\n" "$@"', "sh", *words], options=options)
    assert done.stdout.splitlines() == words


def test_exec_reports_what_it_cannot_run(node: Simulator, tmp_path: Path) -> None:
    done = node.execute(["no-such-program"])
    assert (done.returncode, "no-such-program" in done.stderr) == (2, True)
    assert Simulator(tmp_path / "nowhere").execute(["true"]).returncode == 2


def test_a_second_node_in_the_same_place_needs_force(node: Simulator) -> None:
    with node.nvml() as nvml:
        cut(nvml)
    before = node.dump()
    with pytest.raises(SimulatorError, match="--force"):
        node.create(seed="other")
    assert node.dump() == before
    node.create(seed="other", driver_version="550.1", options=["--force"])
    assert node.gpu(0)["uuid"] != before["gpus"][0]["uuid"]
    assert (access_files(node), caps_nodes(node)) == ({}, {1, 2})
    assert {path.name for path in (node.root / "usr/lib64").glob("*.so.*.*")} == {
        "libcuda.so.550.1",
        "libnvidia-ml.so.550.1",
    }


def test_keep_leaves_a_node_as_it_is_and_makes_a_missing_one(node: Simulator, tmp_path: Path) -> None:
    """What an init container that runs at each start of a pod needs."""
    before = node.dump()
    node.create(seed="other", options=["--keep"])
    assert node.dump()["gpus"] == before["gpus"]
    fresh = Simulator(tmp_path / "fresh").create(seed="other", options=["--keep", "--no-devices"])
    assert len(fresh.dump()["gpus"]) == 1


def test_a_node_that_is_kept(node: Simulator) -> None:
    """What an init container does at each start of its pod."""
    with node.nvml() as nvml:
        cut(nvml)
    before = node.dump()
    node.create(gpus=1, seed="other", options=["--keep"])
    assert node.dump() == before


def test_a_reboot_of_the_machine_reboots_a_node_that_is_kept(node: Simulator) -> None:
    with node.nvml() as nvml:
        cut(nvml)
    before = node.dump()
    node.set(host_boot_id="another boot")
    node.create(options=["--keep"])
    after = node.dump()
    assert (node.layout(0), access_files(node)) == ([], {})
    assert after["boot_id"] != before["boot_id"]
    assert [gpu["uuid"] for gpu in after["gpus"]] == [gpu["uuid"] for gpu in before["gpus"]]
    node.create(options=["--keep"])
    assert node.dump()["boot_id"] == after["boot_id"]


def test_a_state_of_another_build_is_not_kept(node: Simulator) -> None:
    with (node.directory / "state").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 4)
    with pytest.raises(SimulatorError):
        node.dump()
    node.create(options=["--keep"])
    assert len(node.dump()["gpus"]) == 1


def test_a_node_is_complete_or_not_there(tmp_path: Path) -> None:
    """An init that fails, or is killed, half-way leaves no state, so that the next one begins again."""
    node = Simulator(tmp_path / "node")
    (tmp_path / "node" / "root").mkdir(parents=True)
    (tmp_path / "node" / "root" / "proc").write_text("in the way")
    with pytest.raises(SimulatorError, match="root/proc"):
        node.create(options=["--keep"])
    assert not (node.directory / "state").exists()
    (tmp_path / "node" / "root" / "proc").unlink()
    node.create(options=["--keep"])
    assert (node.root / "proc/driver/nvidia/version").exists()


def elsewhere(node: Simulator, place: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script where only the driver root stands at `place`, as in a container that mounts it, and untold."""
    place.mkdir(exist_ok=True)
    environment = {"PATH": f"{place}/usr/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{place}/usr/lib64"}
    inside = f'mount --bind "$0" "$1" && mount -t tmpfs none "$2" && {script}'
    command = ["unshare", "-m", "sh", "-ec", inside, node.root, place, node.directory]
    return subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=False
    )


def test_the_driver_root_alone_is_the_node(node: Simulator, tmp_path: Path) -> None:
    """What programs mount that bring the driver into their own container: the root, and nothing above it."""
    done = elsewhere(node, tmp_path / "driver-root", "nvidia-smi mig -i 0 -cgi 19 -C && nvidia-smi -L")
    assert done.returncode == 0, done.stdout + done.stderr
    (instance,) = node.gpu(0)["gpu_instances"]
    assert instance["compute_instances"][0]["uuid"] in done.stdout
    assert node.gpu(1)["uuid"] in done.stdout, "all cards are seen: it is a root, no injected device"
    assert set(access_files(node)) == {"gpu0/mig/gi13", "gpu0/mig/gi13/ci0"}
    python = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    done = elsewhere(node, tmp_path / "driver-root", f"{sys.executable} -c '{python}'")
    assert done.stdout.strip() == "2", done.stderr


@pytest.mark.parametrize("options", [["--force"], ["--keep"]])
def test_a_driver_root_belongs_to_the_node_that_is_there_now(
    node: Simulator, tmp_path: Path, options: list[str]
) -> None:
    if options == ["--keep"]:
        (node.root / "run/gpusim/state").unlink()
    node.create(gpus=1, seed="other", options=options)
    uuids = [gpu["uuid"] for gpu in node.dump()["gpus"]]
    listed = elsewhere(node, tmp_path / "driver-root", "nvidia-smi --query-gpu=uuid --format=csv,noheader")
    assert listed.stdout.split() == uuids


class Container:
    """A root folder with nothing but what a container runtime would put into it."""

    def __init__(self, folder: Path, node: Simulator, state: str = "run/gpusim/state") -> None:
        self.folder = folder
        for name in ("dev/nvidia-caps", "usr/bin", "usr/lib64"):
            (folder / name).mkdir(parents=True)
        # A bind mount of the node's folder, for which a hard link to its only shared file stands here.
        (folder / state).parent.mkdir(parents=True)
        (folder / state).hardlink_to(node.directory / "state")
        (folder / "usr/bin/nvidia-smi").hardlink_to(node.nvidia_smi_path)

    def inject_library(self, node: Simulator) -> None:
        library = node.root / "usr/lib64/libnvidia-ml.so.580.65.06"
        (self.folder / "usr/lib64" / library.name).hardlink_to(library)

    def inject(self, name: str, major: int, minor: int) -> None:
        os.mknod(self.folder / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))

    def smi(self, *words: str, **environment: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            ["/usr/bin/nvidia-smi", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.chroot(self.folder),
        )
        return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("run/gpusim/state", id="brought-by-the-admin"),
        pytest.param("run/nvidia-persistenced/socket", id="brought-by-the-vendors-toolkit"),
    ],
)
def test_a_container_sees_exactly_what_was_injected(node: Simulator, tmp_path: Path, place: str) -> None:
    with node.nvml() as nvml:
        cut(nvml)
        cut(nvml)
    state = node.dump()
    first = next(i for i in state["gpus"][0]["gpu_instances"] if i["id"] == 13)
    mig_uuid = first["compute_instances"][0]["uuid"]
    container = Container(tmp_path / "container", node, place)
    assert container.smi("-L")[0] == 12, "no library, no answer"
    container.inject_library(node)
    assert container.smi("-L") == (0, [])

    container.inject("nvidia1", 195, 1)
    (line,) = container.smi("-L")[1]
    assert line.startswith("GPU 0:"), "the only card that is seen is the first"
    assert state["gpus"][1]["uuid"] in line

    container.inject("nvidia0", 195, 0)
    assert len(container.smi("-L")[1]) == 2, (
        "the card of a slice shows; a slice without its capabilities does not"
    )
    container.inject("nvidia-caps/nvidia-cap120", 234, 120)
    assert len(container.smi("-L")[1]) == 2
    container.inject("nvidia-caps/nvidia-cap121", 234, 121)
    lines = container.smi("-L")[1]
    assert len(lines) == 3
    assert mig_uuid in lines[1]
    assert first["compute_instances"][0]["mig_index"] == 1
    assert "Device  0:" in lines[1], "a container counts its own"


@pytest.mark.parametrize("numbers", [(1, 0), (195, 3)], ids=["major", "minor"])
def test_a_container_with_the_wrong_node_sees_nothing(
    node: Simulator, tmp_path: Path, numbers: tuple[int, int]
) -> None:
    container = Container(tmp_path / "container", node)
    container.inject_library(node)
    container.inject("nvidia0", *numbers)
    assert container.smi("-L") == (0, [])


def test_a_program_that_is_told_where_to_look_sees_every_card(node: Simulator, tmp_path: Path) -> None:
    """The agent itself runs in a container too; for it the variable names the place."""
    container = Container(tmp_path / "container", node)
    container.inject_library(node)
    assert len(container.smi("-L", GPUSIM_DIR="/run/gpusim")[1]) == 2
    assert container.smi("-L", GPUSIM_DIR="/run/gpusim", GPUSIM_VISIBLE="devices")[1] == []
    assert len(container.smi("-L", GPUSIM_VISIBLE="all")[1]) == 2


def test_a_container_without_the_state_has_no_driver(node: Simulator, tmp_path: Path) -> None:
    container = Container(tmp_path / "container", node)
    container.inject_library(node)
    (container.folder / "run/gpusim/state").unlink()
    assert container.smi("-L")[0] == 9
