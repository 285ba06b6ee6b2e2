"""ropeaudit plot: a picture of a report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console import overwriting
from ropeaudit.console.options import axis, changes_option, rope_options, vector_options
from ropeaudit.errors import RopeAuditError

if TYPE_CHECKING:
    from ropeaudit.features.plot.heatmap_analysis import Heatmap
    from ropeaudit.features.plot.style import Picture

_KINDS = ("drift", "heatmap", "stages", "bands", "decay", "safe")
_SUFFIXES = ("svg", "png", "pdf")  # of reports.plots.style, not loaded for --help
_OWN = ("file", "kind", "outputs", "quiet")  # the options that are none of the case


@click.command(
    epilog="Reports: drift: shift -o x.jsonl; stages and bands: explain -o x.json; decay: decay -o x.json; "
    "safe: limit -o x.json. heatmap measures one case, which --offset to --scale describe. Exit code: 0 "
    "done, 2 bad usage or input."
)
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help="Picture: .svg, .png or .pdf. Repeatable.",
)
@click.option(
    "--kind",
    default="drift",
    metavar="KIND",
    help="drift over offset, heatmap over query and key, stages to blame, bands of frequencies, decay over "
    "distance, safe: what `limit` proved and measured.  [default: drift]",
)
@click.option("-q", "--quiet", is_flag=True, help="No notes and no progress on stderr.")
@axis("--offset", "heatmap: integer added to every position.", "1000")
@axis("--dtype", "heatmap: number format of the model.", "bf16")
@axis("--recipe", "heatmap: number format per stage: a name or a .toml file.", "hf")
@changes_option
@vector_options
@rope_options
@overwriting.guarded
def plot(**options: Any) -> int:
    """Draw a report of another command, FILE, or measure one case and draw it by query and key."""
    from ropeaudit import reports
    from ropeaudit.console import output
    from ropeaudit.errors import UnknownName, UsageError

    kind, names = options["kind"], [name for name in options if name not in _OWN and options[name]]
    if kind not in _KINDS:
        raise UnknownName("--kind", kind, _KINDS)
    if not options["outputs"]:
        raise UsageError(f"a picture needs a file; add -o {kind}.svg")
    if kind == "heatmap" and options["file"]:
        raise UsageError(
            "--kind heatmap measures a case; leave out FILE and give --offset, --dtype, --recipe"
        )
    if kind != "heatmap" and (names or not options["file"]):
        flag = f"leave out --{names[0].replace('_', '-')}" if names else "name it"
        raise UsageError(f"--kind {kind} draws a report that another command has written; {flag}")
    reports.needed("matplotlib", "a picture", "plot")
    with output.opened(options["outputs"], _suffix) as files:
        with _blaming(options["file"]):
            from ropeaudit.features.plot.style import encoded

            picture = _plotted(kind, options)
            contents = [encoded(picture, file.form) for file in files]
        for file, content in zip(files, contents, strict=True):
            file.fill([content])
    if not options["quiet"]:
        for text in (picture.title, *(f"note: {note}" for note in picture.notes)):
            output.say(text)
    return 0


@contextlib.contextmanager
def _blaming(path: str | None) -> Iterator[None]:
    """Turn what values of an edited report break into an error of its file. Raises: BadInput."""
    from ropeaudit.errors import BadInput

    try:
        yield
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        if path is None or isinstance(error, RopeAuditError):
            raise
        raise BadInput(f"{path!r} holds values that no report has: {error}") from None


def _plotted(kind: str, options: dict[str, Any]) -> Picture:
    if kind != "heatmap":
        from ropeaudit.features.plot.pictures import picture

        return picture(kind, options["file"])
    from ropeaudit.features.plot.heatmap import draw

    return draw(_measured(options))


def _measured(options: dict[str, Any]) -> Heatmap:
    """Measure the one case that the options describe. Raises: RopeAuditError."""
    from ropeaudit import recipes
    from ropeaudit.console import rows, settings, values, work
    from ropeaudit.errors import UsageError
    from ropeaudit.features.plot import heatmap_analysis

    offsets = values.integers(options["offset"], "--offset") or [1000]
    resolved, cases = work.resolved(options, "bf16", recipes.DEFAULT[:1]), list(settings.cases(options))
    count = len(offsets) * len(resolved) * len(cases)
    if count != 1:
        raise UsageError(f"--kind heatmap draws one case and these options make {count}; give one value each")
    result, interrupted = rows.gathered(
        lambda on_progress: [heatmap_analysis.measure(cases[0], resolved[0], offsets[0], on_progress)],
        options["quiet"],
    )
    if interrupted:
        raise KeyboardInterrupt
    return result[0]


def _suffix(path: str) -> str:
    """Return the kind of picture that a path asks for. Raises: UnknownName."""
    from ropeaudit.errors import UnknownName

    suffix = path.lower().rpartition(".")[2]
    if suffix not in _SUFFIXES or "." not in path:
        raise UnknownName("kind of picture", path, [f".{one}" for one in _SUFFIXES])
    return suffix
