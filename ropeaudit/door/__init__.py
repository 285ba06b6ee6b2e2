"""Code that is not ours runs in a process of its own, behind a door; the variables that say otherwise."""

TIMEOUT = "ROPEAUDIT_TIMEOUT"  # seconds without a call that ends
ROAD = "ROPEAUDIT_DOOR"  # `SPAWN` or `IN_PROCESS`
SPAWN, IN_PROCESS = "spawn", "in-process"  # without a fork; without a process
