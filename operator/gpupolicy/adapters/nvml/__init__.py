"""NVML behind one door: the only package that imports pynvml.

`session.Nvml` is what the agent uses. Below it, `library` makes single calls and turns their codes into typed errors, `lanes`
keeps them off the event loop, one at a time per card and each with a deadline, `facts` and `instances` read and write
what NVML knows of one card, `events` waits for XIDs, `pci` adds what only sysfs knows.
"""
