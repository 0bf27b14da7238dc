"""Paths of resources: they address what is meant, and never more than that."""

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kube import resources

ALL = sorted((value for value in vars(resources).values() if isinstance(value, kube.Resource)), key=str)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (kube.NODES.collection_path(), "/api/v1/nodes"),
        (kube.NODES.object_path("n1"), "/api/v1/nodes/n1"),
        (kube.PODS.collection_path(), "/api/v1/pods"),
        (kube.PODS.collection_path("a"), "/api/v1/namespaces/a/pods"),
        (kube.PODS.object_path("p", "a", "eviction"), "/api/v1/namespaces/a/pods/p/eviction"),
        (kube.GPUNODES.object_path("n1", None, "status"), "/apis/gpupolicy.dev/v1alpha1/gpunodes/n1/status"),
        (
            kube.RESOURCE_CLAIMS.object_path("c", "a"),
            "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c",
        ),
        (kube.EVENTS.group_path, "/apis/events.k8s.io/v1"),
        (kube.NODES.group_path, "/api/v1"),
    ],
)
def test_paths(path, expected):
    assert path == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "../nodes"])
@pytest.mark.parametrize("place", ["name", "namespace", "subresource"])
def test_a_name_that_is_no_name_is_refused(name, place):
    """An empty name would turn the deletion of one object into that of all."""
    segments = {"name": "x", "namespace": "y", "subresource": "status"} | {place: name}
    with pytest.raises(ValueError, match="is not the name of an object"):
        kube.PODS.object_path(segments["name"], segments["namespace"], segments["subresource"])


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%2Fb", "a b", "ä"])
def test_a_name_is_one_segment_of_the_path(name):
    path = kube.NODES.object_path(name)
    assert path.count("/") == 4
    assert not set(path) & set("?# ä")


def test_a_cluster_scoped_resource_takes_no_namespace():
    with pytest.raises(ValueError, match="cluster-scoped, got namespace 'a'"):
        kube.NODES.object_path("n1", "a")


def test_an_object_of_a_namespaced_resource_needs_one():
    with pytest.raises(ValueError, match="'p' needs a namespace"):
        kube.PODS.object_path("p")


@pytest.mark.parametrize("resource", ALL, ids=str)
def test_constants_are_consistent(resource):
    """The full comparison with a server's discovery stands in the integration tests."""
    assert resource.plural == resource.plural.lower()
    assert resource.kind[0].isupper()
    assert resource.api_version == (
        f"{resource.group}/{resource.version}" if resource.group else resource.version
    )
