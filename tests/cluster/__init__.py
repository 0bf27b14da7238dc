"""A real Kubernetes cluster on one machine, for tests and the demo. Start at `cluster.Cluster`."""
