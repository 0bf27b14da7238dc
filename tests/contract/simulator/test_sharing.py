"""One node, many processes: what one does the others see, and none of them owns the state."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.contract.simulator.conftest import MakeNode
from tests.simulator import Simulator


def run_program(node: Simulator, body: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a Python program that has pynvml initialised on the node."""
    source = f"import os, sys, time\nfrom pynvml import *\nnvmlInit()\n{textwrap.dedent(body)}"
    return subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        env=node.environment(),
        capture_output=True,
        text=True,
        check=True,
    )


def test_instances_and_handles_outlive_the_process_that_made_them(node: Simulator, nvml: Any) -> None:
    printed = run_program(
        node,
        """
        gpu = nvmlDeviceGetHandleByIndex(0)
        nvmlDeviceSetMigMode(gpu, 1)
        instance = nvmlDeviceCreateGpuInstance(gpu, 9)
        print(cast(gpu, c_void_p).value, cast(instance, c_void_p).value)
        """,
    ).stdout
    gpu, instance = (int(word) for word in printed.split())
    info = nvml.nvmlGpuInstanceGetInfo(nvml.cast(instance, nvml.c_nvmlGpuInstance_t))
    assert (info.profileId, info.placement.start) == (9, 4)
    assert nvml.nvmlDeviceGetUUID(nvml.cast(gpu, nvml.c_nvmlDevice_t)) == node.gpu(0)["uuid"]


def test_handles_survive_a_second_initialisation(node: Simulator, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetUUID(handle) == uuid


def test_parallel_creations_never_overlap(make_node: MakeNode) -> None:
    node = make_node(per_gpu={0: {"mig_current": 1, "mig_pending": 1}})
    body = """
        gpu = nvmlDeviceGetHandleByIndex(0)
        made = refused = 0
        for attempt in range(300):
            try:
                instance = nvmlDeviceCreateGpuInstance(gpu, (19, 14, 9, 15)[(attempt + int(sys.argv[1])) % 4])
                made += 1
                nvmlGpuInstanceDestroy(instance)
            except NVMLError_InsufficientResources:
                refused += 1
        print(made, refused)
        """
    source = f"import sys\nfrom pynvml import *\nnvmlInit()\n{textwrap.dedent(body)}"
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", source, str(number)],
            env=node.environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    made = refused = 0
    for program in programs:
        printed, _ = program.communicate()
        assert program.returncode == 0
        first, second = map(int, printed.split())
        made, refused = made + first, refused + second
    assert made + refused == 1200
    assert node.layout(0) == []
    assert node.writes() == 1200 + made


def test_a_killed_process_leaves_the_lock_to_the_next(node: Simulator) -> None:
    """Programs are killed while they call; afterwards the state answers as ever."""
    source = "from pynvml import *\nnvmlInit()\nnvmlDeviceGetCount()\nprint(flush=True)\nwhile True: nvmlDeviceGetCount()"
    for _ in range(5):
        program = subprocess.Popen(
            [sys.executable, "-c", source], env=node.environment(), stdout=subprocess.PIPE, text=True
        )
        assert program.stdout
        program.stdout.readline()
        os.kill(program.pid, signal.SIGKILL)
        program.wait()
        program.stdout.close()
        assert node.dump()["calls"]["nvmlDeviceGetCount_v2"] > 0


def test_a_lock_whose_owner_died_is_taken_over(node: Simulator, nvml: Any, tmp_path: Path) -> None:
    """The owner dies with the lock in hand, which a kill at a random moment would hardly hit."""
    program = tmp_path / "owner"
    sources = Path(__file__).resolve().parents[3] / "simulator" / "src"
    generated = tmp_path / "generated"
    subprocess.run([sys.executable, sources.parent / "generate.py", generated], check=True)
    (tmp_path / "owner.c").write_text(
        '#include "state.h"\n#include <unistd.h>\n'
        "int main(int count, char **words) { struct state *state = state_map(words[1]);"
        " if (count > 2) return pthread_mutex_trylock(&state->lock); state_lock(state); _exit(0); }\n"
    )
    parts = [tmp_path / "owner.c", sources / "state.c", sources / "place_program.c", generated / "symbols.c"]
    subprocess.run(["gcc", f"-I{sources}", f"-I{generated}", "-pthread", "-o", program, *parts], check=True)
    subprocess.run([program, node.directory], check=True)
    assert nvml.nvmlDeviceGetCount() == 1
    assert node.dump()["gpus"]
    subprocess.run([program, node.directory, "probe"], check=True)


def test_events_reach_every_process(node: Simulator) -> None:
    body = """
        events = nvmlEventSetCreate()
        nvmlDeviceRegisterEvents(nvmlDeviceGetHandleByIndex(0), 8, events)
        print("ready", flush=True)
        print(nvmlEventSetWait_v2(events, 60000).eventData, flush=True)
        """
    source = f"from pynvml import *\nnvmlInit()\n{textwrap.dedent(body)}"
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", source], env=node.environment(), stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for program in programs:
        assert program.stdout
        assert program.stdout.readline() == "ready\n"
    node.xid(0, 94)
    assert [program.communicate()[0] for program in programs] == ["94\n"] * 3


@pytest.mark.parametrize("user", [65534])
def test_an_unprivileged_process_reads_and_may_not_write(node: Simulator, user: int, tmp_path: Path) -> None:
    """The temporary folder of a test is closed to others, so the node moves to one that is open."""
    program = """
        os.setuid(int(sys.argv[1]))
        gpu = nvmlDeviceGetHandleByIndex(0)
        print(nvmlDeviceGetName(gpu))
        try:
            nvmlDeviceSetMigMode(gpu, 1)
        except NVMLError as error:
            print(error.value)
        """
    printed = run_program(node, program, user).stdout.splitlines()
    assert printed == ["NVIDIA H100 80GB HBM3", "4"]


def test_the_library_really_unloads(node: Simulator) -> None:
    """Go programs unload and load it again at will: nothing may stay mapped and nothing may run afterwards."""
    body = """
        import ctypes
        nvmlShutdown()
        library = ctypes.CDLL(sys.argv[1])
        dlclose = ctypes.CDLL(None).dlclose
        dlclose.argtypes = [ctypes.c_void_p]
        del library
        import _ctypes
        for _ in range(3):
            handle = _ctypes.dlopen(sys.argv[2], 0)
            library = ctypes.CDLL(None, handle=handle)
            assert library.nvmlInit_v2() == 0
            assert "state" in open("/proc/self/maps").read()
            assert library.nvmlShutdown() == 0
            maps = open("/proc/self/maps").read()
            assert sys.argv[2] in maps and os.environ["GPUSIM_DIR"] + "/state" not in maps
            dlclose(handle)
            assert sys.argv[2] not in open("/proc/self/maps").read()
        print("unloaded")
        """
    copy = node.directory / "copy.so"
    copy.write_bytes((node.programs / "libnvidia-ml.so.1").read_bytes())
    assert run_program(node, body, node.programs / "libnvidia-ml.so.1", copy).stdout == "unloaded\n"
