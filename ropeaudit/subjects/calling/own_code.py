"""Your own function, class or module under audit: package.module:name, or path/to/file.py:name.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.errors import BadInput, RopeAuditError, UnknownName, UsageError
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.runtime import digests, process_state
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays, fitting, signatures, ways
from ropeaudit.subjects.calling.fitting import Fit
from ropeaudit.subjects.calling.implementation import Rotate, error_line
from ropeaudit.subjects.calling.timeout import patiently
from ropeaudit.subjects.calling.ways import NONE, Answer, Changes
from ropeaudit.subjects.placement.exact_rotation import half_split

_EXAMPLE = "try --impl mypackage.rope:apply_rope or --impl path/to/file.py:apply_rope"


def load(spec: str, order: str | None = None, changes: Changes = NONE, alone: bool = False) -> Own:
    """Return the implementation that a spec names; its module is imported. Raises: UsageError, BadInput.

    changes: of the stages of tables that it is given; alone: whether there is nothing else to change.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name.isprintable() or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"--impl {spec!r} does not say which function; {_EXAMPLE}")
    module, home = _module(where)
    thing = module
    for part in name.split("."):
        if not hasattr(thing, part):
            names = [one for one in dir(thing) if not one.startswith("_") and callable(getattr(thing, one))]
            raise UnknownName(f"name in {where}:", part, names or ["nothing that can be called"])
        thing = getattr(thing, part)
    if not callable(thing):
        raise UsageError(
            f"--impl {spec}: it is of type {type(thing).__name__} and cannot be called; {_EXAMPLE}"
        )
    name = spec if spec.isprintable() else repr(spec)[1:-1]
    result = Own(name, thing, order, _version(module), changes, home)
    result.alone = alone
    return result


def _module(where: str) -> tuple[Any, process_state.State]:
    """Import a module by its name, or a file by its path; return the state in which it leaves the process."""
    by_path = where.endswith(".py") or os.sep in where
    path = Path(where)
    if by_path and not path.is_file():
        raise BadInput(f"--impl {where}: there is no such file; {_EXAMPLE}")
    with contextlib.suppress(OSError):  # a folder that is gone
        if not by_path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())

    def imported() -> tuple[Any, process_state.State]:
        if by_path and b"torch" in path.read_bytes():  # loaded first, it can be seeded
            with contextlib.suppress(ImportError):
                import torch  # noqa: F401
        process_state.seed()
        result = _file(path) if by_path else importlib.import_module(where)
        process_state.seed_if_chance()
        return result, process_state.now()

    try:
        return patiently(imported, f"import of {where}")  # type: ignore[no-any-return]
    except RopeAuditError:
        raise
    except ModuleNotFoundError as error:
        if error.name and not by_path and (where == error.name or where.startswith(f"{error.name}.")):
            raise BadInput(
                f"--impl {where}: there is no module {error.name!r} here; run from the folder that holds it, "
                f"or {_EXAMPLE}"
            ) from None
        raise BadInput(f"--impl {where} cannot be imported: {error_line(error)}") from None
    except Exception as error:  # whatever a module raises is said
        raise BadInput(f"--impl {where} cannot be imported: {error_line(error)}") from None


def _version(module: Any) -> str:
    """Return the digest of the file that a module was made from; none where there is no such file."""
    try:
        return digests.of_bytes(Path(module.__file__).read_bytes())
    except (AttributeError, TypeError, OSError):
        return "none"


def _file(path: Path) -> Any:
    """Execute a file as a module that sees its own folder."""
    name = f"ropeaudit_own_{path.stem}"
    result = importlib.util.spec_from_file_location(name, path)
    if result is None or result.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(result)
    sys.modules[name] = module  # dataclasses look themselves up there
    folder = str(path.resolve().parent)  # the module may go to another one
    sys.path.insert(0, folder)
    try:
        result.loader.exec_module(module)
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return module


class Own:
    """A function, an nn.Module, a class or a factory that the user wrote; an `Implementation`.

    version: the digest of its file. findings: what is worth knowing of how it is called and what it does, in
    the order it was seen. changes: of the stages of tables that it is given.
    """

    layouts: tuple[Layout, ...] = ("half", "interleaved")

    def __init__(
        self,
        name: str,
        thing: Any,
        order: str | None = None,
        version: str = "none",
        changes: Changes = NONE,
        home: process_state.State | None = None,
    ) -> None:
        """Keep what is to be called; nothing is called here. home: the state in which its calls begin."""
        self._requested, self.alone = changes, False
        self.changes: Changes = {stage: fmt for stage, fmt in changes.items() if stage in ways.TABLES}
        self.name, self.thing, self.order, self.version = name, thing, order, version
        self.home = home
        self.findings: list[str] = []
        self._fits: dict[RopeSetting, Fit] = {}
        self.engine = "numpy" if signatures.wants_numpy(thing) else "torch"

    def fit(self, setting: RopeSetting) -> Fit:
        """Return how it is called, found out once a setting. Raises: UsageError."""
        key = replace(setting, layout="half", scale=1.0)
        if key not in self._fits:
            with process_state.at_home(self.home):
                result = fitting.fit(lambda: self.built(key), self.name, key, self.order)
            self.engine, self._fits[key] = result.way.engine, result
            self._check_changes(result)
            self._note(f"called as {result.way}, layout {result.layout}{_sureness(result)}")
            if result.permuted:
                self._note("takes interleaved pairs and returns them half-split, which leaves scores alone")
        return self._fits[key]

    def _check_changes(self, results: Fit) -> None:
        """Raise UsageError for changes that reach nothing; note those that reach recipes alone."""
        tables = {"cos", "freqs"} & set(results.way.form.roles)
        if not tables:
            self.changes = {}
        nonfinite = [stage for stage in self._requested if stage not in self.changes]
        what = f"takes no tables from here ({results.way.form})" if not tables else "computes the rest itself"
        if nonfinite and self.alone:
            reach = f"; {', '.join(ways.TABLES)} of the tables can be changed" if tables else ""
            raise UsageError(
                f"--set {nonfinite[0]}: {self.name} {what}{reach}; add --recipe, or leave it out"
            )
        if nonfinite:
            self._note(f"{what}: --set {', '.join(nonfinite)} changes the recipes alone")

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Nothing is refused before it is tried."""
        return ""

    def built(self, setting: RopeSetting) -> Any:
        """Return a new instance, or the function itself, which has but one."""
        thing, built = self.thing, None
        if inspect.isclass(thing) or (not is_module(thing) and signatures.is_factory(thing)):
            built = signatures.building(thing)
            if built is None:
                raise UsageError(
                    f"{self.name} needs arguments that are not known here; give a function, or a class that "
                    "takes nothing but dim, base and a largest position"
                )
            given = {name: ways.built(role, setting) for name, role in built.items()}
            try:
                with process_state.at_home(self.home):
                    thing = patiently(lambda: self.thing(**given), self.name)
            except RopeAuditError:
                raise
            except Exception as error:  # whatever it raises is said
                raise UsageError(f"{self.name} cannot be built with {given}: {error_line(error)}") from None
            if not callable(thing):
                raise UsageError(f"{self.name} makes a {type(thing).__name__}, which cannot be called")
            return thing
        return copy.deepcopy(thing) if is_module(thing) else thing

    def fresh(self, setting: RopeSetting, dtype: Format) -> Rotate:
        """Return the rotation of a new instance, as of q; of a function, of itself."""
        built = self.rotator(setting, dtype)
        return lambda x, positions: built.one(x, positions, key=False)

    def rotator(self, setting: RopeSetting, dtype: Format, instance: Any = None) -> OwnTurning:
        """Return what calls an instance, a new one where it is None."""
        result = self.fit(setting)
        if result.layout != setting.layout and result.sure:
            self._note(f"behaves like {result.layout} pairs; it is audited as {setting.layout}, as asked")
        built = self.built(setting) if instance is None else instance
        return OwnTurning(self, result, setting, dtype, built)

    def reported(self, answer: Answer, dtype: Format) -> None:
        """Note what is worth knowing of an answer."""
        if answer.changed:
            self._note("changes its input where it lies; it was given copies")
        if answer.dtype != arrays.spelled(dtype):
            self._note(f"returns {answer.dtype} for {arrays.spelled(dtype)}")

    def _note(self, text: str) -> None:
        text = f"{self.name}: {text}."
        if text not in self.findings:
            self.findings.append(text)


@dataclass(slots=True)
class OwnTurning:
    """An instance of own code that is called; a `Rotator`."""

    own: Own
    fit: Fit
    setting: RopeSetting
    dtype: Format
    instance: Any

    def afresh(self) -> OwnTurning:
        """Return one of an instance without a past."""
        return replace(self, instance=self.own.built(self.setting))

    def one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Return x rotated, as what is returned for q or for k, where both are given."""
        answer = self._answer(x[None], None, at)
        result: FloatArray = (answer.keys if key and answer.keys is not None else answer.values)[0]
        return result

    def both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated, by one call where it takes both, dims in the order they were given."""
        if "k" in self.fit.way.form.roles:
            answer = self._answer(q, k, at)
            first, second = answer.values, answer.keys
            if second is None:  # it takes k and returns q alone
                second = self._answer(k, None, at).values
        else:
            first, second = (self._answer(x, None, at).values for x in (q, k))
        if not self.fit.permuted:
            return first, second
        back = np.argsort(half_split(self.setting.rotary_dim, self.setting.head_dim))
        return first[..., back], second[..., back]

    def _answer(self, q: FloatArray, k: FloatArray | None, at: Positions) -> Answer:
        way = self.fit.rows if at.ndim == 2 and self.fit.rows is not None else self.fit.way
        with process_state.at_home(self.own.home):
            answer = way(self.instance, q, at, self.setting, self.dtype, k, self.own.changes)
        self.own.reported(answer, self.dtype)
        return answer


def is_module(thing: Any) -> bool:
    """Return whether it is an instance of torch.nn.Module; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.nn.Module)


def _sureness(results: Fit) -> str:
    if results.sure:
        return " (detected)"
    if not np.isfinite(results.error):
        return " (a guess: it returns nan or inf)"
    return f" (the nearest; at positions 3 to 9 it is {100 * results.error:.2g} % off that rotation)"
