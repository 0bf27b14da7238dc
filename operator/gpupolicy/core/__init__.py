"""The functional core: frozen dataclasses in, dataclasses out; no I/O, no clock, no logging."""
