"""The fake nvidia-smi: what an operator calls it for, on the same state as the library."""

import subprocess
from pathlib import Path

import pytest

from tests.simulator import Simulator


class Smi:
    """Runs the tool of a node."""

    def __init__(self, node: Simulator) -> None:
        self.node = node

    def __call__(self, *words: object) -> tuple[int, str]:
        command = [str(self.node.nvidia_smi_path), *map(str, words)]
        done = subprocess.run(
            command, env=self.node.environment(), capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    def lines(self, *words: object) -> list[str]:
        code, printed = self(*words)
        assert code == 0, printed
        return printed.splitlines()


@pytest.fixture
def node(tmp_path: Path) -> Simulator:
    return Simulator(tmp_path / "node").create(gpus=2)


@pytest.fixture
def smi(node: Simulator) -> Smi:
    return Smi(node)


def test_list_and_table(smi: Smi) -> None:
    gpus = smi.node.dump()["gpus"]
    assert smi.lines("-L") == [f"GPU {i}: {g['name']} (UUID: {g['uuid']})" for i, g in enumerate(gpus)]
    table = "\n".join(smi.lines())
    assert "Driver Version: 580.65.06" in table
    assert "CUDA Version: 13.0" in table
    assert all(gpu["pci_bus_id"] in table for gpu in gpus)


def test_queries(smi: Smi) -> None:
    smi.node.set(1, temperature_celsius=60, compute_mode=3)
    smi.node.add_client(1, 4711, memory_mib=100, name="trainer")
    uuid = smi.node.gpu(1)["uuid"]
    fields = "index,uuid,memory.total,memory.used,compute_mode,mig.mode.current,temperature.gpu,power.limit"
    header, row = smi.lines(f"--query-gpu={fields}", "--format=csv", "-i", uuid)
    assert header.split(", ")[2:4] == ["memory.total [MiB]", "memory.used [MiB]"]
    assert header.split(", ")[-2:] == ["temperature.gpu", "power.limit [W]"]
    assert row == f"1, {uuid}, 81559 MiB, 100 MiB, Exclusive_Process, Disabled, 60, 700.00 W"
    bare = smi.lines("--query-gpu=count,memory.total", "--format=csv,noheader,nounits")
    assert bare == ["2, 81559", "2, 81559"]
    apps = "--query-compute-apps=pid,gpu_uuid,process_name,used_memory"
    assert smi.lines(apps, "--format=csv,noheader") == [f"4711, {uuid}, trainer, 100 MiB"]


def test_what_parsers_of_the_output_ask_for(smi: Smi) -> None:
    """The queries of widely used Python packages and exporters, word for word."""
    smi.node.add_client(1, 4711, memory_mib=100, name="trainer")
    cards = (
        "index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,gpu_serial,"
        "display_active,display_mode,temperature.gpu"
    )
    rows = smi.lines(f"--query-gpu={cards}", "--format=csv,noheader,nounits")
    assert [row.split(", ")[0] for row in rows] == ["0", "1"]
    assert rows[0].split(", ")[-3:] == ["Disabled", "Disabled", "31"]
    processes = "pid,process_name,gpu_uuid,gpu_name,used_memory"
    gpu = smi.node.gpu(1)
    assert smi.lines(f"--query-compute-apps={processes}", "--format=csv,noheader,nounits") == [
        f"4711, trainer, {gpu['uuid']}, {gpu['name']}, 100"
    ]
    header, *rows = smi.lines(f"--query-compute-apps={processes}", "--format=csv")
    assert header == "pid, process_name, gpu_uuid, gpu_name, used_gpu_memory [MiB]"
    assert rows[0].endswith(", 100 MiB")


def test_a_field_that_is_not_simulated_is_not_available_and_a_wrong_one_is_an_error(smi: Smi) -> None:
    header, row, _ = smi.lines("--query-gpu=clocks.sm,pstate,fan.speed,pcie.link.gen.max", "--format=csv")
    assert header == "clocks.sm [MHz], pstate, fan.speed [%], pcie.link.gen.max"
    assert row == "[N/A], [N/A], [N/A], [N/A]"
    code, printed = smi("--query-gpu=index,dance", "--format=csv")
    assert (code, '"dance" is not a valid field' in printed) == (2, True)
    assert smi("--query-compute-apps=pid,dance", "--format=csv")[0] == 2


def test_the_fields_that_are_listed_can_be_queried(smi: Smi) -> None:
    listed = [line.strip('"') for line in smi.lines("--help-query-gpu") if line.startswith('"')]
    (row,) = smi.lines(f"--query-gpu={','.join(listed)}", "--format=csv,noheader", "-i", 1)
    values = dict(zip(listed, row.split(", "), strict=True))
    assert (values["pci.bus"], values["pci.domain"], values["index"]) == ("0x3B", "0x0000", "1")
    assert "[N/A]" not in row


def test_the_answer_can_go_to_a_file(smi: Smi, tmp_path: Path) -> None:
    assert smi.lines("--query-gpu=index", "--format=csv,noheader", "-f", tmp_path / "answer") == []
    assert (tmp_path / "answer").read_text() == "0\n1\n"


@pytest.mark.parametrize("words", [("topo", "-m"), ("pmon", "-c", 1), ("nvlink", "-s")])
def test_a_command_that_is_not_there_is_refused_and_not_taken_for_another(
    smi: Smi, words: tuple[object, ...]
) -> None:
    code, printed = smi(*words)
    assert (code, f"Invalid combination of input arguments: {words[0]}" in printed) == (2, True)


def test_versions(smi: Smi) -> None:
    assert "DRIVER version      : 580.65.06" in smi.lines("--version")


def test_a_value_that_cannot_be_had_is_not_available(smi: Smi) -> None:
    smi.node.add_fault("nvmlDeviceGetMemoryInfo", code=3, gpu=0, count=-1)
    assert smi.lines("--query-gpu=memory.total", "--format=csv,noheader") == ["[N/A]", "81559 MiB"]


def test_a_lost_card_hides_no_other(smi: Smi) -> None:
    smi.node.lose(0)
    lines = smi.lines("-L")
    assert "Unable to determine the device handle for GPU0: GPU is lost" in lines[0]
    assert smi.node.gpu(1)["uuid"] in lines[1]
    assert smi("-i", 0, "-c", "DEFAULT")[0] == 15


@pytest.mark.parametrize(
    ("words", "mode"),
    [(["EXCLUSIVE_PROCESS"], 3), (["exclusive_process"], 3), (["PROHIBITED"], 2), (["0"], 0)],
)
def test_compute_mode(smi: Smi, words: list[str], mode: int) -> None:
    smi.node.set("all", compute_mode=1)
    smi.lines("-i", smi.node.gpu(1)["uuid"], "-c", *words)
    assert [gpu["compute_mode"] for gpu in smi.node.dump()["gpus"]] == [1, mode]
    smi.node.set(1, mig_current=1, mig_pending=1)
    assert smi("-i", 1, "-c", "EXCLUSIVE_PROCESS")[0] == 3


def test_timeslices(smi: Smi) -> None:
    uuid = smi.node.gpu(1)["uuid"]
    smi.node.reset_counters()
    smi.lines("compute-policy", "-i", uuid, "--set-timeslice", 3)
    assert [gpu["timeslice"] for gpu in smi.node.dump()["gpus"]] == [0, 3]
    assert smi.lines("compute-policy", "--list") == [
        "GPU 00000000:1A:00.0: timeslice default",
        "GPU 00000000:3B:00.0: timeslice long",
    ]
    smi.lines("compute-policy", "-i", uuid, "--set-timeslice=default")
    assert smi.node.gpu(1)["timeslice"] == 0
    assert [(e["symbol"], e["gpu"], e["value"]) for e in smi.node.journal()] == [
        ("gpusim.setTimeslice", 1, 3),
        ("gpusim.setTimeslice", 1, 0),
    ]
    assert smi.node.writes() == 2


@pytest.mark.parametrize(
    ("properties", "code"),
    [({"architecture": 5}, 3), ({"mig_current": 1}, 3), ({"mig_current": 0}, 0)],
    ids=["before-turing", "in-mig-mode", "whole-card"],
)
def test_which_cards_have_timeslices(smi: Smi, properties: dict[str, int], code: int) -> None:
    smi.node.set(0, **properties)
    assert smi("compute-policy", "-i", 0, "--set-timeslice", 1)[0] == code


@pytest.mark.parametrize("value", ["4", "-1", "soon", ""])
def test_impossible_timeslices(smi: Smi, value: str) -> None:
    assert smi("compute-policy", "-i", 0, f"--set-timeslice={value}")[0] == 2
    assert smi.node.gpu(0)["timeslice"] == 0


def test_private_calls_can_fail_like_library_calls(smi: Smi) -> None:
    smi.node.add_fault("gpusim.setTimeslice", code=999, count=1)
    code, printed = smi("compute-policy", "-i", 0, "--set-timeslice", 1)
    assert (code, "Unknown Error" in printed) == (255, True)
    smi.node.add_fault("gpusim.setTimeslice", code=999, mode="after")
    assert smi("compute-policy", "-i", 0, "--set-timeslice", 1)[0] == 255
    assert smi.node.gpu(0)["timeslice"] == 1


def test_mig_from_the_command_line(smi: Smi) -> None:
    smi.lines("-i", 0, "-mig", 1)
    assert "7/7" in "\n".join(smi.lines("mig", "-lgip", "-i", 0))
    assert "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1" in smi.lines("mig", "-lgipp", "-i", 0)
    smi.lines("mig", "-i", 0, "-cgi", "19,3g.40gb", "-C")
    assert smi.node.layout(0) == [("3g.40gb", 0), ("1g.10gb", 6)]
    smi.lines("mig", "-i", 0, "-cgi", "14:4")
    assert ("2g.20gb", 4) in smi.node.layout(0)
    listing = "\n".join(smi.lines("mig", "-lgi"))
    assert all(text in listing for text in ("MIG 1g.10gb", "6:1", "MIG 2g.20gb", "4:2"))
    assert "MIG 3g.40gb" in "\n".join(smi.lines("mig", "-lci"))
    assert sum("MIG-" in line for line in smi.lines("-L")) == 2
    code, printed = smi("mig", "-i", 0, "-cgi", "9")
    assert (code, "Insufficient Resources" in printed) == (23, True)
    assert smi("mig", "-dgi", "-gi", 13)[0] == 19
    smi.lines("mig", "-dci", "-gi", 13)
    smi.lines("mig", "-dgi", "-gi", 13)
    assert ("1g.10gb", 6) not in smi.node.layout(0)
    smi.lines("mig", "-dci")
    smi.lines("mig", "-dgi")
    assert smi.node.layout(0) == []
    assert smi("mig", "-dgi")[0] == 6


@pytest.mark.parametrize("model", ["h100-80gb", "h100-80gb-pcie"])
def test_the_default_compute_instance_has_all_multiprocessors(tmp_path: Path, model: str) -> None:
    """As in public transcripts of both cards, in one of which the two profiles are of the same size."""
    smi = Smi(Simulator(tmp_path / "node").create(model=model))
    smi.lines("-i", 0, "-mig", 1)
    smi.lines("mig", "-i", 0, "-cgi", 15)
    rows = [line.split() for line in smi.lines("mig", "-lcip")]
    offered = [row[4:7] for row in rows if len(row) > 7 and row[3] == "MIG"]
    assert [(name, number) for name, number, _ in offered] == [("1g.20gb", "0"), ("1g.20gb", "7*")]
    assert {capacity for _, _, capacity in offered} == {"1/1"}
    smi.lines("mig", "-dgi")
    made = smi.lines("mig", "-i", 0, "-cgi", 15, "-C")
    assert "using profile MIG 1g.20gb (ID  7)" in made[-1]
    assert "MIG 1g.20gb" in smi.lines("-L")[1]


def test_a_pending_mode_is_a_warning(smi: Smi) -> None:
    smi.node.add_client(0, 4711)
    assert "Warning: MIG mode is in pending state" in smi.lines("-i", 0, "-mig", 1)[0]
    assert (smi.node.gpu(0)["mig_current"], smi.node.gpu(0)["mig_pending"]) == (0, 1)


def test_resets(smi: Smi) -> None:
    """Tools name several cards by bus id, in lower case, separated by commas."""
    smi.node.set("all", mig_pending=1)
    smi.lines("--gpu-reset", "-i", "00000000:1a:00.0,0000:3b:00.0")
    assert [gpu["mig_current"] for gpu in smi.node.dump()["gpus"]] == [1, 1]
    smi.node.add_client(0, 4711)
    code, printed = smi("-r", "-i", 0)
    assert (code, "In use by another client" in printed) == (19, True)
    smi.node.set(1, reset_unsupported=1)
    assert smi("-r", "-i", 1)[0] == 3
    smi.node.remove_client(4711)
    smi.node.lose(0)
    smi.lines("-r", "-i", 0)
    assert smi.node.gpu(0)["lost"] == 0, "a reset may bring a lost card back"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--frobnicate"], 2),
        (["-i", "9", "-c", "DEFAULT"], 6),
        (["-i", "GPU-nobody", "-L"], 0),
        (["-i", "0", "-c", "SHARED"], 2),
        (["--query-gpu=colour", "--format=csv"], 2),
        (["mig", "-i", "0"], 2),
        (["compute-policy"], 2),
        (["-r", "-i", "7"], 6),
    ],
    ids=str,
)
def test_impossible_arguments(smi: Smi, words: list[str], code: int) -> None:
    assert smi(*words)[0] == code


def test_no_driver(smi: Smi) -> None:
    smi.node.set(driver_loaded=0)
    code, printed = smi("-L")
    assert (code, "couldn't communicate with the NVIDIA driver" in printed) == (9, True)
