"""The door to a process in which code runs that is not ours; and its environment variables."""

TIMEOUT = "ROPEAUDIT_TIMEOUT"  # seconds without a call that ends
ROAD = "ROPEAUDIT_DOOR"  # `SPAWN` or `IN_PROCESS`
SPAWN, IN_PROCESS = "spawn", "in-process"  # without a fork; without a process
