"""The record: the flat row that a case yields, and its columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from ropeaudit.audits.identity import UNKNOWN, Identity
from ropeaudit.audits.judging import REFUSALS, Refused, Verdict, Within
from ropeaudit.audits.results import Result
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import column, columns_of, row_class

SCHEMA = 4  # earlier ones are refused: their rows are measured again


def _with(name: str) -> Callable[[Record], bool]:
    """Return whether a row has a value of a column."""
    return lambda record: getattr(record, name) is not None


_sampled, _weighed = _with("sample"), _with("attention_tv_mean")


@row_class
class Record(Result, Identity):
    """One case: RoPE setting x inputs x subject x dtype x offset. `COLUMNS` explains every field."""

    report_module: ClassVar[str] = "ropeaudit.reports.drift"
    scores: int = column("how many scores were compared", nonnegative=True)
    nonfinite: int = column(
        "how many of the implementation's scores are nan or infinite", nonnegative=True, compared=1
    )
    distinct_positions: int = column(
        "how many positions are still different finite numbers once rounded",
        nonnegative=True,
        least_is_worst=True,
        compared=2,
    )
    reference_rms: float = column("RMS of the exact scores", unit="score", nonnegative=True, compared=3)
    reference_error: float = column(
        "certified bound on the error of the reference, in score units", unit="score", nonnegative=True
    )
    drift_max: float = column(
        "largest |implementation's score at the offset - exact score|; of a sample a lower bound",
        unit="score",
        role="drift",
        shown=True,
        leaves=8,
        nonnegative=True,
        compared=5,
    )
    drift_mean_abs: float = column(
        "mean of |drift|",
        unit="score",
        role="drift",
        nonnegative=True,
        compared=6,
        group="detail",
    )
    drift_rms: float = column(
        "root mean square of drift", unit="score", role="drift", nonnegative=True, compared=4
    )
    drift_rms_low: float | None = column(
        "lower end of the 95 % interval of drift_rms over all scores; empty without a sample",
        unit="score",
        role="drift",
        shown=_sampled,
        leaves=5,
        group="samples",
    )
    drift_rms_high: float | None = column(
        "its upper end (normal approximation of the mean square, on a log scale)",
        unit="score",
        role="drift",
        shown=_sampled,
        leaves=6,
        group="samples",
    )
    drift_bias: float = column("signed mean of drift", unit="score", role="drift", group="detail")
    drift_relative: float = column(
        "drift_rms / reference_rms",
        role="drift",
        style="percent",
        shown=True,
        leaves=12,
        nonnegative=True,
        compared=7,
    )
    attainable_rms: float = column(
        "drift_rms that careful code in the dtype would have near offset 0: float32 angles, table and "
        "rotation (float64 for float64), one rounding of q and k to the dtype, and one of the scores for "
        "dtypes of 16 bits and fewer",
        unit="score",
        nonnegative=True,
        group="bounds",
    )
    excess: float = column("drift_rms / attainable_rms", role="drift", shown=True, leaves=10)
    floor_rms: float = column(
        "drift_rms of the same implementation at offset 0, with the frequencies that hold at the offset",
        unit="score",
        role="drift",
        nonnegative=True,
        compared=8,
    )
    change_max: float = column(
        "largest |implementation's score at the offset - its own score at offset 0|",
        unit="score",
        role="drift",
        nonnegative=True,
        compared=10,
        group="detail",
    )
    change_rms: float = column(
        "root mean square of that difference; clipped angles add their structural change to it",
        unit="score",
        role="drift",
        shown=True,
        leaves=7,
        nonnegative=True,
        compared=9,
    )
    structural_max: float = column(
        "largest change of the exact scores by the shift itself: new frequencies, clipping",
        unit="score",
        nonnegative=True,
        compared=12,
        group="structure",
    )
    structural_rms: float = column(
        "root mean square of that change; drift does not hold it",
        unit="score",
        nonnegative=True,
        compared=11,
        group="structure",
    )
    predicted_rms: float | None = column(
        "drift_rms predicted from the recipe, for q and k of random phases; nan where numbers may overflow",
        unit="score",
        nonnegative=True,
        group="bounds",
    )
    bound_max: float | None = column(
        "no emulated drift_max exceeds it with q and k of these sizes; inf: overflow; empty: a sample",
        unit="score",
        nonnegative=True,
        group="bounds",
    )
    attention_tv_max: float | None = column(
        "--attention: largest share of a row's weight that drift moves, Σ|p - exact p|/2",
        role="attention",
        shown=_weighed,
        leaves=4,
        compared=14,
        group="attention",
    )
    attention_tv_mean: float | None = column(
        "mean of that share (total variation) over rows and heads",
        role="attention",
        shown=_weighed,
        compared=14,
        group="attention",
    )
    attention_kl_max: float | None = column(
        "largest sum of p* log(p*/p) + p - p* of a row, nats, p* the exact weights: KL(p* || p) where p sums "
        "to 1, which weights that --softmax recipe rounds do not; inf where that lost one",
        unit="nats",
        role="attention",
        compared=14,
        group="attention",
    )
    top1_flips: float | None = column(
        "rows whose largest weight moves to another key; ties do not count",
        role="attention",
        shown=_weighed,
        compared=14,
        group="attention",
    )
    entropy_reference: float | None = column(
        "mean Shannon entropy of the exact rows, nats",
        unit="nats",
        role="attention",
        shown=_weighed,
        leaves=3,
        compared=14,
        group="attention",
    )
    entropy: float | None = column(
        "mean Shannon entropy of the implementation's rows, nats",
        unit="nats",
        role="attention",
        shown=_weighed,
        leaves=2,
        compared=14,
        group="attention",
    )
    weight_reference: float | None = column(
        "mean largest weight of the exact rows",
        role="attention",
        compared=14,
        group="attention",
    )
    weight: float | None = column(
        "mean largest weight of the implementation's rows",
        role="attention",
        least_is_worst=True,
        compared=14,
        group="attention",
    )
    right_token: float | None = column(
        "share of rows that attend most, without a tie, to the token they were built for; empty "
        "unless --qk is diagonal or previous",
        role="attention",
        shown=_with("right_token"),
        shown_after="attention_d",
        least_is_worst=True,
        compared=14,
        group="attention",
    )
    attention_adaptive_tv_mean: float | None = column(
        "attention_tv_mean at the adaptive temperature of arXiv 2410.01104",
        role="attention",
        shown=_weighed,
        shown_after="attention_tv_mean",
        group="attention",
    )
    attention_d: float | None = column(
        "AnchorAttention's D(offset, --anchor), arXiv 2411.13476: Σ over heads and keys of the "
        "mean |A - A at the anchor|; 0 for an implementation that offsets do not change",
        role="attention",
        shown=_weighed,
        leaves=1,
        compared=14,
        group="attention",
    )
    attention_d_logit: float | None = column(
        "the same of the first token's scores, before softmax. Random q and k say nothing "
        "about a trained model's first token",
        unit="score",
        role="attention",
        compared=14,
        group="attention",
    )
    worst_head: int | None = column(
        "head of drift_max; empty where no score differs or some are not finite",
        nonnegative=True,
        group="detail",
    )
    worst_query: int | None = column("query index of drift_max, unshifted", nonnegative=True, group="detail")
    worst_key: int | None = column("key index of drift_max, unshifted", nonnegative=True, group="detail")
    rotation_excess: float | None = column(
        "code: the largest rotation error ÷ allowed; above 1 a pair is rotated wrongly; empty for a recipe",
        role="place",
        shown=_with("rotation_excess"),
        leaves=11,
        compared=13,
        group="code",
    )
    rotation_side: str | None = column(
        "q or k: which of them has that pair; empty where none does", role="place", group="code"
    )
    rotation_batch: int | None = column("its batch element", role="place", group="code")
    rotation_head: int | None = column("its head", role="place", group="code")
    rotation_position: int | None = column("its position, shifted", unit="tokens", role="place", group="code")
    rotation_pair: int | None = column("its pair of dims", role="place", group="code")
    resembles: str | None = column(
        "the diagnosis as a sentence, with where it holds",
        role="place",
        group="code",
        sentence=True,
    )
    key_norm_growth: float | None = column(
        "--rerotate: mean relative change of the norm of the keys against the exact; empty without, of a "
        "sample, and where all keys are 0",
        shown=_with("key_norm_growth"),
        group="keys",
        leaves=13,
    )
    within_tolerance: Within = column(
        "yes or no: drift_relative <= tolerance, and each rotated pair where its position "
        "says; undecided below 100 scores",
        shown=True,
    )
    verdict: Verdict = column("how it behaves; `ropeaudit list verdicts` explains each word", shown=True)
    diagnosis: str | None = column(
        "code of what explains a wrong rotation, or the arithmetic of called code (`ropeaudit list "
        "diagnoses`): a+b are two faults together, a|b explain equally much; empty where nothing is off"
    )
    refused: Refused | None = column(
        "why an implementation was not measured: unsupported, it does not take this dtype, setting or "
        "position; raises, a call failed; empty where it was measured"
    )
    reason: str | None = column("the same in a sentence", sentence=True)

    def key(self) -> tuple[str, str, float]:
        """Return what was requested and of which version: equal for the same cell of a sweep."""
        return self.case, self.version, self.tolerance

    @property
    def why(self) -> str:
        """Why nothing was measured, in words; empty where it was."""
        return self.reason or (REFUSALS[self.refused] if self.refused else "")

    @property
    def setting(self) -> RopeSetting:
        """The RoPE setting."""
        return RopeSetting(
            self.head_dim,
            self.rotary_dim,
            self.base,
            "half" if self.layout == "half" else "interleaved",
            self.scale,
            scalings.parse(self.scaling),
            self.length or 0,
            math.inf if self.clip is None or math.isnan(self.clip) else self.clip,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return column -> value, in the order of `COLUMNS`."""
        return dict(zip(COLUMNS, _values(self), strict=True))


COLUMNS = columns_of(Record)
IDENTITY = COLUMNS.identity
_values: Callable[[Record], tuple[Any, ...]] = attrgetter(*COLUMNS)

# What every file has, CSV without sentences, in the order in which a reader asks.
FIRST = ("implementation", "dtype", "offset")
CORE = (
    *FIRST,
    *("drift_relative", "drift_rms", "drift_max", "change_rms", "excess"),
    *("within_tolerance", "verdict", "diagnosis", "refused", "reason"),
    *("floor_rms", "reference_rms", "reference_error", "distinct_positions", "nonfinite", "scores"),
    *("seq_len", "heads", "head_dim", "base", "mask", "source", "seed", "tolerance", "case", "schema"),
)
# The others by group; what of a request asks for each, which its rows say before anything is measured.
GROUPS: dict[str, Callable[[Identity], bool]] = {
    "code": lambda row: row.environment is not None,
    "attention": lambda row: row.softmax is not None,
    "grids": lambda row: row.grid is not None,
    "samples": lambda row: row.sample is not None,
    "scalings": lambda row: row.scaling != "default",
    "structure": lambda row: row.length is not None or row.clip is not None,
    "keys": lambda row: row.rerotated is not None,
    "bounds": lambda row: False,
    "detail": lambda row: False,
}
EVERY = (*CORE, *(name for group in GROUPS for name in COLUMNS if COLUMNS[name].group == group))
CHOICES = (*COLUMNS, "all", "core", *GROUPS)  # what may be asked for by name
GROUP_HINTS = {
    "code": "--impl has it",
    "attention": "--attention measures it",
    "grids": "--grid has it",
    "samples": "--sample has it",
}


def of_group(group: str) -> tuple[str, ...]:
    """Return the columns of "core", or of one of `GROUPS`."""
    return CORE if group == "core" else COLUMNS.names(lambda column: column.group == group)


def written(
    rows: Sequence[Identity], named: Sequence[str] = (), needed: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the columns that files have of some rows, and those of them that were asked for by name.

    rows: of the request; what was measured decides nothing. named: columns, groups, "core", "all"; without
    any, the core, the settings that are not the usual ones, and the groups that the request is about.
    needed: columns whose groups are there too.
    """
    if named:
        words = {"all": EVERY}
        words |= {group: of_group(group) for group in ("core", *GROUPS)}
        names = [one for name in named for one in words.get(name, (name,))]
        return list(dict.fromkeys(names)), [name for name in named if name not in words]
    rows = [row for row in rows if row.model != UNKNOWN]  # a file said too little of the others
    asked = {COLUMNS[name].group for name in needed} - {""}
    groups = asked | {group for group, about in GROUPS.items() if any(map(about, rows))}
    others = [name for name in COLUMNS if name not in CORE]
    settings = [name for name in others if name in IDENTITY and _is_told(rows, name, asked, groups)]
    measured = [name for name in others if name not in IDENTITY and COLUMNS[name].group in groups]
    return [*FIRST, *settings, *CORE[len(FIRST) :], *measured], []


def _is_told(rows: Sequence[Identity], name: str, asked: Iterable[str], groups: Iterable[str]) -> bool:
    """Return whether files have a setting: its group was asked for, or some row has not what absence implies.

    Of a group that the request is about, settings that every row has are told in any case.
    """
    column = COLUMNS[name]
    if column.group in asked or (column.group in groups and not column.optional):
        return True
    if name == "stages":  # they follow from the recipe, and metadata hold them
        return False
    return any(
        getattr(row, name) != implied(name, {"head_dim": row.head_dim, "heads": row.heads}) for row in rows
    )


def implied(name: str, row: Mapping[str, Any]) -> Any:
    """Return what a row of a file holds of a column that the file lacks."""
    value = COLUMNS[name].implied
    return value(row) if callable(value) else value


def beside(rows: Sequence[Record], columns: Sequence[str]) -> dict[str, Any]:
    """Return what metadata hold of rows, beside the columns of their file: all that was requested.

    constants: settings on which all rows agree. stages: by implementation and dtype. by_case: other settings,
    and sentences, which CSV does not hold.
    """
    known = all(row.model != UNKNOWN for row in rows)
    left = [name for name in IDENTITY if known and name not in (*columns, "stages")]
    constant = {name for name in left if len({getattr(row, name) for row in rows}) == 1}
    varying = [name for name in left if name not in constant]
    told = [name for name in COLUMNS if COLUMNS[name].sentence]
    by_case = {
        row.case: {name: getattr(row, name) for name in varying}
        | {name: text for name in told if (text := getattr(row, name)) is not None}
        for row in rows
    }
    stages = {f"{row.implementation} {row.dtype}": row.stages for row in rows if "=" in row.stages}
    return {
        "constants": {name: getattr(rows[0], name) for name in left if name in constant},
        "stages": {
            name: dict(word.split("=", 1) for word in text.split() if "=" in word)
            for name, text in stages.items()
        },
        "by_case": {case: values for case, values in by_case.items() if values},
    }
