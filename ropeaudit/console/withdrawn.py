"""Names that are typed and are none: withdrawn ones and guesses, with what to type instead."""

from __future__ import annotations

# (command as it is typed, option): what to use instead
WITHDRAWN: dict[tuple[str, str], str] = {
    # one line an entry
    ("shift", "--engine"): "NumPy forms all scores; --device says where code and --backend torch rotate",
    ("limit", "--engine"): "NumPy forms all scores; --device says where code of --impl is called",
    ("check", "--ticket-file"): "use --ticket FILE",
    ("module", "--ticket-file"): "use --ticket FILE",
    ("shift", "--ticket-file"): "use --ticket FILE",
    ("vectors", "--rebuild"): "type the command of the case again: its bytes follow from its options",
    ("vectors", "--tables"): "cos and sin follow from base, scaling and attention_factor in manifest.json",
}

# (command as it is typed, option, value): what to use instead
WITHDRAWN_VALUES: dict[tuple[str, str, str], str] = {
    ("explain", "--by", "position"): "--by pair says where drift sits",
    ("explain", "--by", "head"): "--by pair says where drift sits",
    ("model", "--by", "head"): "--by pair says it of each pair of a head",
    ("model", "--by", "cache"): "decode with the default cache is in every run: see decode_max",
}

# option or command that people guess: what it is called here
GUESSED = {
    "--theta": "--base",
    "--rope-theta": "--base",
    "--json": "-f json",
    "--csv": "-f csv",
    "version": "--version",
    "compare": "report FILE --against FILE",
    "diff": "report FILE --against FILE",
}
