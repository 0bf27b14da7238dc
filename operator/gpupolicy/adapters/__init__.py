"""The thin edges: each module translates types and errors of one outside thing and decides nothing."""
