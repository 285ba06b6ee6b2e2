"""ropeaudit decay: scores against distance."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console.options import axis, changes_option, report_options, rope_options

if TYPE_CHECKING:
    from ropeaudit.console.settings import Chosen
    from ropeaudit.features.decay.analysis import Decay
    from ropeaudit.inputs.qk import Inputs
    from ropeaudit.recipes import Resolved
    from ropeaudit.rope.setting import RopeSetting

_PLAIN_RANGE = re.compile(r"(?P<first>[^-+*]+)-(?P<last>[^-+*]+)")
_USUAL = 65536  # largest distance where nothing says another
_MOST_CASES, _MOST_VECTORS, _MOST_ROWS = 1000, 1024, 200_000


@click.command(
    epilog="Distances: 0-50000 picks a few round ones, 0-4096+64 and 1-64k*2 count. The first failing "
    "distance is looked for at every integer up to the largest one. k = 1024, m = 1024²."
)
@axis("--distance", "Positions of the query; the key stands at 0.", "0 to the model's positions, or to 64k")
@rope_options
@axis(
    "--qk",
    "ones, gaussian, arange, diagonal, previous, or a file with captured q and k: .safetensors, .npz, .pt, "
    "q.npy,k.npy.",
    "ones,gaussian",
    metavar="SOURCE",
)
@click.option("--vectors", metavar="N", help="Queries and keys of a head, at most.  [default: 64]")
@click.option("--seed", metavar="N", help="Seed of gaussian q and k.  [default: 0]")
@axis("--dtype", "Number formats in which a recipe computes the same curves.", "none; all with --recipe")
@axis("--recipe", "Number format per stage: a name (`ropeaudit list recipes`) or a .toml file.", "hf,uniform")
@changes_option
@report_options
@click.option("--no-header", is_flag=True, help="Rows alone, for csv and table.")
def decay(**options: Any) -> int:
    """Show how scores change with the distance between query and key.

    Constant q and k decay, Gaussian ones do not, and neither curve is monotone. Beside them stand RoFormer's
    bound and the sum of Men et al., with the first distance at which it is negative.
    """
    from ropeaudit.console import output
    from ropeaudit.features.decay.report import decay_report, plotted
    from ropeaudit.runtime import run_metadata

    columns = _columns(options)
    recipes = _recipes(options)
    sources = _sources(options)
    settings = _settings(options, sources)
    distances = _distances(options["distance"], settings)
    options["vectors"] = _number(options, "vectors", 64, 1, _MOST_VECTORS)
    options["seed"] = _number(options, "seed", 0, 0, 2**64 - 1)
    every: list[Resolved | None] = [*recipes] or [None]
    jobs = [(one, source, recipe) for one in settings for source in sources for recipe in every]
    _check_size(len(jobs), len(distances))
    with output.opened(options["outputs"]) as files:
        results, shapes, interrupted = _run(jobs, distances, sources, options)
        about = run_metadata.gather() | {
            "stages": {f"{recipe.recipe.name} {recipe.dtype}": recipe.stages() for recipe in recipes}
        }
        if results or not interrupted:
            report = decay_report(results, shapes, about, columns, header=not options["no_header"])
            output.deliver_plotted(report, functools.partial(plotted, shapes), files, options, interrupted)
    if interrupted:
        output.say_interrupted(f"{len(results)} of {len(jobs)} cases", files)
    return 130 if interrupted else 0


def _columns(options: dict[str, Any]) -> list[str]:
    """Check the form and the columns. Raises: UnknownName, UsageError."""
    from ropeaudit.console import rows
    from ropeaudit.errors import UsageError
    from ropeaudit.features.decay.columns import COLUMNS

    names = rows.chosen_columns(options, COLUMNS)
    if options["no_header"] and options["form"] not in ("csv", "table"):
        raise UsageError(f"--no-header goes with csv and table; {options['form']} has no header")
    return names


def _recipes(options: dict[str, Any]) -> list[Resolved]:
    """Return every recipe in every dtype; none where neither was asked for."""
    from ropeaudit import recipes
    from ropeaudit.arithmetic.formats import parse
    from ropeaudit.audits.audit import DTYPES
    from ropeaudit.console import values

    dtypes = values.names(options["dtype"], "--dtype")
    named = values.names(options["recipe"], "--recipe")
    changes = recipes.parse_changes(options["changes"])
    if not (dtypes or named or changes):
        return []
    chosen = [recipes.load(name).changed(changes) for name in named or recipes.DEFAULT]
    formats = list(dict.fromkeys(parse(name) for name in dtypes or DTYPES))
    return [recipe.resolve(fmt) for recipe in chosen for fmt in formats]


def _sources(options: dict[str, Any]) -> dict[str, Inputs | None]:
    """Return --qk value -> captured q and k, None where they are to be made."""
    from ropeaudit.inputs import qk as inputs

    results: dict[str, Inputs | None] = {}
    for text in options["qk"] or ["ones,gaussian"]:
        for word in [text] if inputs.is_file(text) else [part.strip() for part in text.split(",")]:
            if not inputs.is_file(word):
                inputs.check_kind(word)
            results[word] = inputs.from_file(word) if inputs.is_file(word) else None
    return results


def _settings(options: dict[str, Any], sources: dict[str, Inputs | None]) -> list[Chosen]:
    """Return the settings; without a model or --head-dim, captured q and k say the head_dim."""
    from ropeaudit.console.settings import chosen

    rest = ("qk", "seed", "distance")  # not a matter of the setting
    given = {name: value for name, value in options.items() if name not in rest}
    files = [captured for captured in sources.values() if captured is not None]
    if files and not any(given.get(name) for name in ("head_dim", "model", "config")):
        given["head_dim"] = (str(files[0].q.shape[2]),)
    return chosen(given)


def _distances(items: Sequence[str], settings: Sequence[Chosen]) -> list[int]:
    """Read --distance; a range without a step becomes a few round distances. Raises: UsageError."""
    from ropeaudit.console import values
    from ropeaudit.errors import UsageError
    from ropeaudit.features.decay.analysis import check
    from ropeaudit.reports.charts.axes import round_values

    if not items:
        known = [one.maximum for one in settings if one.maximum is not None]
        return round_values(0, max(known, default=_USUAL))
    results: list[int] = []
    for word in [part for text in items for part in text.split(",")]:
        match = _PLAIN_RANGE.fullmatch(word.strip())
        if not match:
            results += values.integers([word], "--distance")
            continue
        first, last = (values.integer(match[name], "--distance") for name in ("first", "last"))
        if first > last:
            raise UsageError(f"--distance {word.strip()!r} does not count upwards; try 0-50000")
        check([first, last])
        results += round_values(first, last)
    check(results)
    return list(dict.fromkeys(results))


def _check_size(jobs: int, distances: int) -> None:
    from ropeaudit.errors import UsageError

    if jobs > _MOST_CASES or jobs * distances > _MOST_ROWS:
        raise UsageError(
            f"these lists make {jobs} cases of {distances} distances; at most {_MOST_CASES} cases and "
            f"{_MOST_ROWS} rows are allowed: shorten one"
        )


def _run(
    jobs: Sequence[tuple[Chosen, str, Resolved | None]],
    distances: Sequence[int],
    sources: dict[str, Inputs | None],
    options: dict[str, Any],
) -> tuple[list[Decay], list[Decay], bool]:
    """Return every job's curves, the exact ones on dense distances, and whether the user broke it off."""
    from ropeaudit.console.progress import Progress
    from ropeaudit.features.decay import analysis
    from ropeaudit.reports.charts.terminal import dense

    progress = Progress(options["quiet"])
    results: list[Decay] = []
    shapes: dict[Any, Decay] = {}
    finer = dense(min(distances), max(distances))
    try:
        for done, (one, source, recipe) in enumerate(jobs):
            inputs = sources[source] or _built(source, one.setting, options)
            some = analysis.sample(inputs, options["vectors"])
            about, key = (one.label, one.maximum), (one.label, one.setting, source)
            shape = shapes.get(key) or analysis.decay(one.setting, some, finer, None, *about)
            results.append(analysis.decay(one.setting, some, distances, recipe, *about))
            shapes[key] = shape
            progress((done + 1) / len(jobs))
    except KeyboardInterrupt:
        return results, list(shapes.values()), True
    finally:
        progress.clear()
    return results, list(shapes.values()), False


def _built(source: str, setting: RopeSetting, options: dict[str, Any]) -> Inputs:
    """One head of synthetic q and k; of constant ones a single vector says all."""
    from ropeaudit.inputs import qk as inputs

    vectors = options["vectors"] if source == "gaussian" else 1
    return inputs.make(source, 1, 1, vectors, setting, options["seed"])


def _number(options: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    from ropeaudit.console import values
    from ropeaudit.errors import UsageError

    if options[name] is None:
        return default
    number = values.integer(options[name], f"--{name}")
    if not least <= number <= most:
        raise UsageError(f"--{name} {number} is not a number from {least} to {most}; try --{name} {default}")
    return number
