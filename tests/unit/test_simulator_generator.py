"""The generator of the simulator's tables: what counts as a write, which names are versions of one function."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.paths import ROOT

SIMULATOR = ROOT / "simulator"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulator_generate", SIMULATOR / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SIMULATOR / "data/gpus.json").read_text())
    return loaded


@pytest.mark.parametrize(
    ("symbol", "writes"),
    [
        ("nvmlDeviceSetMigMode", True),
        ("nvmlDeviceCreateGpuInstance", True),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", True),
        ("nvmlGpuInstanceCreateComputeInstance", True),
        ("nvmlGpuInstanceDestroy", True),
        ("nvmlComputeInstanceDestroy", True),
        ("nvmlDeviceSetMemoryLimits_v1", True),
        ("nvmlDeviceResetGpuLockedClocks", True),
        ("nvmlDeviceRemoveGpu_v2", True),
        ("nvmlDeviceClearEccErrorCounts", True),
        ("nvmlDeviceGetMigMode", False),
        ("nvmlDeviceGetMemoryInfo_v2", False),
        ("nvmlInit_v2", False),
        ("nvmlShutdown", False),
        ("nvmlEventSetCreate", False),
        ("nvmlEventSetFree", False),
        ("nvmlSystemEventSetCreate", False),
        ("nvmlDeviceRegisterEvents", False),
        ("nvmlDeviceGetPowerManagementLimit", False),
    ],
)
def test_what_counts_as_a_write(generate: ModuleType, symbol: str, writes: bool) -> None:
    assert symbol in generate.read_symbols()
    assert generate.is_write(symbol) is writes


def test_nothing_that_reads_is_a_write(generate: ModuleType) -> None:
    writes = [symbol for symbol in generate.read_symbols() if generate.is_write(symbol)]
    assert [symbol for symbol in writes if re.search(r"Get[A-Z]", symbol)] == []
    assert len(writes) > 60


def families(source: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r'\{"(\S+)", (\d+), \d\}', source)}


def test_versions_of_one_function_are_one_family(generate: ModuleType) -> None:
    names = [
        "nvmlDeviceGetCount",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetName",
        "nvmlInit",
        "nvmlInitWithFlags",
    ]
    _, source = generate.render_symbols(names)
    number = families(source)
    assert number["nvmlDeviceGetCount"] == number["nvmlDeviceGetCount_v2"]
    assert len({number[name] for name in names}) == 4


def test_stubs_cover_every_name_but_the_one_that_needs_no_driver(generate: ModuleType) -> None:
    symbols = generate.read_symbols()
    stubs = re.findall(r"^STUB\((\w+)\)$", generate.render_stubs(symbols), re.MULTILINE)
    assert stubs == [symbol for symbol in symbols if symbol != "nvmlErrorString"]
    assert symbols == sorted(set(symbols))


@pytest.mark.parametrize(
    ("model", "key", "slices", "expected"),
    [
        pytest.param("h100-80gb", "1g", 1, [(0, 1, 16, [0])], id="smallest"),
        pytest.param("h100-80gb", "1gx2", 1, [(0, 1, 16, [0]), (7, 1, 26, [0])], id="twice-the-memory"),
        pytest.param("a100-80gb", "1gx2", 1, [(0, 1, 14, [0])], id="twice-the-memory-before-hopper"),
        pytest.param(
            "h100-80gb",
            "3g",
            3,
            [(0, 1, 16, [0, 1, 2]), (1, 2, 32, [0]), (2, 3, 60, [0])],
            id="parts-are-multiples-and-the-whole-is-more",
        ),
    ],
)
def test_compute_profiles(
    generate: ModuleType, data: Mapping[str, Any], model: str, key: str, slices: int, *, expected: list[Any]
) -> None:
    (chosen,) = (entry for entry in data["models"] if entry["key"] == model)
    rows = generate.compute_profiles(data, chosen, key, slices)
    assert [(row[0], row[2], row[3], list(row[4:])) for row in rows] == expected


def test_every_model_fits_the_tables_of_the_library(data: Mapping[str, Any]) -> None:
    """The C structures have fixed room; a model that needs more must raise it there first."""
    header = (SIMULATOR / "src/tables.h").read_text()
    room = {name: int(value) for name, value in re.findall(r"#define (MAX_\w+) (\d+)", header)}
    for model in data["models"]:
        if "geometry" not in model:
            continue
        profiles = data["geometries"][model["geometry"]]["profiles"]
        assert len(profiles) <= room["MAX_PROFILES"]
        assert all(len(profile["starts"]) <= room["MAX_STARTS"] for profile in profiles)
        assert set(model["profiles"]) == {profile["key"] for profile in profiles}
    assert len(data["compute_placements"]["7"]) <= room["MAX_COMPUTE_PROFILES"]


def test_generated_files_are_the_same_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        subprocess.run([sys.executable, SIMULATOR / "generate.py", tmp_path / name], check=True)
    first, second = (
        {p.name: p.read_text() for p in (tmp_path / name).iterdir()} for name in ("first", "second")
    )
    assert first == second
    assert set(first) == {"tables.c", "symbols.h", "symbols.c", "stubs.c"}
