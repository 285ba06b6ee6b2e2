"""Write settings.jsonl anew: python -m tests.net.record_settings. What is right of a row is kept."""

import json
import tempfile
from pathlib import Path

from .settings import SETTINGS, differs, lines, names, read, text_of


def main() -> None:
    """Read every config, and write a line of each."""
    stored = lines(SETTINGS) if SETTINGS.exists() else {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names()):
            path = Path(folder, f"{number}.json")
            path.write_text(text_of(name), encoding="utf-8")
            row = {"name": name, "today": read(path)}
            kept = {key: value for key, value in stored.get(name, {}).items() if key != "today"}
            if "right" in kept and not differs(row["today"], kept["right"]):
                kept = {}
            rows.append(json.dumps(row | kept, ensure_ascii=False))
    SETTINGS.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
