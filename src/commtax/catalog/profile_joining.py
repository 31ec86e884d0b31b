"""Several profiles as one, laid over each other in order: a host's, a fabric's, an engine's.

What was fitted together stays together. Constants by name (chip, kernels, libraries) are taken one by one, those of the network
and the host as a whole; what runs taught is joined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import cast

from commtax.spec import ChipFacts, Path, Profile, RunLesson
from commtax.statement import Refusal

NO_FACTS = ("key", "name")  # what a chip is called is no fact of it


def join(profiles: Sequence[Profile]) -> Profile:
    return reduce(lay_over, profiles)


def tells_chip(own: Profile) -> bool:
    """Whether it holds facts of a chip, which hold of no other."""
    return bool(set(own.chip) - set(NO_FACTS))


def lay_over(first: Profile, second: Profile) -> Profile:
    """The first with what the second holds in the place of its own."""
    # The links that the joined collectives were measured on: whoever's they are says so.
    inside = second if second.libraries or not first.libraries else first
    across = second if second.network or not first.network else first
    both = {**first.links, **second.links}
    told = {"intra": inside.links.get("intra", ""), "inter": across.links.get("inter", "")}
    # Host times with the engine that they are of, and the lessons of both.
    kept, other = (second, first) if second.host else (first, second)
    engine = kept.engine if kept.host else second.engine or first.engine
    host = kept.host or other.host
    joined_runs = replace(
        first, host=host, engine=engine, dtype=second.dtype or first.dtype, lessons=distinct([*first.lessons, *second.lessons])
    )
    return replace(
        joined_runs,
        name=f"{first.name} + {second.name}",
        chip=_chip(first, second),
        tables={**first.tables, **second.tables},
        libraries=_libraries(first, second),
        network=second.network or first.network,
        curves=second.curves if second.network else first.curves,
        links={which: told[which] or link for which, link in both.items()},
        sources={**first.sources, **second.sources},
        written=max(first.written, second.written),
    )


def distinct(lessons: Sequence[RunLesson]) -> tuple[RunLesson, ...]:
    """Lessons in their order, equal ones once."""
    by = {(replace(x, slopes={}).__repr__(), tuple(sorted(x.slopes.items()))): x for x in reversed(lessons)}
    return tuple(reversed(by.values()))


def _chip(first: Profile, second: Profile) -> ChipFacts:
    """Facts of one chip; where only one of them tells some, the chip is that one's."""
    keys = [own.chip.get("key", "") for own in (first, second)]
    telling = [own for own in (first, second) if tells_chip(own) or own.tables]
    if all(keys) and keys[0] != keys[1]:
        if len(telling) == 2:
            raise Refusal(f"profiles '{first.name}' and '{second.name}' tell of two chips, {keys[0]} and {keys[1]}", "profile")
        return (telling or [second])[0].chip
    rates = {**first.chip.get("flops_per_s", {}), **second.chip.get("flops_per_s", {})}
    return cast(ChipFacts, {**first.chip, **second.chip, **({"flops_per_s": rates} if rates else {})})


def _libraries(first: Profile, second: Profile) -> Mapping[str, tuple[Path, ...]]:
    """Collectives of both by library, the later one's first; where they were measured on two links, the later one's alone."""
    told = {own.links["intra"] for own in (first, second) if own.libraries and "intra" in own.links}
    if len(told) > 1:
        return second.libraries or first.libraries
    return {**second.libraries, **{name: paths for name, paths in first.libraries.items() if name not in second.libraries}}
