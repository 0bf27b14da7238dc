"""CEL for DRA selectors: what the API server would say to an expression, and what the scheduler would.

Modules, bottom up:

- `syntax`: the tree that everything below works on. `scan`: what is seen without parsing, such as depth.
- `google`: cel-expr-python, Google's C++ implementation, parses: its grammar and its messages are upstream's. The only
  module that imports it.
- `celpy`: cel-python parses where the other has no wheel or gives up (it stops at 32 nested levels, the API server at
  250), and splits an expression into clauses. The only module that imports it.
- `macros`, `types`, `declarations`, `checker`, `validators`, `cost`, `cost_rules`: admission, as the API server does it.
- `values`, `runtime`, `runtime_cost`, `evaluator`, `functions_*`, `regex`: evaluation, as the scheduler does it.
- `reads`: which attributes an expression reads.
- `engine`: the public face: `judge`, `evaluate`, `problem`, `reads`, `clauses`, and all of them as an `Engine`.

Why neither library evaluates is told in `docs/design/20261130-selectors.md`.
"""
