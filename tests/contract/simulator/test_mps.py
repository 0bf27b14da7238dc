"""The fake MPS control daemon: protocol, limits, crashes, and its traces on the card."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulator import Simulator


def ended(pid: int) -> bool:
    """Tell whether a process is gone, or waits only for a parent that is not this one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Daemon:
    """One control daemon with folders of its own."""

    def __init__(self, node: Simulator, folder: Path, devices: str | None) -> None:
        self.node = node
        self.pipes, self.logs = folder / "pipe", folder / "log"
        folder.mkdir()
        self.environment = node.environment() | {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
        }
        if devices is not None:
            self.environment["CUDA_VISIBLE_DEVICES"] = devices

    def run(self, *words: str, commands: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.node.mps_control_path, *words],
            input=commands,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self) -> None:
        done = self.run("-d")
        assert done.returncode == 0, done.stderr

    def say(self, command: str) -> list[str]:
        done = self.run(commands=command + "\n")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @property
    def pid(self) -> int:
        return int((self.pipes / "nvidia-cuda-mps-control.pid").read_text())

    def quit(self) -> None:
        """Send quit and wait until the daemon has removed its traces."""
        self.say("quit")
        while (self.pipes / "nvidia-cuda-mps-control.pid").exists():
            time.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path) -> Simulator:
    return Simulator(tmp_path / "node").create(gpus=2)


@pytest.fixture
def make_daemon(node: Simulator, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    daemons: list[Daemon] = []

    def make(name: str = "mps", devices: str | None = "0") -> Daemon:
        daemons.append(Daemon(node, tmp_path / name, devices))
        return daemons[-1]

    yield make
    for daemon in daemons:
        if daemon.run(commands="get_server_list\n").returncode == 0:
            daemon.quit()


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    started = make_daemon()
    started.start()
    return started


def test_without_a_daemon_commands_fail(make_daemon: Callable[..., Daemon]) -> None:
    done = make_daemon().run(commands="get_server_list\n")
    assert (done.returncode, "Cannot find MPS control daemon process" in done.stderr) == (1, True)


def test_a_second_daemon_in_the_same_folder_is_refused(daemon: Daemon) -> None:
    done = daemon.run("-d")
    assert (done.returncode, "already running" in done.stderr) == (1, True)


def test_quit_leaves_no_traces_on_card_or_disk(daemon: Daemon) -> None:
    daemon.say("start_server -uid 0")
    assert len(daemon.node.dump()["clients"]) == 1
    pid = daemon.pid
    daemon.quit()
    assert daemon.node.dump()["clients"] == []
    assert not (daemon.pipes / "control").exists()
    while not ended(pid):
        time.sleep(0.01)


def test_servers_take_the_defaults_of_their_start(daemon: Daemon) -> None:
    assert daemon.say("get_default_active_thread_percentage") == ["100.0"]
    daemon.say("set_default_active_thread_percentage 12")
    daemon.say("set_default_device_pinned_mem_limit 0 10G")
    daemon.say("start_server -uid 0")
    (server,) = daemon.say("get_server_list")
    daemon.say("set_default_active_thread_percentage 50")
    assert daemon.say(f"get_active_thread_percentage {server}") == ["12.0"]
    assert daemon.say(f"get_device_pinned_mem_limit {server} 0") == ["10G"]
    assert daemon.say("get_default_device_pinned_mem_limit 0") == ["10G"]
    daemon.say("start_server -uid 1000")
    assert len(daemon.say("get_server_list")) == 2


def test_defaults_are_lost_with_the_daemon(daemon: Daemon) -> None:
    daemon.say("set_default_active_thread_percentage 12")
    daemon.quit()
    daemon.start()
    assert daemon.say("get_default_active_thread_percentage") == ["100.0"]


def test_clients_get_what_the_server_allows_and_can_only_tighten(daemon: Daemon) -> None:
    daemon.say("set_default_active_thread_percentage 25")
    daemon.say("set_default_device_pinned_mem_limit 0 10G")
    (answer,) = daemon.say(f"gpusim_client {os.getpid()} 0 80")
    assert answer.split()[1:] == ["25.0", "0=10G"]
    (answer,) = daemon.say(f"gpusim_client {os.getppid()} 0 10")
    assert answer.split()[1] == "10.0"
    (server,) = daemon.say("get_server_list")
    assert daemon.say(f"get_client_list {server}") == [str(os.getpid()), str(os.getppid())]
    assert len(daemon.say("ps")) == 3
    daemon.say(f"terminate_client {server} {os.getpid()}")
    assert daemon.say("get_device_client_list") == [str(os.getppid())]


@pytest.mark.parametrize(("cuda", "most"), [("12.4", 48), ("13.1", 60)])
def test_the_number_of_clients(
    make_daemon: Callable[..., Daemon], node: Simulator, cuda: str, most: int
) -> None:
    major, minor = cuda.split(".")
    node.set(cuda_version=int(major) * 1000 + int(minor) * 10)
    daemon = make_daemon()
    daemon.start()
    commands = f"gpusim_client {os.getpid()} 0\n" * (most + 1)
    answers = daemon.run(commands=commands).stdout.splitlines()
    assert ["error" in answer for answer in answers] == [False] * most + [True]


def test_a_server_is_a_process_on_its_card(daemon: Daemon) -> None:
    daemon.say("start_server -uid 0")
    (client,) = daemon.node.dump()["clients"]
    assert (client["gpu"], client["name"]) == (0, "nvidia-cuda-mps-server")
    assert [str(client["pid"])] == daemon.say("get_server_list")


def test_one_daemon_per_mig_device(make_daemon: Callable[..., Daemon], node: Simulator) -> None:
    with node.nvml() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(1)
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        for _ in range(2):
            instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    uuids = [i["compute_instances"][0]["uuid"] for i in node.gpu(1)["gpu_instances"]]
    daemons = [make_daemon(f"mps{n}", uuid) for n, uuid in enumerate(uuids)]
    for daemon in daemons:
        daemon.start()
        daemon.say("start_server -uid 0")
    assert {(c["gpu"], c["gpu_instance"], c["compute_instance"]) for c in node.dump()["clients"]} == {
        (1, i["id"], 0) for i in node.gpu(1)["gpu_instances"]
    }
    commands = f"gpusim_client {os.getpid()} 0\n" * 21
    answers = daemons[0].run(commands=commands).stdout.splitlines()
    assert ["error" in answer for answer in answers] == [False] * (48 * 3 // 7) + [True]


@pytest.mark.parametrize("devices", ["7", "GPU-nobody", "MIG-nobody"])
def test_a_device_that_does_not_exist(make_daemon: Callable[..., Daemon], devices: str) -> None:
    daemon = make_daemon(devices=devices)
    daemon.start()
    assert daemon.say("start_server -uid 0") == ["Failed to start server"]
    assert daemon.say("get_server_list") == []
    assert daemon.node.dump()["clients"] == []
    assert "does not exist" in (daemon.logs / "control.log").read_text()


def test_a_killed_server_takes_its_clients_along(daemon: Daemon) -> None:
    daemon.say(f"gpusim_client {os.getpid()} 0")
    (server,) = daemon.say("get_server_list")
    os.kill(int(server), signal.SIGKILL)
    while daemon.say("get_server_list"):
        time.sleep(0.01)
    assert daemon.say("get_device_client_list") == []
    assert daemon.node.dump()["clients"] == []


def test_a_killed_daemon_leaves_stale_files_and_can_be_replaced(daemon: Daemon) -> None:
    daemon.say("start_server -uid 0")
    os.kill(daemon.pid, signal.SIGKILL)
    while daemon.run(commands="get_server_list\n").returncode == 0:
        time.sleep(0.01)
    assert (daemon.pipes / "control").exists()
    assert (daemon.pipes / "nvidia-cuda-mps-control.pid").exists()
    daemon.start()
    assert daemon.say("get_server_list") == []
    while daemon.node.dump()["clients"]:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("set_default_active_thread_percentage 0", "Invalid active thread percentage"),
        ("set_default_active_thread_percentage 101", "Invalid active thread percentage"),
        ("set_default_active_thread_percentage half", "Invalid active thread percentage"),
        ("set_default_device_pinned_mem_limit 0 10", "Invalid pinned memory limit"),
        ("set_default_device_pinned_mem_limit 0 0G", "Invalid pinned memory limit"),
        ("set_default_device_pinned_mem_limit 0", "Invalid pinned memory limit"),
        ("get_server_status 1", "Server 1 not found"),
        ("dance", "Unrecognized command: dance"),
    ],
)
def test_impossible_commands(daemon: Daemon, command: str, answer: str) -> None:
    assert daemon.say(command) == [answer]


def test_the_device_of_a_limit_is_not_checked(daemon: Daemon) -> None:
    """What is not there when a server starts is ignored then."""
    for device in ("9", "GPU-00000000-0000-0000-0000-000000000000"):
        assert daemon.say(f"set_default_device_pinned_mem_limit {device} 1G") == []
        assert daemon.say(f"get_default_device_pinned_mem_limit {device}") == ["1G"]
    (answer,) = daemon.say(f"gpusim_client {os.getpid()} 0")
    assert answer.split()[1:] == ["100.0"]


def test_a_limit_names_its_device_by_uuid_or_place(daemon: Daemon) -> None:
    """As documented: the names are not translated when asked for, and the last limit of a device holds."""
    uuid = daemon.node.gpu(0)["uuid"]
    assert daemon.say(f"set_default_device_pinned_mem_limit {uuid} 10G") == []
    assert daemon.say("get_default_device_pinned_mem_limit 0") == ["0G"]
    assert daemon.say("set_default_device_pinned_mem_limit 0 5G") == []
    assert daemon.say(f"get_default_device_pinned_mem_limit {uuid}") == ["10G"]
    (answer,) = daemon.say(f"gpusim_client {os.getpid()} 0")
    assert answer.split()[2:] == ["0=5G"]
    daemon.say(f"set_default_device_pinned_mem_limit {uuid} 7G")
    (answer,) = daemon.say(f"gpusim_client {os.getpid()} 1000")
    assert answer.split()[2:] == ["0=7G"]
    server = daemon.say("get_server_list")[-1]
    assert daemon.say(f"set_device_pinned_mem_limit {server} {uuid} 900M") == []
    assert daemon.say(f"get_device_pinned_mem_limit {server} 0") == ["900M"]
    assert daemon.say(f"set_device_pinned_mem_limit {server} GPU-no 1G") == ["Invalid pinned memory limit"]


def test_in_the_foreground_it_ends_on_sigterm(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    process = subprocess.Popen([daemon.node.mps_control_path, "-f"], env=daemon.environment)
    while not (daemon.pipes / "nvidia-cuda-mps-control.pid").exists():
        time.sleep(0.01)
    daemon.say("start_server -uid 0")
    process.terminate()
    assert process.wait() == 0
    assert daemon.node.dump()["clients"] == []
