"""How good and how fast our judgement of selectors is.

More files of golden verdicts may be named in `GPUPOLICY_CEL_VECTORS`, separated by colons.
"""

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hypothesis import given, settings

from bench.registry import Bench
from bench.result import Result
from gpupolicy.adapters.cel import engine
from gpupolicy.api.policy import GpuSelector
from gpupolicy.core import selection, selectors
from gpupolicy.core.selection import Answer, Device, Outcome
from tests.cluster.cluster import Cluster
from tests.integration.cel.test_api_server import refusal
from tests.unit.cel import vectors
from tests.unit.cel.strategies import expressions

OPEN_SHARE = 0.10
"""Most verdicts that may be left open, as a share."""

NODES = 5000
CARDS = 8
PREVIEW_SECONDS = 1.0
PREVIEW_SAMPLES = 7
EXPRESSIONS = 1000


def measure_vectors() -> Iterator[Result]:
    """Compare our verdicts with golden ones."""
    extra = [Path(path) for path in os.environ.get("GPUPOLICY_CEL_VECTORS", "").split(":") if path]
    wrong: list[str] = []
    left_open = total = 0
    for path in (vectors.GOLDEN, *extra):
        for vector in vectors.read(path):
            total += 1
            verdict = vector.evaluated()
            if verdict.outcome is Outcome.CANNOT_TELL:
                left_open += 1
            elif verdict.outcome is not vector.outcome:
                wrong.append(f"{vector.name}: {verdict.outcome}, not {vector.outcome}")
    yield Result(len(wrong), "wrong verdicts", 0, total, details={"wrong": wrong[:20]})
    yield Result(left_open / total, "share left open", OPEN_SHARE, total, name="open")


def measure_compiled() -> Iterator[Result]:
    """Evaluate what our compiler writes on cards with and without every fact."""
    facts: dict[str, Any] = {
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
    }
    wrong = total = 0
    for target in (selectors.GPUPOLICY, selectors.NVIDIA):
        cards = [
            Device(target.driver, facts, {"memory": {"value": "81559Mi"}}),
            Device(target.driver),
            Device("other"),
        ]
        cards += [Device(target.driver, {k: v for k, v in facts.items() if k != name}) for name in facts]
        for selector in _selectors():
            expression = selectors.compile_selector(selector, target)
            is_taken = engine.judge(expression).answer is Answer.ACCEPTED
            for verdict in engine.evaluate(expression, cards):
                total += 1
                wrong += not is_taken or verdict.outcome not in (Outcome.MATCH, Outcome.NO_MATCH)
    yield Result(wrong, "verdicts that are neither yes nor no", 0, total)


def _selectors() -> Iterator[GpuSelector]:
    for products in ([], ["NVIDIA H100*"], ["NVIDIA H100 80GB HBM3", "*A?00*", "x\\E[(\"'"]):
        for architectures in ([], ["Hopper", "Ada Lovelace"]):
            for min_memory in (None, "79Gi"):
                for capability in (None, "9.0"):
                    yield GpuSelector(
                        products=products,
                        architectures=architectures,
                        min_memory=min_memory,
                        min_compute_capability=capability,
                    )


def measure_select() -> Iterator[Result]:
    """Preview a typical selector on a large cluster."""
    devices = [_card(node, card) for node in range(NODES) for card in range(CARDS)]
    selector = GpuSelector(
        products=["NVIDIA H100*"], architectures=["Hopper"], min_memory="79Gi", min_compute_capability="9.0"
    )
    expression = selectors.compile_selector(selector, selectors.GPUPOLICY)
    evaluator = engine.Engine()
    samples = []
    for _ in range(PREVIEW_SAMPLES):
        start = time.process_time()
        preview = selection.preview(expression, devices, evaluator)
        samples.append(time.process_time() - start)
    start = time.process_time()
    one_by_one = engine.evaluate(expression, devices)
    brute_seconds = time.process_time() - start
    if list(preview.verdicts) != one_by_one:
        raise AssertionError("the preview and the devices one by one do not agree")
    yield Result(
        statistics.median(samples),
        "s",
        PREVIEW_SECONDS,
        len(samples),
        details={
            "devices": len(devices),
            "shapes": preview.shapes,
            "oneByOneSeconds": round(brute_seconds, 3),
        },
    )


def _card(node: int, card: int) -> Device:
    old = node % 3 == 0
    attributes: dict[str, Any] = {
        "policy": {"string": "infer"},
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA A100-SXM4-80GB" if old else "NVIDIA H100 80GB HBM3"},
        "uuid": {"string": f"GPU-{node:08x}-{card}"},
        "architecture": {"string": "Ampere" if old else "Hopper"},
        "brand": {"string": "Nvidia"},
        "cudaComputeCapability": {"version": "8.0.0" if old else "9.0.0"},
        "driverVersion": {"version": f"580.{node % 5}.5"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{card:02x}:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{card:02x}"},
        "resource.kubernetes.io/numaNode": {"int": card // 4},
    }
    memory = {"memory": {"value": "81559Mi"}}
    return Device(selectors.GPUPOLICY.driver, attributes, memory, name=f"gpu-{card}", node=f"node-{node}")


def measure_accept() -> Iterator[Result]:
    """Ask a real API server about random expressions."""
    candidates: list[str] = []

    @given(expression=expressions(engine.NEW))
    @settings(max_examples=EXPRESSIONS, derandomize=True, database=None)
    def collect(expression: str) -> None:
        candidates.append(expression)

    collect()
    wrong: list[str] = []
    left_open = taken = 0
    with Cluster.start() as cluster:
        for expression in candidates:
            words = refusal(cluster.control_plane.admin, expression)
            taken += not words
            answer = engine.judge(expression).answer
            if answer is Answer.CANNOT_TELL:
                left_open += 1
            elif (answer is Answer.ACCEPTED) != (not words):
                wrong.append(f"{expression}: {answer}, but the API server says {words or 'accepted'}")
    yield Result(
        len(wrong), "wrong answers", 0, len(candidates), details={"accepted": taken, "wrong": wrong[:20]}
    )
    yield Result(left_open / len(candidates), "share left open", OPEN_SHARE, len(candidates), name="open")


BENCHES: Final = (
    Bench(
        "cel-vectors",
        "golden verdicts of a real evaluator: wrong ones (none is allowed), and the share left open",
        lambda _: measure_vectors(),
    ),
    Bench(
        "cel-compiled",
        "verdicts left open on what our own compiler writes (none is allowed)",
        lambda _: measure_compiled(),
    ),
    Bench(
        "select-40k",
        "CPU time to preview a selector on 40,000 devices of 5,000 nodes",
        lambda _: measure_select(),
    ),
    Bench(
        "cel-accept",
        "1,000 random expressions before a real API server: wrong answers (none is allowed), and the share left open",
        lambda _: measure_accept(),
    ),
)
