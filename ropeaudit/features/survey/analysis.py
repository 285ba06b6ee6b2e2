"""Survey: every implementation, called and measured in the same way, in processes of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names, OnProgress
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.features.survey import processes
from ropeaudit.features.survey.surveyed import Options, Surveyed
from ropeaudit.subjects import factories, third_party
from ropeaudit.subjects.calling import environments

DTYPES, OFFSETS = ("fp32", "fp16", "bf16"), (0, 1000, 131072)
UNDER, CASTS = ("autocast:bf16", "tf32", "default-dtype:bf16"), ("bf16",)


@arguments.checked
def survey(
    implementations: Names,
    dtypes: Names = DTYPES,
    offsets: int | Iterable[int] = OFFSETS,
    *,
    under: Names = UNDER,
    casts: Names = CASTS,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> Iterator[Surveyed]:
    """Measure implementations in the same way, and explain those that differ from the others.

    Yields one Surveyed per implementation, in their order: its drift by dtype, offset and environment, over
    that of recipe hf on the same q and k; the recipe that it is like; what a cast of its class does.
    implementations: names of `ropeaudit list implementations`, FILE.py:NAME or package.module:NAME.
    under: environments in which they are called too. casts: number formats that classes are cast to.
    jobs: processes side by side; one that dies or hangs costs one implementation.
    Raises: UsageError, UnknownName, BadInput.
    """
    names = [name for name, _ in third_party.expanded(arguments.listed(implementations))]
    for name in names:
        if not factories.is_own(name):
            third_party.known(name)
        elif (file := name.partition(":")[0]).endswith(".py") and not Path(file).is_file():
            raise BadInput(f"there is no file {file!r}; give FILE.py:NAME")
    formats = arguments.formats(dtypes)
    places = [one.name for one in environments.chosen(arguments.listed(under))[1:]]
    if jobs < 1:
        raise UsageError(f"jobs is {jobs}; give at least 1")
    options = Options(
        tuple(fmt.name for fmt in formats),
        tuple(arguments.numbers(offsets)),
        tuple(places),
        tuple(fmt.name for fmt in arguments.formats(casts)) if casts else (),
    )
    return processes.surveyed(names, options, jobs, on_progress or arguments.silent)
