"""Two sides of an interface, of which one is not ours: what a fake promises is held against the real thing."""
