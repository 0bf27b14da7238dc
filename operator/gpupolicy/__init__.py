"""GpuPolicy: intent for GPUs on Kubernetes, turned into classes, layouts and prepared claims.

The package has four layers, and imports point down only:
`cli | controller | agent` -> `adapters` -> `core` -> `api`.
"""

__version__ = "0.1.0"
