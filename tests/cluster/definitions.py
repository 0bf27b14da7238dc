"""Kinds of a test's own: CRDs installed, and known to everybody who asks the API server."""

from __future__ import annotations

import functools
import http
import json
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import KubectlError
from tests.cluster.process import poll_until


def install_definitions(cluster: Cluster, path: Path) -> None:
    """Install the CRDs of a file or folder, and wait until their kinds can be used.

    `Established` is only the beginning: the storage, discovery, what kubectl makes of discovery, and the schemas of
    `kubectl explain` follow, each by a loop of its own.
    """
    cluster.kubectl("apply", "--server-side", "-f", str(path))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=90s", "-f", str(path))
    for item in json.loads(cluster.kubectl("get", "-f", str(path), "-o", "json"))["items"]:
        group, plural = item["spec"]["group"], item["spec"]["names"]["plural"]
        for version in (entry["name"] for entry in item["spec"]["versions"] if entry["served"]):
            poll_until(
                functools.partial(_is_known, cluster, group, version, plural),
                timeout_seconds=120.0,
                what=f"{plural}.{group} served, discovered and described",
                interval_seconds=0.2,
            )


def _is_known(cluster: Cluster, group: str, version: str, plural: str) -> bool:
    base, found = f"apis/{group}/{version}", {}
    for path in (f"/{base}/{plural}", f"/{base}", "/openapi/v3", f"/openapi/v3/{base}"):
        answer = cluster.control_plane.admin.call("GET", path)
        if answer.status != http.HTTPStatus.OK:
            return False
        # The index of schemas calls itself plain text.
        found[path] = answer.body if isinstance(answer.body, dict) else json.loads(answer.body)
    if plural not in {resource["name"] for resource in found[f"/{base}"]["resources"]}:
        return False
    if base not in found["/openapi/v3"]["paths"]:
        return False
    if f"/{base}/{plural}" not in found[f"/openapi/v3/{base}"]["paths"]:
        return False
    try:
        cluster.kubectl("get", f"{plural}.{version}.{group}")
    except KubectlError:
        return False
    return True
