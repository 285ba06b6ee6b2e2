"""ropeaudit model: a whole language model, the same tokens at shifted positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console.options import axis, report_options

if TYPE_CHECKING:
    from ropeaudit.features.model.analysis import ModelAudit


@click.command(
    epilog="Needs transformers (pip install 'ropeaudit[model]'). Exit code: 0 done, 2 bad usage or input."
)
@click.argument("folder", metavar="FOLDER")
@click.option("--text", metavar="FILE", help="Text to read, through the folder's tokenizer.")
@click.option(
    "--tokens", metavar="N|IDS", help="Random tokens, or most of a text; or ids: 5,17,3.  [default: 128]"
)
@click.option("--seed", metavar="N", help="Seed of random tokens.  [default: 0]")
@axis("--offset", "Integers added to every position.", "1000,32k")
@axis("--dtype", "Number formats of the model: fp64, fp32, fp16, bf16.", "fp32,bf16")
@click.option("--threshold", metavar="X", help="Score drift that a layer may have.  [default: 0.01]")
@click.option("--by", default="summary", metavar="KIND", help="Rows: summary, layer, head or pair.")
@click.option("--save-qk", metavar="FILE", help="Write q and k before RoPE as .safetensors, for shift --qk.")
@click.option("--trust-remote-code", is_flag=True, help="Execute the Python code that the folder brings.")
@report_options
def model(**options: Any) -> int:
    """Run a causal language model at shifted positions, and say whether precision or structure is to blame.

    FOLDER is a local checkpoint: config.json, *.safetensors, a tokenizer if there is one. Beside every dtype
    runs a judge that is float64 throughout, rotary tables, norms and softmax included.
    """
    from ropeaudit.console import output, rows, values
    from ropeaudit.errors import UnknownName
    from ropeaudit.features.model import load
    from ropeaudit.features.model.columns import COLUMNS, KINDS
    from ropeaudit.features.model.report import model_report
    from ropeaudit.runtime import run_metadata

    kind = options["by"]
    if kind not in KINDS:
        raise UnknownName("kind of rows", kind, KINDS)
    columns = rows.chosen_columns(options, COLUMNS[kind], f"(of --by {kind})")
    given = options["threshold"]
    threshold = 0.01 if given is None else values.number(given, "--threshold", "0.01")
    audit = _audit(options)
    with output.opened(options["outputs"]) as files:
        audit.check()
        results, interrupted = rows.gathered(audit.run, options["quiet"])
        if results or not interrupted:
            about = run_metadata.gather()
            report = model_report(audit, results, kind, threshold, columns, load.versions(), about)
            output.deliver(report, files, options, interrupted)
    if interrupted:
        output.say_interrupted(f"{len(results)} cases", files)
    return 130 if interrupted else 0


def _audit(options: dict[str, Any]) -> ModelAudit:
    """Turn options into what is audited. Raises: RopeAuditError."""
    from ropeaudit.arithmetic.formats import parse
    from ropeaudit.console import values
    from ropeaudit.errors import UsageError
    from ropeaudit.features.model import load, tokens
    from ropeaudit.features.model.analysis import ModelAudit

    seed = 0 if options["seed"] is None else values.integer(options["seed"], "--seed")
    if seed < 0:
        raise UsageError(f"--seed {seed} is negative; try --seed 0")
    dtypes = [parse(name) for name in values.names(options["dtype"], "--dtype") or ("fp32", "bf16")]
    offsets = values.integers(options["offset"], "--offset") or [1000, 32768]
    folder = load.open_folder(options["folder"], options["trust_remote_code"])
    chosen_tokens = tokens.read_tokens(folder, options["text"], options["tokens"], seed)
    return ModelAudit(folder, chosen_tokens, list(dict.fromkeys(dtypes)), offsets, options["save_qk"])
