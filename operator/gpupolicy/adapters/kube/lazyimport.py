"""Keeps `import kubernetes_asyncio` from loading its 1,200 generated modules (34 MiB and 0.2 s of CPU per process).

Theory. The library's packages import every model and every API class in their `__init__` files, and Python runs
those files before any submodule. So, before anything imports the library, this module registers package objects
of its own under the names of those packages, with the real search paths and a module `__getattr__` (PEP 562) that
imports the one file that defines a class when the class is asked for. File names follow from class names.

This depends on how the library is laid out. `layout_problem` checks that first; when the check fails nothing is
registered, and the library's own, slower import serves. Call `install` before `import kopf`, which imports the
library eagerly.
"""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

LIBRARY: Final = "kubernetes_asyncio"
SUPPORTED_VERSION: Final = "36.1."

_CLIENT: Final = f"{LIBRARY}.client"
_CONFIG_HOMES: Final = {
    "ConfigException": "config_exception",
    "load_incluster_config": "incluster_config",
}
_CLIENT_HOMES: Final = {
    "ApiClient": "api_client",
    "Configuration": "configuration",
    "ApiException": "exceptions",
    "ApiAttributeError": "exceptions",
    "ApiKeyError": "exceptions",
    "ApiTypeError": "exceptions",
    "ApiValueError": "exceptions",
    "OpenApiException": "exceptions",
}
_EXPECTED_FILES: Final = (
    "client/api_client.py",
    "client/configuration.py",
    "client/exceptions.py",
    "client/rest.py",
    "client/models/v1_object_meta.py",
    "client/models/v1_owner_reference.py",
    "client/api/resource_v1_api.py",
    "config/config_exception.py",
    "config/incluster_config.py",
    "config/kube_config.py",
)
_UPPER_AFTER_ANY: Final = re.compile(r"(.)([A-Z][a-z]+)")
_UPPER_AFTER_LOWER: Final = re.compile(r"([a-z0-9])([A-Z])")


def file_stem(class_name: str) -> str:
    """Return the name of the file (without suffix) that defines a generated class: V1ObjectMeta, v1_object_meta."""
    return _UPPER_AFTER_LOWER.sub(r"\1_\2", _UPPER_AFTER_ANY.sub(r"\1_\2", class_name)).lower()


def module_of(package: str, name: str) -> str | None:
    """Return the full name of the module that defines a public name of one of the packages, if there can be one."""
    stem = file_stem(name)
    if package == f"{LIBRARY}.config":
        return f"{package}.{_CONFIG_HOMES.get(name, 'kube_config')}"
    if package == f"{_CLIENT}.api":
        return f"{package}.{stem}"
    if package == f"{_CLIENT}.models":
        return f"{package}.{stem}"
    if package == _CLIENT:
        if name in _CLIENT_HOMES:
            return f"{_CLIENT}.{_CLIENT_HOMES[name]}"
        return f"{_CLIENT}.{'api' if name.endswith('Api') else 'models'}.{stem}"
    return None


def layout_problem() -> str | None:
    """Say why the installed library is not laid out as expected; None when it is."""
    spec = importlib.util.find_spec(LIBRARY)
    if spec is None or not spec.submodule_search_locations:
        return f"{LIBRARY} is not installed"
    version = importlib.metadata.version(LIBRARY)
    if not version.startswith(SUPPORTED_VERSION):
        return f"{LIBRARY} {version} is not {SUPPORTED_VERSION}x"
    root = Path(next(iter(spec.submodule_search_locations)))
    missing = [name for name in _EXPECTED_FILES if not (root / name).is_file()]
    return f"{LIBRARY} {version} lacks {', '.join(missing)}" if missing else None


def install() -> bool:
    """Register the lazy packages; return whether they serve from now on.

    False means that the library was imported before, or is laid out unexpectedly: everything still works, with
    more memory. Calling it again changes nothing.
    """
    if LIBRARY in sys.modules:
        return getattr(sys.modules[LIBRARY], "__lazy__", False)
    if layout_problem() is not None:
        return False
    spec = importlib.util.find_spec(LIBRARY)
    if spec is None or spec.submodule_search_locations is None:
        return False
    root = Path(next(iter(spec.submodule_search_locations)))
    version = importlib.metadata.version(LIBRARY)
    for name in (LIBRARY, _CLIENT, f"{_CLIENT}.models", f"{_CLIENT}.api", f"{LIBRARY}.config"):
        folder = root.joinpath(*name.split(".")[1:])
        package = _package(name, folder, version)
        sys.modules[name] = package
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)
    return True


def _package(name: str, folder: Path, version: str) -> ModuleType:
    package = ModuleType(name)
    spec = importlib.machinery.ModuleSpec(name, None, origin=str(folder / "__init__.py"), is_package=True)
    spec.submodule_search_locations = [str(folder)]
    package.__spec__ = spec
    package.__path__ = [str(folder)]
    package.__package__ = name
    package.__dict__["__version__"] = version
    package.__dict__["__lazy__"] = True
    package.__dict__["__getattr__"] = _resolver(name)
    return package


def _resolver(package: str) -> Callable[[str], Any]:
    def resolve(name: str) -> Any:
        # The import system probes packages for dunder names; none of ours is to be had from a file.
        if name.startswith("__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        for target, attribute in ((f"{package}.{name}", None), (module_of(package, name), name)):
            if target is None or importlib.util.find_spec(target) is None:
                continue
            module = importlib.import_module(target)
            value = module if attribute is None else getattr(module, attribute)
            setattr(sys.modules[package], name, value)
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return resolve
