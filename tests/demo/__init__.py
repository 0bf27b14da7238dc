"""The demo: a cluster of 8 x 8 simulated H100s that stays until it is told to go."""
