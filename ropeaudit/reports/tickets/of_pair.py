"""The ticket of two subjects whose scores differ on the same q and k, with a snippet of both."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ropeaudit.reports import Report
from ropeaudit.reports.numbers import percent, printable, short
from ropeaudit.reports.tickets import of_recipe, of_subject
from ropeaudit.reports.tickets.inputs import Setup
from ropeaudit.reports.tickets.reproduction import NoSnippet, Snippet
from ropeaudit.reports.tickets.shortening import fitted
from ropeaudit.reports.tickets.ticket import Ticket, reproduction
from ropeaudit.rope.setting import Layout
from ropeaudit.subjects import Subject

_INTERLEAVED = (
    "q, k = (y.unflatten(-1, (2, -1)).mT.flatten(-2) for y in (q, k))  # pairs (i, i + d/2) to (2i, 2i + 1)"
)
_HALF = (
    "q, k = (y.unflatten(-1, (-1, 2)).mT.flatten(-2) for y in (q, k))  # pairs (2i, 2i + 1) to (i, i + d/2)"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two subjects in one case. layouts: in which each rotates; q and k come in that of the setup.

    rms, relative: of a's scores minus b's. drifts: RMS of each from the exact scores.
    """

    setup: Setup
    names: tuple[str, str]
    subjects: tuple[Subject, Subject]
    layouts: tuple[Layout, Layout]
    rms: float
    relative: float
    drifts: tuple[float, float]
    nearer: str
    error: float


def ticket(pair: Pair, report: Report, command: str) -> Ticket:
    """Return the ticket of two subjects. Runs the snippet."""
    setup, (a, b), (first, second) = pair.setup, pair.names, pair.drifts
    last = setup.offset + setup.seq_len - 1
    nearer = "both are equally near" if pair.nearer == "equal" else f"{pair.nearer} is nearer"
    recipes = [name for name, one in zip(pair.names, pair.subjects, strict=True) if hasattr(one, "recipe")]
    what = (
        f" {' and '.join(recipes)}: not the code but its number formats, stage by stage." if recipes else ""
    )
    share = f"{percent(pair.relative)} of the scores' RMS"
    return Ticket(
        printable(f"RoPE in {setup.dtype}: {a} and {b} differ by {share}"),
        printable(
            f"On the same q and k in {setup.dtype} at positions {setup.offset} to {last}, the attention "
            f"scores of {a} and {b} differ by {short(pair.rms)} RMS, {share}. {a} is off the exact scores by "
            f"{short(first)} RMS, {b} by {short(second)} RMS: {nearer}.{what}"
        ),
        printable(
            "Both compute the same formula on the same numbers, so their scores should differ by no more "
            f"than rounding to {setup.dtype} accounts for. The exact scores, from q, k and the distance "
            f"alone, have an error of at most {short(pair.error)}."
        ),
        reproduction(lambda inline: snippet(replace(pair, setup=replace(setup, inline=inline)))),
        report,
        command,
    )


def snippet(pair: Pair) -> Snippet:
    """Return code that prints parity_rms. Raises: NoSnippet."""
    setup = pair.setup
    head, body, path, layout = ["import torch"], setup.begin(), "", setup.setting.layout
    dtypes: list[str] = []
    for name, subject, own in zip("ab", pair.subjects, pair.layouts, strict=True):
        if own != layout:
            if setup.setting.rotary_dim != setup.setting.head_dim:
                raise NoSnippet("they pair dims differently, and rotate a part of them")
            body.append(_INTERLEAVED if own == "interleaved" else _HALF)
            layout = own
        at = replace(setup, setting=replace(setup.setting, layout=own))
        imports, lines, scores, folder = of_subject.called(at, subject)
        if path and folder and folder != path:
            raise NoSnippet("their code is in two folders")
        path = path or folder
        recipe = hasattr(subject, "recipe")
        dtypes += [*lines, scores] if recipe else []
        head += [] if recipe else [line for line in imports if line not in head]
        body += [*_new(lines, body), f"{name} = {scores}"]
    if dtypes:
        head.append(of_recipe.imported(dtypes))
    body.append(f'print("parity_rms", f"{{(a - b){setup.visible()}.square().mean().sqrt():.3g}}")')
    where = f"{' and '.join(pair.names)} in {setup.dtype} at offset {setup.offset}"
    return Snippet(fitted([*head, *body]), "parity_rms", pair.rms, where, path)


def _new(lines: list[str], before: list[str]) -> list[str]:
    """Return lines without those that stand there already: the first ones that are alike, and functions."""
    same = 0
    while same < len(lines) and lines[same] in before:
        same += 1
    return [line for line in lines[same:] if not (line in before and re.match(r"def \w+\(.*\): ", line))]
