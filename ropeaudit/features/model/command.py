"""The command `ropeaudit model`."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.help import command
from ropeaudit.console.options import ReportOptions, axis, calling_options, report_options
from ropeaudit.console.parameters import INTEGERS, NAMES, NATURAL, WORD, number, one_of

_KINDS = ("summary", "layer", "pair")  # of model/report.py, not loaded for --help


@command(
    epilog="Needs transformers (pip install 'ropeaudit[model]'). Exit code: 0 done, 1 the model itself is "
    "wrong (verdict wrong_frequencies, wrong_rotation, wrong_scale, wrong_decode or inaccurate), 2 bad usage "
    "or input."
)
@click.argument("folder", metavar="FOLDER")
@click.option("--text", metavar="FILE", help="Text to read, through the folder's tokenizer.")
@click.option(
    "--tokens", metavar="N|IDS", help="Random tokens, or most of a text; or ids: 5,17,3.  [default: 128]"
)
@click.option("--seed", type=NATURAL, default=0, metavar="N", help="Seed of random tokens.  [default: 0]")
@axis("--offset", INTEGERS, "Integers added to every position.", "1000,32k")
@axis("--dtype", NAMES, "Number formats of the model: fp64, fp32, fp16, bf16.", "fp32,bf16")
@click.option(
    "--threshold",
    type=number("0.01"),
    default=0.01,
    metavar="X",
    help="Score drift that a layer may have.  [default: 0.01]",
)
@click.option(
    "--by",
    type=one_of("kind of rows", _KINDS),
    default="summary",
    metavar="ROWS",
    help=f"Rows: {', '.join(_KINDS)}.  [default: summary]",
)
@click.option("--save-qk", metavar="FILE", help="Write q and k before RoPE as .safetensors, for shift --qk.")
@click.option(
    "--device",
    type=WORD,
    metavar="NAME",
    help="Where the model runs, in every dtype: cpu, cuda or cuda:N.  [default: cpu]",
)
@click.option("--trust-remote-code", is_flag=True, help="Execute the Python code that the folder brings.")
@calling_options
@report_options
def model(by: str, threshold: float, output: ReportOptions, **asked: Any) -> int:
    """Run a causal language model at shifted positions, and say whether precision or structure is to blame.

    FOLDER is a local checkpoint: config.json, *.safetensors, a tokenizer if there is one. Beside every dtype
    runs a judge that is float64 throughout, rotary tables, norms and softmax included: the model as it is
    loaded. What it holds is compared with what its config builds, and each layer's rotation with config.json.
    """
    from ropeaudit.console import delivery
    from ropeaudit.features.model.analysis import WRONG
    from ropeaudit.features.model.report import COLUMNS, run_in_child
    from ropeaudit.reports import Report, with_metadata
    from ropeaudit.reports.numbers import counted

    columns = output.chosen_columns(COLUMNS[by], f"(of --by {by})")
    asked |= {"offsets": list(asked.pop("offset")), "dtypes": list(asked.pop("dtype"))}
    nothing = Report([], list(COLUMNS[by]), [])
    return delivery.run_and_deliver(
        lambda progress: run_in_child(asked, columns, by, threshold, progress),
        lambda results, metadata: with_metadata(results[-1][1] if results else nothing, metadata),
        output,
        done=lambda results: counted(len(results), "case"),
        broken=lambda results: [f"failed: {word}" for word, _ in results if word in WRONG][:1],
    )
