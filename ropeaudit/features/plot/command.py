"""The command `ropeaudit plot`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ropeaudit.console import options
from ropeaudit.console.help import command
from ropeaudit.console.parameters import INTEGERS, NAMES, WORD, Parsed, one_of
from ropeaudit.errors import BadInput, RopeAuditError, UnknownName, UsageError

if TYPE_CHECKING:
    from ropeaudit.audits.cases import Case
    from ropeaudit.recipes import Resolved
    from ropeaudit.reports.charts import Picture

_KINDS = ("drift", "heatmap", "stages", "frequencies", "decay", "limit")
_SUFFIXES = ("svg", "png", "pdf")  # of reports.plots.style, not loaded for --help
_OWN = ("file", "kind", "outputs", "quiet", "title", "size", "y")  # the parameters that are none of the case


def _size(text: str, flag: str) -> tuple[float, float]:
    """Read WIDTHxHEIGHT in inches. Raises: UsageError."""
    parts = text.lower().split("x")
    with contextlib.suppress(ValueError):
        width, height = map(float, parts)
        if 1 <= width <= 100 and 1 <= height <= 100:
            return width, height
    raise UsageError(f"{flag} {text!r} is not WIDTHxHEIGHT in inches, each from 1 to 100; try {flag} 6x4")


@command(
    epilog="Reports: drift: shift -o x.jsonl; stages and frequencies: explain -o x.json; decay: "
    "decay -o x.json; limit: limit -o x.json. heatmap measures one case, which --offset to --scale describe. "
    "Exit code: 0 done, 2 bad usage or input."
)
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help="File of the picture: .svg, .png or .pdf. Repeatable.",
)
@click.option(
    "--kind",
    type=one_of("--kind", _KINDS),
    default="drift",
    metavar="KIND",
    help=f"{', '.join(_KINDS)}. Drift is over offset, heatmap over query and key, decay over "
    "distance; stages are those to blame, frequencies those that drift; limit is what is guaranteed and what "
    "was tested.  [default: drift]",
)
@click.option("--y", type=WORD, metavar="COLUMN", help="drift: column of numbers.  [default: drift_rms]")
@click.option("--title", metavar="TEXT", help="Title, in the place of the finding; '' leaves it out.")
@click.option(
    "--size",
    type=Parsed("size", _size),
    metavar="WxH",
    help="Width and height in inches, such as 6x4.  [default: as the content needs]",
)
@click.option("-q", "--quiet", is_flag=True, help="No notes and no progress on stderr.")
@options.axis("--offset", INTEGERS, "heatmap: integer added to every position.", shown="1000")
@options.axis("--dtype", NAMES, "heatmap: number format of the model.", shown="bf16")
@options.axis("--recipe", NAMES, "heatmap: a recipe (`ropeaudit list recipes`) or a .toml file.", shown="hf")
@options.changes_option
@options.qk_options
@options.rope_options
def plot(
    file: str | None,
    outputs: tuple[str, ...],
    kind: str,
    y: str | None,
    title: str | None,
    size: tuple[float, float] | None,
    quiet: bool,
    offset: tuple[int, ...],
    dtype: tuple[str, ...],
    recipe: tuple[str, ...],
    changes: Mapping[str, str],
    vectors: options.QKOptions,
    rope: options.RopeOptions,
) -> int:
    """Draw a report of another command, FILE (- is stdin), or measure a case and draw it by query and key."""
    from ropeaudit import reports
    from ropeaudit.audits.arguments import resolve_recipes
    from ropeaudit.console import delivery, output_files
    from ropeaudit.recipes import DEFAULT

    _check(kind, file, outputs)
    outputs = tuple("/dev/stdout" if path == "-" else path for path in outputs)
    reports.needed("matplotlib", "a picture", "plot")
    from ropeaudit.reports import charts

    with output_files.opened(outputs, _suffix) as files:
        try:
            with charts.sized(size):
                if kind == "heatmap" or file is None:
                    recipes = resolve_recipes(recipe or DEFAULT[:1], dtype or "bf16", changes)
                    picture = _heatmap(options.cases(rope, vectors), recipes, offset or (1000,), quiet)
                else:
                    from ropeaudit.features.plot.pictures import picture as of_report

                    picture = of_report(kind, file, y)
                if title is not None:
                    charts.retitle(picture.figure, title)
                if size is None:
                    picture.figure.set_figheight(picture.height)
                made = [(target, [charts.encoded(picture, target.form)]) for target in files]
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            if file is None or isinstance(error, RopeAuditError):
                raise
            raise BadInput(f"{file!r} holds values that no report has: {error}") from None  # it was edited
        errors = delivery.write_files([(target, content.copy) for target, content in made])
        written = [repr(target.path) for target in files if target.written]
    if written and not quiet:
        title = f"wrote {', '.join(written)}: {picture.title}"
        for text in (title, *(f"note: {note}" for note in picture.notes)):
            delivery.say(text)
    for one in errors:
        delivery.say_error(one)
    return delivery.BAD_USE if errors else delivery.DONE


def _check(kind: str, file: str | None, outputs: tuple[str, ...]) -> None:
    """Raise UsageError for a case in a report's picture, or vice versa."""
    given = click.get_current_context().params
    names = [name for name in given if name not in _OWN and given[name]]
    if not outputs:
        raise UsageError(f"a picture needs a file; add -o {kind}.svg")
    if given["y"] and kind != "drift":
        raise UsageError(f"--y chooses the column of --kind drift; leave it out with --kind {kind}")
    if kind == "heatmap" and file:
        raise UsageError(
            "--kind heatmap measures a case; leave out FILE and give --offset, --dtype, --recipe"
        )
    if kind != "heatmap" and (names or not file):
        flag = f"leave out --{names[0].replace('_', '-')}" if names else "name it"
        raise UsageError(f"--kind {kind} draws a report that another command has written; {flag}")


def _heatmap(
    cases: list[Case],
    recipes: list[Resolved],
    offsets: tuple[int, ...],
    quiet: bool,
) -> Picture:
    """Measure the one case that the options describe, and draw it. Raises: RopeAuditError."""
    from ropeaudit.console import delivery
    from ropeaudit.features.plot import pictures
    from ropeaudit.reports.model_notes import model_notes

    count = len(offsets) * len(recipes) * len(cases)
    if count != 1:
        raise UsageError(f"--kind heatmap draws one case and these options make {count}; give one value each")

    one = cases[0], recipes[0], offsets[0]
    results, interrupted = delivery.run_analysis(
        lambda on_progress: [pictures.heatmap(*one, on_progress)], quiet
    )
    if interrupted:
        raise KeyboardInterrupt
    [picture] = results
    return replace(picture, notes=[*model_notes(cases, offsets), *picture.notes])


def _suffix(path: str) -> str:
    """Return the kind of picture that a path asks for. Raises: UnknownName."""
    if path == "/dev/stdout":
        return "svg"
    suffix = path.lower().rpartition(".")[2]
    if suffix not in _SUFFIXES or "." not in path:
        raise UnknownName("kind of picture", path, [f".{one}" for one in _SUFFIXES])
    return suffix
