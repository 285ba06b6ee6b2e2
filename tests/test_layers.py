"""A file imports only from floors below its own: the house of the design, read with `ast`."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ropeaudit"

# From the ground up; of several names that fit a module the longest counts.
HOUSE = [
    ["errors", "measuring", "files", "sweeps", "straddling"],
    ["formats", "doubledouble", "circumstances", "data", "threads", "beside", "paths", "streams"],
    ["rope.scaling", "rope.axes", "digests", "surroundings", "files.declared"],
    ["rope.setting", "files.tensorfiles", "files.rope_values"],
    [
        "rope.scaled",
        "rope.rotation",
        "exact_frequencies",
        "masks",
        "files.captured",
        "files.tables",
        "files.checkpoint",
    ],
    ["rope", "rope.frequencies"],
    ["reference", "recipes", "positional", "rope.hf_config"],
    ["inputs"],
    ["rope.presets"],
    ["subjects", "measuring.pairs"],
    [
        "subjects.of_recipe",
        "subjects.exact",
        "subjects.called",
        "subjects.places",
        "subjects.torch_arrays",
        "measuring.scores",
        "measuring.metrics",
        "measuring.drawn",
    ],
    [
        "subjects.emulated",
        "measuring.estimates",
        "subjects.torch_numbers",
        "subjects.third_party",
        "subjects.patience",
        "subjects.signatures",
        "subjects.exchange",
    ],
    [
        "subjects.torch_native",
        "subjects.third_party.adapter",
        "subjects.right",
        "subjects.faults",
        "subjects.ways",
    ],
    ["subjects.allowance", "subjects.likeness", "subjects.fitting"],
    ["subjects.solving"],
    ["subjects.naming"],
    ["subjects.placing"],
    [
        f"subjects.third_party.{name}_rope"
        for name in ("transformers", "xtransformers", "diffusers", "litgpt", "megatron", "onnxruntime", "mlx")
    ]
    + [f"subjects.third_party.{name}" for name in ("ggml_rope", "freqs_cis", "rotary_torch", "curated_rope")],
    ["subjects.own"],
    ["subjects.makers"],
    ["measuring.plan", "records", "bounds.terms"],
    ["bounds.monotone", "measuring.tile", "measuring.attention", "sweeps.part_rows"],
    ["bounds.sums", "attainable"],
    ["measuring.measure", "bounds", "bounds.sampled", "measuring.attention_pass", "measuring.sampled"],
    ["cases"],
    ["recording"],
    ["case_run"],
    ["audit"],
    ["sweeps.sweep"],
    ["sweeps.workers"],
    ["sweeps.cluster"],
    [
        "analyses.men",
        "analyses.frequency_variants",
        "analyses.pair",
        "analyses.limit_search",
        "analyses.limit_tolerance",
        "analyses.shares",
        "analyses.causes",
        "analyses.sampling",
        "analyses.model_load",
        "analyses.model_wide",
        "analyses.model_logits",
        "analyses.model_layers",
    ],
    ["analyses.model_run", "analyses.frequency_hypotheses", "analyses.module_drift"],
    ["analyses.limit_known", "analyses.limit_proof"],
    ["analyses.variants", "analyses.frequency_table"],
    ["analyses.parts", "analyses.remedies", "analyses.limit_guess"],
    ["analyses"],
    ["analyses.limit", "analyses.module_expected", "analyses.trace_mode", "analyses.trace_compare"],
    ["analyses.module_source"],
    ["analyses.module"],
    ["analyses.trace"],
    ["testing"],
    ["reports.numbers"],
    ["reports"],
    ["reports.settings", "reports.csv", "reports.parquet", "reports.curves"],
    ["reports.reading", "reports.verdicts"],
    ["reports.headlines"],
    ["reports.limit_words"],
    ["reports.drift", "reports.table", "reports.json", "reports.plan", "sweeps.sweep_file"],
    [
        "reports.markdown",
        "reports.jsonl",
        "reports.decay",
        "reports.limit",
        "reports.parity",
        "reports.rerotate",
        "reports.history",
        "reports.trace",
        "reports.module",
        "reports.model_rows",
        "reports.html_text",
        "reports.diff",
        "reports.summary",
    ],
    [
        "reports.explain_rows",
        "reports.model",
        "reports.html_svg",
        "reports.html_table",
        "reports.html_made",
        "reports.merged",
    ],
    ["reports.html_series"],
    ["reports.html"],
    ["reports.explain"],
    ["reports.plots.style"],
    [f"reports.plots.{kind}" for kind in ("bands", "decay", "drift", "heatmap", "safe", "stages")],
    ["reports.plots"],
    ["cli.overwriting"],
    ["cli", "cli.options", "cli.values", "cli.gates", "cli.progress", "cli.outfiles"],
    ["cli.output", "cli.settings", "cli.rows"],
    ["cli.work", "cli.baselines", "cli.sweeping"],
    [
        "cli.shift",
        "cli.list",
        "cli.env",
        "cli.frequencies",
        "cli.decay",
        "cli.parity",
        "cli.rerotate",
        "cli.limit",
        "cli.explain",
        "cli.history",
        "cli.trace",
        "cli.module",
        "cli.model",
        "cli.report",
        "cli.diff",
        "cli.summary",
        "cli.plot",
        "cli.merge",
    ],
    ["cli.main"],
    ["", "__main__"],
]
FLOORS = {name: level for level, names in enumerate(HOUSE) for name in names}


def floor(module: str) -> int:
    parts = module.split(".")
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return FLOORS[next((name for name in names if name in FLOORS), "")]


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ropeaudit":
            base = node.module.removeprefix("ropeaudit").lstrip(".")
            for alias in node.names:
                child = f"{base}.{alias.name}".lstrip(".")
                there = PACKAGE / Path(*child.split("."))
                found.append(child if there.with_suffix(".py").exists() or there.is_dir() else base)
    return found


def upward(package: Path = PACKAGE) -> list[str]:
    wrong = []
    for path in sorted(package.rglob("*.py")):
        own = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        own = "" if own == "__init__" else own
        for other in imports(path):
            if floor(other) >= floor(own) and other != "":
                wrong.append(f"{own or '__init__'} ({floor(own)}) imports {other} ({floor(other)})")
    return wrong


def test_no_file_imports_from_its_own_floor_or_above() -> None:
    assert upward() == []


def test_the_check_sees_an_upward_import(tmp_path: Path) -> None:
    (tmp_path / "formats.py").write_text("from ropeaudit.audit import shift\n")
    assert upward(tmp_path) == [f"formats (1) imports audit ({floor('audit')})"]


def test_the_judge_shares_no_rotation_code_with_the_accused() -> None:
    assert not {"rope.rotation", "rope.frequencies", "recipes"} & set(imports(PACKAGE / "reference.py"))
