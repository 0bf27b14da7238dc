"""CEL for DRA selectors: what the API server would say to an expression, and what the scheduler would.

Modules, bottom up:

- `syntax`: the tree that everything below works on.
- `google`: cel-expr-python, Google's C++ implementation. Parses (its grammar and messages are upstream's) and gives a
  second opinion on types. The only module that imports it.
- `celpy`: cel-python. Parses where the other has no wheel or gives up (it stops at 32 nested levels, the API server at
  250), splits an expression into clauses and finds what it reads. The only module that imports it.
- `macros`, `types`, `declarations`, `checker`, `validators`, `cost`: admission, as the API server does it.
- `values`, `evaluator`, `functions*`, `regex`: evaluation, as the scheduler does it.
- `engine`: the public face: `judge`, `compile_expression`, `evaluate`.

Why neither library evaluates is told in `docs/design/selectors.md`.
"""
