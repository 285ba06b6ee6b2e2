"""What the CHANGELOG counts of the first release is what there is."""

import re

from documented import ROOT
from test_shipped_page import BUGS, counted

from ropeaudit.recipes import all_recipes
from ropeaudit.rope.presets import all_presets
from ropeaudit.subjects import third_party


def test_every_count_is_that_of_the_product() -> None:
    told = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("## 0.1.0")[2]
    bugs = counted(list(BUGS.values()))
    survey = (ROOT / "docs" / "survey.md").read_text(encoding="utf-8")
    there = [
        f"{len(list(all_recipes()))} recipes",
        f"{len(all_presets())} models",
        f"{len(third_party.ENTRIES)} implementations",
        f"{bugs['re-enacted']} bugs",
        f"{bugs['caught']} are caught",
        re.findall(r"of (\d+ implementations) drift", survey)[0],
    ]
    families = " and ".join(third_party.FAMILIES)
    text = " ".join(told.split())
    assert re.findall(r"(?<![.\w])\d{2,} [a-z]+(?: caught)?", text.partition("###")[0]) == there
    assert f"implementations of libraries and the RoPE classes of {families}, called as they are" in text
