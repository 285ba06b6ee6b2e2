"""Write random_faults.json anew: python -m tests.net.record_faults. It takes some minutes.

Each seed has the codes that are named today, and the part of the tests it belongs to, by the time it takes:
of each three seeds one is in the part that the time says, and two in the next.
"""

import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
COUNT = 200
PARTS = ("fast", "slow", "exhaustive", "exhaustive")
MOST = 0.25, 2.2  # seconds of processor time of the first two


def main() -> None:
    """Judge every kernel, and write a line of each."""
    from net.random_faults import cases
    from net.test_random_faults import TABLE, codes

    torch.set_num_threads(1)
    rows: dict[str, dict[str, object]] = {}
    for case in cases(COUNT):
        start = time.process_time()
        found = codes(case)
        took = time.process_time() - start
        part = PARTS[sum(took > most for most in MOST) + (case.seed % 3 > 0)]
        rows[str(case.seed)] = {"codes": found, "part": part}
    lines = ",\n".join(f'"{seed}": {json.dumps(row)}' for seed, row in rows.items())
    TABLE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
