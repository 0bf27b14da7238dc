"""The command line `kubectl gpupolicy`: shows and explains, with the same pure planner as the controller."""
