"""`python -m bench [name ...]`: one JSON object a line, progress on stderr; ends with 1 if a bar is missed."""

import argparse
import json
import sys
from collections.abc import Sequence

from bench.registry import Session, benches


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that are named, or all."""
    known = benches()
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure GpuPolicy; one JSON object a line.",
        epilog="\n".join(f"{bench.name:18} {bench.description}" for bench in known.values()),
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="benchmarks to run; all of the list below by default"
    )
    parser.add_argument("--samples", type=int, help="how many samples to take, where a benchmark takes any")
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=60.0,
        help="how long idle programs are watched (default: %(default)s; the figures are for 600)",
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - known.keys())
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    missed = 0
    with Session(samples=options.samples, idle_seconds=options.idle_seconds) as session:
        for name in options.names or known:
            print(f"{name}: {known[name].description}", file=sys.stderr, flush=True)
            for result in known[name].measure(session):
                print(json.dumps(result.to_line(name)), flush=True)
                missed += not result.is_met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
