"""The simulated driver, held to what real programs need from the real one."""
