"""One question, one answer: is this right, up to which position, and what is wrong with it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Unpack

from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names, OnProgress, RopeArguments
from ropeaudit.audits.cases import Case
from ropeaudit.conformance import returned, vector_case
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.conformance.finding import INTERRUPTED, JUDGED, Finding, faulty
from ropeaudit.conformance.vector_case import MANIFEST
from ropeaudit.errors import BadInput, ForeignError, RopeAuditError, UnknownName, UsageError, did, unusable
from ropeaudit.features.check import code_target, waivers
from ropeaudit.features.check.checked import NONE, Checked, CheckOptions, Kind, Note, Progress, interrupted
from ropeaudit.rope import presets
from ropeaudit.runtime import doing
from ropeaudit.subjects import factories
from ropeaudit.tensor_files import gguf_files


@arguments.checked
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
    tried with heads of other sizes too. device: where code is called, and a checkpoint's model runs. text,
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
        device=device,
        environments=arguments.listed(under),
        table=table,
        arguments=given or {},
    )
    [case] = arguments.cases_of(None, rope)
    case = replace(case, grid=grid, axes=axes)
    results = run(arguments.listed(targets), case, options, on_progress or arguments.silent)
    return waivers.applied(results, waivers.read(waive) if waive is not None else [], waivers.today())


def run(
    targets: Sequence[str],
    case: Case,
    options: CheckOptions,
    progress: Progress,
    note: Note = lambda findings: None,
) -> Iterator[Checked]:
    """Yield what was checked, target by target. note gets how code is called.

    Raises: see `check`; of code that cannot be called once the other targets are checked.
    """
    kinds, errors = [kind(target) for target in targets], list[RopeAuditError]()
    _check(kinds, case, options)
    steps = zip(targets, kinds, arguments.steps(progress, len(targets)), strict=True)
    for done, (target, which, on_progress) in enumerate(steps, 1):
        doing.begin(target)
        results = _of(target, which, case, options, on_progress, note, several=kinds.count("case") > 1)
        try:
            yield from _answered(target, which, results, targets[done:], alone=len(targets) == 1)
        except RopeAuditError as error:
            if which != "code":
                raise
            errors.append(error)
    if errors:  # each has a row
        errors[0].after_all = len(targets) > 1
        raise errors[0]


def _of(
    target: str,
    which: Kind,
    case: Case,
    options: CheckOptions,
    progress: Progress,
    note: Note,
    several: bool,
) -> Iterator[Checked]:
    """Return the checks of a target of a kind; several: whether other cases of vectors are checked too."""
    if which == "case":
        return _of_case(target, options, several)
    if which == "code":
        return code_target.checks(target, case, options, progress, note)
    # in-function: they import what models are read with
    from ropeaudit.features.check import checkpoint_target, config_target

    if which == "gguf":
        return checkpoint_target.of_gguf(target, case, note)
    if which == "checkpoint":
        return checkpoint_target.checks(target, case, options, progress, note)
    alone = replace(case, model=None, config=None)
    return config_target.checks(target, which, alone, options, progress)


def _answered(
    target: str,
    which: Kind,
    results: Iterable[Checked],
    later: Sequence[str],
    *,
    alone: bool,
) -> Iterator[Checked]:
    """Yield the checks of a target, and a failure where no check judges its RoPE, or one is at fault.

    A question without an answer is no pass, nor is one that the user or an error broke off: what is later and
    not begun is named then. alone: whether it is the one target; an error that is all there is has no row.
    """

    def failed(finding: Finding) -> Checked:
        return Checked(target, which, NONE, NONE, None, 0, finding)

    reasons, said = dict[str, str](), False
    try:
        for checked in results:
            reasons.setdefault(checked.finding.status, checked.finding.detail)
            said = checked.finding.check == INTERRUPTED
            yield replace(checked, finding=interrupted(checked.finding, later, "target"))
    except (KeyboardInterrupt, RopeAuditError) as stop:
        ours = isinstance(stop, RopeAuditError)
        why = stop.typed if isinstance(stop, RopeAuditError) else "it was not checked to its end"
        if not said and (not ours or reasons or not alone):
            goes_on = ours and which == "code"
            stopped = Finding(INTERRUPTED, "fail", f"no pass: {why}")
            yield failed(stopped if goes_on else interrupted(stopped, later, "target"))
        raise
    except Exception as error:
        theirs = isinstance(error, ForeignError)
        if unusable(error) is not None or (isinstance(error, (MemoryError, OSError)) and not theirs):
            raise
        raised = Finding(which, "fail", f"it {did(error)}")
        yield failed(raised if theirs else faulty(which, error))
        return
    if not reasons.keys() & {*JUDGED, "nothing to check"}:
        reason = reasons.get("info") or reasons.get("not applicable")
        yield failed(Finding("judged", "fail", f"no check judges it{f': {reason}' if reason else ''}"))


def _check(kinds: Sequence[Kind], case: Case, options: CheckOptions) -> None:
    """Raise UsageError for options that go with none of the targets."""
    for refused, message in _refusals(kinds, case, options):
        if refused:
            raise UsageError(message)
    if "code" in kinds:
        code_target.check_options(options)


def _refusals(kinds: Sequence[Kind], case: Case, options: CheckOptions) -> Iterator[tuple[bool, str]]:
    """Yield whether an option is in the wrong place, and what to do, in the order in which it is told."""
    code, vectors = "code" in kinds, "case" in kinds
    own, says = "it goes with FILE.py:NAME; leave it out", "the manifest of a case says its"
    back = "a case of vectors is checked by what a kernel wrote back"
    yield vectors and options.returned is None, f"{back}; add --returned FOLDER"
    yield vectors and case != Case(), f"{says} setting; leave out the options of a RoPE setting"
    ranged = bool(options.dtypes) or options.up_to is not None
    yield vectors and ranged, f"{says} dtype and positions; leave out --dtype and --up-to"
    goes = "goes with a case of vectors, and no target is one"
    yield not vectors and options.returned is not None, f"--returned {options.returned!r} {goes}"
    wrapped = options.write_wrapper is not None and kinds.count("code") != 1
    yield wrapped, "--write-wrapper is for one target that is code; leave it out, or name one"
    named = case.model is not None or case.config is not None
    says = "--model and --config say the setting of code; name the model or file as the target"
    yield named and not code and "gguf" not in kinds, says
    reads = options.text is not None or options.tokens is not None
    yield reads and "checkpoint" not in kinds, "--text and --tokens go with the folder of a checkpoint"
    if not code:
        up_to = f"--up-to {options.up_to} is not a number of positions from 1 up; try 128k"
        yield options.up_to is not None and options.up_to < 1, up_to
        yield tuple(options.environments) != DEFAULT, f"--under says what code is called under; {own}"
        runs = "is where code is called, or a checkpoint's model runs (--tokens); leave it out"
        yield options.device is not None and not reads, f"--device {options.device} {runs}"
        yield options.thorough, f"--thorough says how code is checked; {own}"
        yield options.head_dims, f"--head-dims says how code is checked; {own}"
        of_code = {"--order": options.order, "--table": options.table}
        of_code |= {"--arg": next(iter(options.arguments), None)}
        of_code |= {"--mrope": case.mrope, "--axes": case.axes, "--grid": case.grid}
        for flag, value in of_code.items():
            yield value is not None, f"{flag} {value} goes with own code, FILE.py:NAME; leave it out"


def _of_case(target: str, options: CheckOptions, several: bool) -> Iterator[Checked]:
    """Yield the checks of a case; several: whether others are checked, whose outputs are in folders by name.

    Raises: BadInput, UnknownName.
    """
    case = vector_case.read(target)
    spec, output = case.spec, Path(options.returned or "")
    if several and not output.suffix:
        output /= case.folder.resolve().name
    last = spec.offsets[-1] + spec.seq_len
    for finding in returned.findings(case.folder, output, options.recipe):
        yield Checked(target, "case", case.digest[:19], spec.dtype.name, spec.setting, last, finding)


_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


def kind(target: str) -> Kind:
    """Return what a target is. Raises: UnknownName, UsageError, BadInput."""
    from ropeaudit.subjects import third_party  # in-function: it reads a file for each package

    path = Path(target)
    if (".py:" in target and factories.is_own(target)) or third_party.is_known(target):
        return "code"
    if path.is_dir():
        there: dict[Kind, bool] = {
            "case": (path / MANIFEST).is_file(),
            "checkpoint": any(next(path.glob(pattern), None) for pattern in _WEIGHTS),
            "config": (path / "config.json").is_file(),
        }
        if found := next((which for which, here in there.items() if here), None):
            return found
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
    if get_close_matches(target, known, cutoff=0.8):  # a folder that is not there is not nearly a name
        raise UnknownName("target", target, known)
    raise UsageError(
        f"{target!r} is no target: there is no such file or folder; give FILE.py:NAME, mypkg.rope:NAME, a "
        "config.json, a model's folder, a .gguf file, or a name of `ropeaudit list implementations` or "
        "`ropeaudit list models`"
    )
