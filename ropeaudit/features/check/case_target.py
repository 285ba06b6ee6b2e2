"""The checks of what a kernel wrote back for a case of `ropeaudit vectors`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ropeaudit.audits.cases import Case
from ropeaudit.conformance import case_files, returned
from ropeaudit.errors import UsageError
from ropeaudit.features.check.checked import Checked, CheckOptions


def check_options(case: Case, options: CheckOptions) -> None:
    """Raise UsageError for what a case has decided, or where nothing says where its kernel wrote."""
    if options.returned is None:
        raise UsageError("a case of vectors is checked by what a kernel wrote back; add --returned FOLDER")
    if case != Case():
        raise UsageError("the manifest of a case says its setting; leave out the options of a RoPE setting")
    if options.dtypes or options.up_to is not None:
        raise UsageError("the manifest of a case says its dtype and positions; leave out --dtype and --up-to")


def checks(target: str, options: CheckOptions, several: bool) -> Iterator[Checked]:
    """Yield the checks of a case; several: whether others are checked, whose outputs are in folders by name.

    Raises: BadInput, UnknownName.
    """
    case = case_files.read(target)
    spec, output = case.spec, Path(options.returned or "")
    if several and not output.suffix:
        output /= case.folder.resolve().name
    last = spec.offsets[-1] + spec.seq_len
    for finding in returned.findings(case.folder, output, options.recipe):
        yield Checked(target, "case", case.digest[:19], spec.dtype.name, spec.setting, last, finding)
