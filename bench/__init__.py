"""The figures of the project: `python -m bench [name]` prints one JSON object a line. See docs/benchmarks.md."""
