"""The controller against a real API server; the tests stand in for the agents."""
