"""Run benchmarks: `python -m bench [name ...]` prints one JSON object a line and fails when a bar is missed.

A module of this package lists what it measures in `BENCHES`: name -> (function that returns samples, unit, bar for
their median); or it has functions that yield `Result`s, named in the table below. Modules are imported when one of
their benchmarks is asked for.
"""

import importlib
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from bench.result import Result

BENCHES: Final[dict[str, tuple[str, str | None]]] = {
    "plan-card": ("plan", None),
    "plan-node": ("plan", None),
    "policy-to-class": ("policy_to_class", None),
    "cel-vectors": ("cel", "measure_vectors"),
    "cel-compiled": ("cel", "measure_compiled"),
    "select-40k": ("cel", "measure_select"),
    "cel-accept": ("cel", "measure_accept"),
}
"""Name -> module, and the function that yields results; None where the module has a table of its own."""


def main(names: Sequence[str]) -> int:
    """Run the named benchmarks, all by default; return 1 when a bar is missed."""
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or BENCHES:
        for result in _results(name):
            print(json.dumps(result.to_line(name)), flush=True)
            missed += not result.is_met
    return min(missed, 1)


def _results(name: str) -> Iterator[Result]:
    module_name, function = BENCHES[name]
    module = importlib.import_module(f"bench.{module_name}")
    if function is not None:
        yield from getattr(module, function)()
        return
    measure, unit, bar = module.BENCHES[name]
    samples = measure()
    yield Result(statistics.median(samples), unit, bar, len(samples))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
