"""A dumped table of frequencies, or of cos and sin, against the settings that it may be of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Unpack

from ropeaudit.audits import arguments
from ropeaudit.audits import labels as naming
from ropeaudit.audits.arguments import RopeArguments
from ropeaudit.audits.cases import Case
from ropeaudit.errors import BadInput
from ropeaudit.recognition.check import Diagnosis, check
from ropeaudit.tensor_files import tables


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What a dumped table is, against the setting that it fits best. settings: how many were tried."""

    diagnosis: Diagnosis
    label: str
    settings: int


@arguments.checked
def check_table(
    against: str,
    *,
    cases: Case | Iterable[Case] | None = None,
    labels: Sequence[str] | None = None,
    **case: Unpack[RopeArguments],
) -> TableCheck:
    """Compare a dumped table with the exact one, and say what explains the difference.

    against: a file with inv_freq, cos and sin, or freqs_cis: .npz, .npy, "c.npy,s.npy", .safetensors, .pt.
    Of several settings the one that agrees counts, else the one that is explained most simply.
    labels: what to call each case. cases, case: as in `ropeaudit.shift`; q and k are not looked at.
    Raises: UsageError, UnknownName, BadInput.
    """
    chosen = arguments.cases_of(cases, case)
    settings, dump = naming.settings(chosen), tables.read(against)
    results: list[TableCheck] = []
    refused = BadInput("--against: no setting rotates any pair; choose one that does")
    for setting, label in zip(settings, labels or naming.labels(chosen), strict=True):
        try:
            if setting.pairs:
                results.append(TableCheck(check(dump, setting, label), label, len(chosen)))
        except BadInput as error:
            refused = error
    if not results:
        raise refused
    return min(results, key=lambda one: one.diagnosis.preference)
