"""`check`: which kind each target is, and the checks of all targets in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from ropeaudit import data
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names, OnProgress, RopeArguments
from ropeaudit.audits.cases import Case
from ropeaudit.conformance import returned, vector_case
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.conformance.finding import INTERRUPTED, JUDGED, Finding, faulty
from ropeaudit.conformance.vector_case import MANIFEST
from ropeaudit.errors import (
    BadInput,
    ForeignError,
    RopeAuditError,
    UnknownName,
    UsageError,
    did,
    unusable_package,
)
from ropeaudit.features.check import code_target, waivers
from ropeaudit.features.check.checked import (
    Checked,
    CheckOptions,
    Kind,
    Note,
    Progress,
    Target,
    not_started_clause,
)
from ropeaudit.rope import presets
from ropeaudit.rope.config_parts import path_and_part
from ropeaudit.runtime import doing
from ropeaudit.subjects import factories
from ropeaudit.tensor_files import gguf_files


@arguments.public
def check(
    targets: Names,
    dtypes: Names | None = None,
    *,
    up_to: int | None = None,
    recipe: str | None = None,
    order: str | None = None,
    seed: int = 0,
    thorough: bool = False,
    head_dims: bool = False,
    negative: bool = False,
    xpos: bool = False,
    device: str | None = None,
    text: str | None = None,
    tokens: str | None = None,
    under: Names = DEFAULT,
    waive: str | None = None,
    returned: str | None = None,
    table: str | None = None,
    given: Mapping[str, object] | None = None,
    grid: str | None = None,
    axes: str | None = None,
    on_progress: OnProgress | None = None,
    **rope: Unpack[RopeArguments],
) -> Iterator[Checked]:
    """Check targets of any kind: own code, named implementations, models, configs, checkpoints, cases.

    Yields one Checked per target, dtype and check, in that order.
    targets: FILE.py:NAME, package.module:NAME, a name of `list implementations` or `ropeaudit list models`,
    a config.json, a checkpoint, a case of `ropeaudit.vectors`. dtypes: by default bf16 for code, bf16, fp16
    and fp32 for the others.
    up_to: number of positions that are checked; by default the model's maximum, else 131,072, and for configs
    as many as `limit` looks at. recipe: the one that code claims to follow (by default what right code in the
    dtype explains is allowed), for configs the one that is judged (hf by default).
    order: of the axes of own code, such as "bhsd". thorough: whether torch code is compiled too, and any
    three axes of served calls go together. head_dims: whether code is
    tried with heads of other sizes too. negative: whether it is called at negative positions too, as code
    that takes relative ones is. xpos: whether the lengths that code of
    xPos gives q and k are not judged. device: where code is called, and a checkpoint's model runs. text,
    tokens: what that model reads, as in `ropeaudit.model`; without them it is not run. under: environments
    that code is called in too, such as "tf32"; "none" for none. waive: a TOML file of accepted failures.
    returned: where a kernel wrote what a case asks for. table: the code that makes cos and sin of code that
    takes them. given: arguments of own code, by name. grid, axes: of code whose positions have several axes,
    as in `Case`.
    rope: the fields of `Case` that choose a RoPE setting.
    Raises: UsageError, UnknownName, BadInput, MissingPackage.
    """
    formats = () if dtypes is None else tuple(arguments.formats(dtypes))
    options = CheckOptions(
        *(formats, up_to, recipe, order, seed, text, tokens, returned),
        thorough=thorough,
        head_dims=head_dims,
        negative=negative,
        xpos=xpos,
        one_layer="layer" in rope,
        device=device,
        environments=tuple(arguments.as_list(under)),
        table=table,
        arguments=given or {},
    )
    [case] = arguments.cases_from(None, rope)
    case = replace(case, grid=grid, axes=axes)
    results = run(arguments.as_list(targets), case, options, on_progress or arguments.ignore_progress)
    return waivers.applied(results, waivers.read(waive) if waive is not None else [], waivers.today())


def run(
    targets: Sequence[str],
    case: Case,
    options: CheckOptions,
    progress: Progress,
    note: Note = lambda findings: None,
) -> Iterator[Checked]:
    """Yield the checks of all targets. note: takes findings about how code is called.

    Raises: see `check`; the error of a single target only after the others are checked.
    """
    kinds, errors = [kind(target) for target in targets], list[RopeAuditError]()
    _refuse_misplaced_options(kinds, case, options)
    by_name = kinds.count("case") > 1 and not Path(options.returned or "").is_file()

    def checks_of(number: int) -> Iterator[Checked]:
        own, name = options, targets[number]
        doing.begin(name)
        if kinds[number] == "case" and by_name:  # returned files are in folders of the cases' names
            folder = Path(name) if Path(name).is_dir() else Path(name).parent
            own = replace(options, returned=str(Path(options.returned or "", folder.resolve().name)))
        left = not_started_clause(targets[number + 1 :], "target")
        try:
            yield from _checks_of_target(
                Target(name, kinds[number], case, own, note), left, len(targets) == 1
            )
        except RopeAuditError as error:
            errors.append(error)

    every = doing.in_parts([checks_of(number) for number in range(len(targets))])
    yield from doing.each(every, lambda: doing.reporting_to(progress))
    if errors:  # each is a row too
        errors[0].after_all = len(targets) > 1
        raise errors[0]


def _checks_of_target(target: Target, left: str, alone: bool) -> Iterator[Checked]:
    """Yield the checks of a target, and a failure if none judges it or it is interrupted.

    left: a clause about targets that were not started. alone: whether there is no other target; then an
    error without checks before it is raised without a row.
    """
    file, function = _CHECKS[target.kind]
    reasons = dict[str, str]()
    why = Finding(INTERRUPTED, "fail", "no pass: it was not checked to its end")
    broken = target.checked(why)
    try:  # in-function: they import what models are read with
        for checked in getattr(import_module(f"ropeaudit.features.check.{file}"), function)(target):
            if checked.finding.check == INTERRUPTED:  # with the parts that were not started
                broken = checked
                continue
            reasons.setdefault(checked.finding.status, checked.finding.detail)
            yield checked
    except KeyboardInterrupt:
        detail = f"{broken.finding.detail}{left}"
        yield replace(broken, finding=replace(broken.finding, detail=detail))
        raise
    except RopeAuditError as error:
        if reasons or not alone:
            yield target.checked(replace(why, detail=f"no pass: {error.in_line}"))
        raise
    except Exception as error:
        theirs = isinstance(error, ForeignError)
        if unusable_package(error) is not None or (isinstance(error, (MemoryError, OSError)) and not theirs):
            raise
        raised = Finding(target.kind, "fail", f"it {did(error)}")
        yield target.checked(raised if theirs else faulty(target.kind, error))
        return
    if not reasons.keys() & {*JUDGED, "nothing to check"}:
        reason = reasons.get("info") or reasons.get("not applicable")
        why = Finding("judged", "fail", f"no check judges it{f': {reason}' if reason else ''}")
        yield target.checked(why)


# kind -> file in this folder, and its function that yields the checks
_CHECKS: dict[Kind, tuple[str, str]] = {
    "code": ("code_target", "checks"),
    "model": ("config_target", "checks"),
    "config": ("config_target", "checks"),
    "checkpoint": ("checkpoint_target", "checks"),
    "gguf": ("checkpoint_target", "of_gguf"),
    "case": ("analysis", "of_case"),
}


def _refuse_misplaced_options(kinds: Sequence[Kind], case: Case, options: CheckOptions) -> None:
    if "case" in kinds:
        says = "the manifest of a case says its"
        if options.returned is None:
            back = "what a kernel wrote back; add --returned FOLDER"
            raise UsageError(f"a case of vectors is checked by {back}")
        if case != Case():
            raise UsageError(f"{says} setting; leave out the options of a RoPE setting")
        if options.dtypes or options.up_to is not None:
            raise UsageError(f"{says} dtype and positions; leave out --dtype and --up-to")
    runs = options.text is not None or options.tokens is not None
    present = {which for which in kinds if which != "checkpoint" or runs}
    table = data.table("checks.toml")
    for name, needed in table["needs"].items():
        usual, given = (Case(), case) if hasattr(case, name) else (CheckOptions(), options)
        value = getattr(given, name)
        if value != getattr(usual, name) and not present & set(needed):
            flag = {"arguments": "arg", "environments": "under"}.get(name, name.replace("_", "-"))
            typed = "" if value is True else f" {value if isinstance(value, str) else ','.join(value)}"
            words = " or ".join(table["targets"][which] for which in needed)
            instead = " or name the model or file as the target" * (name in ("model", "config"))
            raise UsageError(f"--{flag}{typed} goes with {words}; leave it out{instead}")
    if options.write_wrapper is not None and kinds.count("code") != 1:
        raise UsageError("--write-wrapper is for one target that is code; leave it out, or name one")
    if "code" in kinds:
        code_target.refuse_bad_options(options)
    elif options.up_to is not None and options.up_to < 1:
        raise UsageError(f"--up-to {options.up_to} is not a number of positions from 1 up; try 128k")


def of_case(target: Target) -> Iterator[Checked]:
    """Yield the checks of a case of vectors. Raises: BadInput, UnknownName."""
    case, options = vector_case.read(target.name), target.options
    spec, output = case.spec, Path(options.returned or "")
    about: dict[str, Any] = {"version": case.digest[:19], "setting": spec.setting}
    about["up_to"] = spec.offsets[-1] + spec.seq_len
    for finding in returned.findings(case.folder, output, options.recipe):
        yield target.checked(finding, spec.dtype.name, **about)


_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


def kind(target: str) -> Kind:
    """Return the kind of a target. Raises: UnknownName, UsageError, BadInput."""
    from ropeaudit.subjects import third_party  # in-function: it reads a file for each package

    path = Path(path_and_part(target)[0])
    if (".py:" in target and factories.is_own(target)) or third_party.is_known(target):
        return "code"
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return "case"
        if any(next(path.glob(pattern), None) for pattern in _WEIGHTS):
            return "checkpoint"
        if (path / "config.json").is_file():
            return "config"
        raise BadInput(
            f"{path} holds neither a config.json nor weights nor a manifest.json of `ropeaudit vectors`; "
            "give a model's folder"
        )
    if path.is_file():
        if path.suffix == ".json":
            return "case" if path.name == MANIFEST else "config"
        if gguf_files.is_gguf(path):
            return "gguf"
        if any(path.match(pattern) for pattern in _WEIGHTS):
            return "checkpoint"
    if factories.is_own(target):
        return "code"
    models = [model.name for model in presets.all_presets()]
    if target in models:
        return "model"
    known = [*third_party.ENTRIES, *models]
    if get_close_matches(target, known, cutoff=0.8):  # else it is more likely a missing folder
        raise UnknownName("target", target, known)
    raise UsageError(
        f"{target!r} is no target: there is no such file or folder; give FILE.py:NAME, mypkg.rope:NAME, a "
        "config.json, a model's folder, a .gguf file, or a name of `ropeaudit list implementations` or "
        "`ropeaudit list models`"
    )
