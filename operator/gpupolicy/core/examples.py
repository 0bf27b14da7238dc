"""Manifests that a policy's status shows: how to ask for what it offers, for the person who just applied it.

Plain text, because the reader copies it; the names of classes and extended resources in it are already valid.
"""

from collections.abc import Sequence
from typing import Final

from gpupolicy.api.policy import Example
from gpupolicy.core import render
from gpupolicy.core.classes import DesiredClass

_LIMIT: Final = 8
"""Examples that the schema allows."""

_LIMITS: Final = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: nvidia/cuda:12.8.1-base-ubuntu24.04
      command: [nvidia-smi, -L]
      resources:
        limits:
          {resource}: 1
"""

_TEMPLATE: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: {name}
spec:
  spec:
    devices:
      requests:
        - name: gpu
          exactly:
            deviceClassName: {class_name}
            count: {count}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  template:
    spec:
      restartPolicy: Never
      resourceClaims:
        - name: gpu
          resourceClaimTemplateName: {name}
      containers:
        - name: main
          image: nvidia/cuda:12.8.1-base-ubuntu24.04
          command: [nvidia-smi, -L]
          resources:
            claims:
              - name: gpu
"""


def examples(classes: Sequence[DesiredClass], *, cards_per_node: int) -> list[Example]:
    """Return the manifests that fit a policy: by extended name, by claim, and for whole nodes.

    A claim is satisfied on one node or not at all, so a job that claims all cards of a node gets a node to itself
    or waits; it is never spread over two.

    Args:
        classes: the classes of the policy.
        cards_per_node: the most cards that the policy has on one node; 0 where it has none yet.
    """
    whole = [wish for wish in classes if wish.profile is None and cards_per_node > 1]
    found = [_claim(wish, f"{wish.name}-whole-node", cards_per_node) for wish in whole]
    for wish in classes:
        if wish.extended_resource_name is not None:
            resource = render.word(wish.extended_resource_name)
            text = _LIMITS.format(name=_label(f"{wish.name}-pod"), resource=resource)
            found.append(Example(name=f"{wish.name}-limits", manifest=text))
        found.append(_claim(wish, f"{wish.name}-claim", 1))
    return found[:_LIMIT]


def _claim(wish: DesiredClass, name: str, count: int) -> Example:
    text = _TEMPLATE.format(name=_label(name), class_name=render.word(wish.name), count=count)
    return Example(name=name, manifest=text)


def _label(name: str) -> str:
    """Return a name that Jobs may have: their pods carry it as a label of at most 63 characters, without dots."""
    return render.word(name.replace(".", "-")[-63:].strip("-"))
