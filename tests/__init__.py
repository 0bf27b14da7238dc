"""The tests, and the cluster and other parts that they share. A package, so that no installed one shadows it."""
