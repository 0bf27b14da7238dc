"""The lazy import against the installed kubernetes_asyncio: same names, same classes, a fraction of the modules."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpupolicy.adapters.kube import lazyimport

SPEC = importlib.util.find_spec("kubernetes_asyncio")
ROOT = Path(next(iter(SPEC.submodule_search_locations)))
SOURCE_ROOT = Path(__file__).resolve().parents[4] / "operator"


def exported_names(package: str) -> list[tuple[str, str]]:
    """Return (module, name) of every `from module import name` in a package's own __init__ file."""
    tree = ast.parse(ROOT.joinpath(*package.split(".")[1:], "__init__.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    return [
        (node.module, alias.name)
        for node in imports
        for alias in node.names
        if node.module.startswith("kubernetes_asyncio")
    ]


def fresh(program: str) -> object:
    """Run a program in a new interpreter and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCE_ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_installed_layout_is_the_expected_one():
    assert lazyimport.layout_problem() is None


@pytest.mark.parametrize("package", ["kubernetes_asyncio.client.models", "kubernetes_asyncio.client.api"])
def test_every_generated_class_is_found_by_its_name(package):
    names = exported_names(package)
    assert len(names) > 50
    assert [(module, name) for module, name in names if lazyimport.module_of(package, name) != module] == []


@pytest.mark.parametrize("package", ["kubernetes_asyncio.client", "kubernetes_asyncio.config"])
def test_every_name_of_the_front_packages_is_found(package):
    names = exported_names(package)
    assert len(names) > 5
    assert [(module, name) for module, name in names if lazyimport.module_of(package, name) != module] == []


def test_few_modules_are_loaded_and_classes_are_the_librarys_own():
    found = fresh("""
import json, sys
import gpupolicy.adapters.kube
from kubernetes_asyncio.client import ApiClient, Configuration, V1ObjectMeta, ResourceV1Api
from kubernetes_asyncio import config, client
from kubernetes_asyncio.client.models.v1_owner_reference import V1OwnerReference
import kubernetes_asyncio.client.models
from kubernetes_asyncio.client import rest
assert client.V1OwnerReference is V1OwnerReference is kubernetes_asyncio.client.models.V1OwnerReference
assert config.load_kube_config.__module__ == "kubernetes_asyncio.config.kube_config"
loaded = [name for name in sys.modules if name.startswith("kubernetes_asyncio")]
print(json.dumps({"loaded": len(loaded), "version": kubernetes_asyncio.__version__,
                  "modules": [c.__module__ for c in (ApiClient, V1ObjectMeta, ResourceV1Api)]}))
""")
    assert found["loaded"] < 40
    assert found["version"].startswith(lazyimport.SUPPORTED_VERSION)
    assert found["modules"] == [
        "kubernetes_asyncio.client.api_client",
        "kubernetes_asyncio.client.models.v1_object_meta",
        "kubernetes_asyncio.client.api.resource_v1_api",
    ]


def test_responses_are_still_decoded_into_models():
    """ApiClient looks models up by name in the package that is lazy here."""
    decoded = fresh("""
import asyncio, json, types
import gpupolicy.adapters.kube
from kubernetes_asyncio.client import ApiClient
async def main():
    async with ApiClient() as api:
        body = json.dumps({"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {"selectors": []}})
        got = api.deserialize(types.SimpleNamespace(data=body), "V1DeviceClass")
        return [type(got).__name__, got.metadata.name, got.metadata.labels]
print(json.dumps(asyncio.run(main())))
""")
    assert decoded == ["V1DeviceClass", "x", {"a": "b"}]


def test_a_missing_name_is_an_attribute_error_and_an_unknown_submodule_an_import_error():
    assert fresh("""
import json
import gpupolicy.adapters.kube
import kubernetes_asyncio.client
problems = []
for name in ("V1NoSuchThing", "nosuchmodule", "__nosuchdunder__"):
    try:
        getattr(kubernetes_asyncio.client, name)
    except AttributeError as error:
        problems.append(name in str(error))
try:
    import kubernetes_asyncio.nosuchmodule
except ModuleNotFoundError:
    problems.append(True)
print(json.dumps(problems))
""") == [True, True, True, True]


def test_kopf_finds_what_it_wants_without_the_rest():
    """Kopf imports two models when the library is installed, which would load all of them."""
    wanted, loaded = fresh("""
import json, sys
import gpupolicy.adapters.kube
import kopf
models = [f"kubernetes_asyncio.client.models.{name}" for name in ("v1_object_meta", "v1_owner_reference")]
print(json.dumps([[name in sys.modules for name in models],
                  sum(name.startswith("kubernetes_asyncio") for name in sys.modules)]))
""")
    assert wanted == [True, True]
    assert loaded < 40


def test_a_library_that_was_imported_before_is_left_alone():
    assert fresh("""
import json
import kubernetes_asyncio
from gpupolicy.adapters.kube import lazyimport
print(json.dumps([lazyimport.install(), kubernetes_asyncio.client.V1ObjectMeta.__name__]))
""") == [False, "V1ObjectMeta"]


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        pytest.param("lazyimport.SUPPORTED_VERSION = '35.'", "is not 35.", id="another-version"),
        pytest.param(
            "lazyimport._EXPECTED_FILES = ('client/x.py',)", "lacks client/x.py", id="another-layout"
        ),
        pytest.param("lazyimport.LIBRARY = 'no_such_library'", "is not installed", id="not-installed"),
    ],
)
def test_an_unexpected_layout_falls_back_to_the_plain_import(break_it, complaint):
    found = fresh(f"""
import json, sys
sys.modules["gpupolicy.adapters.kube"] = type(sys)("gpupolicy.adapters.kube")
import importlib.util, pathlib, gpupolicy.adapters
path = pathlib.Path(gpupolicy.adapters.__file__).parent / "kube" / "lazyimport.py"
spec = importlib.util.spec_from_file_location("lazyimport", path)
lazyimport = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lazyimport)
{break_it}
installed = lazyimport.install()
from kubernetes_asyncio.client import V1ObjectMeta
loaded = sum(name.startswith("kubernetes_asyncio") for name in sys.modules)
print(json.dumps([lazyimport.layout_problem(), installed, loaded]))
""")
    problem, installed, loaded = found
    assert complaint in problem
    assert installed is False
    assert loaded > 800


def test_installing_twice_changes_nothing():
    assert fresh("""
import json, sys
from gpupolicy.adapters.kube import lazyimport
first = sys.modules["kubernetes_asyncio"]
print(json.dumps([lazyimport.install(), sys.modules["kubernetes_asyncio"] is first]))
""") == [True, True]
