"""The door: others' code runs in a process of its own; and the variables that change that."""

TIMEOUT = "ROPEAUDIT_TIMEOUT"  # seconds without a call that ends
ROAD = "ROPEAUDIT_DOOR"  # `SPAWN` or `IN_PROCESS`
SPAWN, IN_PROCESS = "spawn", "in-process"  # without a fork; without a process
