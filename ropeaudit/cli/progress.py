"""A line of progress on stderr: on a terminal only, and only for work of more than a second."""

from __future__ import annotations

import sys
import time


class Progress:
    """Call it with the share that is done, from 0 to 1."""

    def __init__(self, quiet: bool) -> None:
        """Begin; nothing is shown yet."""
        self.shown, self.silent = False, quiet or not sys.stderr.isatty()
        self.begun = self.last = time.monotonic()

    def __call__(self, share: float) -> None:
        """Show the share that is done and an estimate of what remains, at most ten times a second."""
        now = time.monotonic()
        if self.silent or now - self.begun < 1.0 or now - self.last < 0.1 or share <= 0:
            return
        self.shown, self.last = True, now
        remaining = (now - self.begun) * (1 - share) / share
        sys.stderr.write(f"\r\033[Kropeaudit: {share:4.0%}, {remaining:.0f} s to go")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self.shown = False
