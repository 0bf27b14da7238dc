"""The binary interface, against the vendor's own header: every name, size, offset and constant."""

import json
import re
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tests.simulator import SOURCES, build

OWN_HEADER = SOURCES / "src" / "abi.h"


def vendor_header() -> Path:
    """Return nvml.h of the `nvidia-nvml-dev` package, which belongs to the test group."""
    package = distribution("nvidia-nvml-dev")
    files = [f for f in package.files or [] if f.name == "nvml.h"]
    return Path(str(package.locate_file(files[0])))


def declared_names(header: Path) -> set[str]:
    """Return every function that a header declares, superseded ones included."""
    text = subprocess.run(
        ["gcc", "-E", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", header], capture_output=True, text=True, check=True
    ).stdout
    return set(re.findall(r"\b(nvml[A-Z]\w*)\s*\(", text))


def exported_names() -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", build() / "libnvidia-ml.so.1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def structures() -> dict[str, list[str]]:
    """Return the structures of our header with their members."""
    found = {}
    text = OWN_HEADER.read_text()
    for body, name in re.findall(r"typedef (?:struct|union) \{(.*?)\} (\w+);", text, re.DOTALL):
        found[name] = re.findall(r"(\w+)(?:\[\w+\])?;", body)
    return found


def constants() -> list[str]:
    text = OWN_HEADER.read_text()
    enumerated = re.findall(r"^\s+(NVML_\w+) = ", text, re.MULTILINE)
    defined = re.findall(r"^#define ((?:NVML|nvml)\w+) ", text, re.MULTILINE)
    return enumerated + defined


def measure(header: Path, scratch: Path) -> dict[str, int]:
    """Compile a program with one of the headers and let it print everything comparable."""
    lines = [
        f'#include "{header}"',
        "#include <stddef.h>",
        "#include <stdio.h>",
        "int main(void) {",
        'printf("{");',
    ]
    for name, members in structures().items():
        lines.append(f'printf("\\"{name}\\": %zu, ", sizeof({name}));')
        lines += [
            f'printf("\\"{name}.{m}\\": %zu, \\"sizeof {name}.{m}\\": %zu, ", offsetof({name}, {m}), sizeof((({name} *)0)->{m}));'
            for m in members
        ]
    lines += [f'printf("\\"{name}\\": %lld, ", (long long)({name}));' for name in constants()]
    lines += ['printf("\\"pointer\\": %zu}", sizeof(nvmlDevice_t));', "}"]
    source = scratch / "measure.c"
    source.write_text("\n".join(lines))
    program = scratch / "measure"
    subprocess.run(["gcc", "-w", "-o", program, source], check=True)
    measured: dict[str, int] = json.loads(subprocess.run([program], capture_output=True, check=True).stdout)
    return measured


def test_every_layout_and_constant_is_the_vendors(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours = measure(OWN_HEADER, tmp_path / "ours")
    assert ours == measure(vendor_header(), tmp_path / "theirs")
    assert ours["nvmlGpuInstanceProfileInfo_v2_t"] == 152
    assert len(ours) > 250


def test_every_name_of_the_header_is_exported_and_no_other() -> None:
    """A Go program dies at the first call of a missing name; any name beyond these could shadow a program's own."""
    assert exported_names() == declared_names(vendor_header())


def test_the_library_has_its_soname_and_needs_nothing_but_libc() -> None:
    dynamic = subprocess.run(
        ["readelf", "-d", build() / "libnvidia-ml.so.1"], capture_output=True, text=True, check=True
    ).stdout
    assert "Library soname: [libnvidia-ml.so.1]" in dynamic
    assert re.findall(r"Shared library: \[(.*?)\]", dynamic) == ["libc.so.6"]


def test_loading_the_library_has_no_effect() -> None:
    """It is preloaded into shells: nothing may run at load or unload but what every shared object has."""
    sections = subprocess.run(
        ["readelf", "-SW", build() / "libnvidia-ml.so.1"], capture_output=True, text=True, check=True
    ).stdout
    sizes = dict(re.findall(r"\.(init_array|fini_array|ctors|dtors)\s+\S+\s+\S+\s+\S+\s+(\S+)", sections))
    assert {name: int(size, 16) for name, size in sizes.items()} == {"init_array": 8, "fini_array": 8}


@pytest.mark.parametrize("program", ["gpusim", "nvidia-smi", "nvidia-cuda-mps-control"])
def test_programs_are_static(program: str) -> None:
    """They must run in a container that holds nothing but a static shell."""
    headers = subprocess.run(
        ["readelf", "-lW", build() / program], capture_output=True, text=True, check=True
    ).stdout
    assert "INTERP" not in headers


def test_structures_of_an_unknown_version_are_refused(nvml: Any, gpu: Any) -> None:
    """The word says version and size; a client of another time must get an error, not a wrong layout."""
    library = nvml.nvmlLib
    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    mismatch = nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    for structure, call in [
        (nvml.c_nvmlMemory_v2_t(), lambda s: library.nvmlDeviceGetMemoryInfo_v2(gpu, s)),
        (
            nvml.c_nvmlGpuInstanceProfileInfo_v2_t(),
            lambda s: library.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 0, s),
        ),
        (
            nvml.c_nvmlComputeInstanceProfileInfo_v2_t(),
            lambda s: library.nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 0, 0, s),
        ),
    ]:
        size = nvml.sizeof(structure)
        answers = {}
        for version in (0, 2 << 24 | size, 9 << 24 | size, 2 << 24 | (size + 8)):
            structure.version = version
            answers[version] = call(nvml.byref(structure))
        assert list(answers.values()) == [mismatch, 0, mismatch, mismatch]


def test_the_third_version_of_profile_information(nvml: Any, gpu: Any) -> None:
    """It has the size of the second and another layout; pynvml does not know it."""
    buffer = (nvml.c_uint * 38)()
    buffer[0] = 3 << 24 | 152
    assert nvml.nvmlLib.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 2, nvml.byref(buffer)) == 0
    assert list(buffer[1:5]) == [9, 3, 2, 60]
    assert bytes(buffer)[48:].startswith(b"MIG 3g.40gb\0")
