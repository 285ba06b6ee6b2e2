"""Rows of `ropeaudit rerotate`, for tests of its numbers and of what is said of them."""

from ropeaudit import parse
from ropeaudit.audits.cases import Case
from ropeaudit.features.rerotate import analysis
from ropeaudit.features.rerotate.report import COLUMNS
from ropeaudit.recipes import named


def measure(recipe, steps, by=-16, dtype="bf16", changes=None, **case):
    resolved = named(recipe).changed(changes or {}).resolve(parse(dtype))
    given = {"heads": 2, "seq_len": 128} | case
    return [COLUMNS.row(one) for one in analysis.run([Case(**given)], [resolved], steps, by)]
