"""The controller: one process per cluster that turns policies into classes and per-node plans."""
