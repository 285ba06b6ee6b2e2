"""Options that were withdrawn, and what to use instead: what is said where one of them is typed."""

from __future__ import annotations

# (command as it is typed, option): what to use instead
WITHDRAWN: dict[tuple[str, str], str] = {
    # one line an entry
    ("vectors", "--rebuild"): "type the command of the case again: its bytes follow from its options",
    ("vectors", "--tables"): "cos and sin follow from base, scaling and attention_factor in manifest.json",
}
