"""Flight recorders' dumps of a job, side by side: the first collective that did not end, who did not come to it, and what was sent.

Ranks meet in a group by the numbers of its collectives. A recorder keeps the last few thousand, so that numbers before the oldest
that all ranks still have tell nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commtax.files import table
from commtax.runs.evidence.finding import Cause, Claim, CollectiveRow, Culprit, Finding, Section
from commtax.runs.logs.flight import STARTED, Analysis, Dump, Fault, FlightEntry
from commtax.runs.logs.nccl_audit import ranks_in_words
from commtax.statement import Note
from commtax.thresholds import counts

COUNT = counts(__name__)
CHANGES = table("runs/logs/log_causes.toml")["flight"]
UNEVEN = ("all-to-all", "gather", "scatter", "send-recv", "barrier")  # whose ranks may bring tensors of different sizes
MEETINGS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")  # that end nowhere before all have come
DEFAULT = "0"  # the group of all ranks
HANGS, DIFFERS, STUCK = "hang", "mismatch", "stuck"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A collective that went wrong, and the ranks to blame: none where all came to it and none went on."""

    code: str
    group: str
    entry: FlightEntry
    ranks: tuple[int, ...]
    text: str


def audit_flight(dumps: Sequence[Dump], claim: Claim | None, names: Sequence[str]) -> Section:
    """Audit all ranks of a job, or as many as there are dumps of."""
    taken: list[int] = []
    free = max([d.rank for d in dumps], default=-1)
    for dump in dumps:
        if dump.rank < 0 or dump.rank in taken:
            free += 1
        taken.append(free if dump.rank < 0 or dump.rank in taken else dump.rank)
    ranks = dict(zip(taken, dumps, strict=True))
    groups: dict[Group, dict[int, dict[int, FlightEntry]]] = {}
    for rank, dump in ranks.items():
        for entry in dump.entries:
            if not entry.paired:
                group = entry.group, dump.groups.get(entry.group, ())
                groups.setdefault(group, {}).setdefault(rank, {}).setdefault(entry.seq, entry)
    troubles: list[Trouble] = []
    for (name, listed), calls in groups.items():
        recorded = set(listed or (ranks if name == DEFAULT else calls)) & set(ranks)  # of the ranks expected, those with a dump
        troubles += [t] if (t := _trouble(name, calls, sorted(recorded))) else []
    root = _root(troubles, groups)
    blamed = Culprit("late rank", root.ranks[0], None, root.text) if root and root.ranks else None
    notes, causes = (*(note for dump in dumps for note in dump.notes), *_notes(ranks)), list[Cause]()
    for trouble in sorted(troubles, key=lambda t: (root is None or t.group != root.group, t.entry.created_s)):  # the root first
        where = f"; called from {trouble.entry.where}" if trouble.entry.where else ""
        causes.append(Cause(trouble.code, trouble.text + where, change=CHANGES[trouble.code]))
    code = root.code if root and not root.entry.where else ""  # a cause with a line of the program is told by itself
    section = Section(
        "flight", tuple(names), tuple(_layout(ranks, claim)), notes, causes=tuple(causes), culprit=blamed, blamed=code
    )
    versions = sorted({d.version for d in ranks.values() if d.version})
    libraries = sorted({d.library for d in ranks.values() if d.library})
    facts = {"recorder": ", ".join(versions), "version": ", ".join(libraries), "ranks": str(len(ranks))}
    stated = {name: value for name, value in facts.items() if value}
    return replace(section, collectives=tuple(_rows(groups)), facts=stated)


def audit_analysis(analysis: Analysis, claim: Claim | None, name: str = "analysis") -> Section:
    """Report what an analyser of such dumps saw: the first collective that a rank missed or called differently."""
    causes = tuple(_fault_as_cause(fault) for fault in analysis.faults[: COUNT.named])
    findings = [Finding("collectives that went wrong", 0, len(analysis.faults), reason="as the analyser tells").judged()]
    findings += [Finding("collectives listed", None, analysis.listed)] if analysis.listed else []
    if size := max((fault.size for fault in analysis.faults), default=0):
        findings.append(Finding("ranks", None, size))
    first = next((who for f in analysis.faults if (who := f.missing or f.culprits)), ())
    culprit = Culprit("late rank", first[0], None, causes[0].said) if len(first) == 1 else None  # of several, which began it?
    notes = (Note("claim", "what an analyser says is judged by itself: nothing of the claim is in it"),) if claim else ()
    blamed = causes[0].code if culprit else ""
    return Section("flight", (name,), tuple(findings), notes, causes=causes, culprit=culprit, blamed=blamed)


def _fault_as_cause(fault: Fault) -> Cause:
    group = f" of group {fault.group}" if fault.group else ""
    what = f"{fault.op or 'a collective'}, number {fault.seq}{group}" if fault.seq >= 0 else f"{fault.op or 'a collective'}{group}"
    where = f"; called from {fault.where}" if fault.where else ""
    if fault.missing:
        rest = f"; the other {fault.size - len(fault.missing)} waited" if fault.size > len(fault.missing) + 1 else ""
        return Cause(HANGS, f"{ranks_in_words(fault.missing)} never came to {what}{rest}{where}", change=CHANGES[HANGS])
    who = f"{ranks_in_words(fault.culprits)} differed from others" if fault.culprits else "ranks differ"
    return Cause(DIFFERS, f"{who} in {what}: {fault.why}{where}", change=CHANGES[DIFFERS])


Calls = Mapping[int, Mapping[int, FlightEntry]]  # by rank and by number


Group = tuple[str, tuple[int, ...]]  # its name, and its ranks where dumps list them: groups side by side may share a name


def _trouble(group: str, calls: Calls, expected: Sequence[int]) -> Trouble | None:
    """Return the first collective of a group on which ranks disagree, or which did not end."""
    here = [calls[rank] for rank in expected if calls.get(rank)]
    if not here:
        return None
    oldest = max(min(mine) for mine in here)
    # A group's collectives run one after the other, and a recorder may mark an earlier one later.
    last = {rank: max((seq for seq, e in calls[rank].items() if e.done), default=-1) for rank in expected if calls.get(rank)}
    for seq in sorted({seq for mine in here for seq in mine if seq >= oldest}):
        entries = {rank: calls[rank][seq] for rank in expected if seq in calls.get(rank, {})}
        first, missing = entries[min(entries)], tuple(rank for rank in expected if rank not in entries)
        what = f"{_entry_text(first)}, number {seq} of group {group}"
        if kinds := _kinds(entries):
            each = "; ".join(f"{ranks_in_words(who)} called {_entry_text(entries[who[0]])}" for who in kinds)
            few = kinds[-1] if len(kinds[0]) * 2 > len(entries) else ()
            return Trouble(DIFFERS, group, first, few, f"number {seq} of group {group}: {each}")
        ended = [rank for rank in entries if seq <= last[rank]]
        if len(ended) == len(entries) or (ended and not missing and first.op in MEETINGS):
            continue
        if missing:
            text = f"{ranks_in_words(missing)} never came to {what}; {ranks_in_words([*entries])} waited"
            return Trouble(HANGS, group, first, missing, text)
        begun = [rank for rank, e in entries.items() if rank in ended or e.state == STARTED]
        idle = tuple(rank for rank in entries if rank not in begun) if begun else ()
        late = f"{ranks_in_words(idle)} had not started {what}, which the others were in"
        return Trouble(STUCK, group, first, idle, late if idle else f"all came to {what}, and it did not end")
    return None


def _kinds(entries: Mapping[int, FlightEntry]) -> list[tuple[int, ...]]:
    """Group ranks by what they called, the largest group first, or return none where all calls and sizes are equal."""
    same = len({e.op for e in entries.values()}) == 1
    kinds: dict[object, list[int]] = {}
    for rank, e in sorted(entries.items()):
        sign = (() if e.op in UNEVEN else (e.inputs, e.dtype)) if same else e.op
        kinds.setdefault(sign, []).append(rank)
    return sorted(map(tuple, kinds.values()), key=len, reverse=True) if len(kinds) > 1 else []


def _root(troubles: Sequence[Trouble], groups: Mapping[Group, Calls]) -> Trouble | None:
    """Return where it began: a disagreement, or a missing rank that waits nowhere else, else the earliest call."""
    waiting = {rank for calls in groups.values() for rank, mine in calls.items() if not mine[max(mine)].done}
    free = [t for t in troubles if t.code == DIFFERS or set(t.ranks) - waiting]
    chosen = min(free or troubles, key=lambda t: (t.entry.created_s, t.group), default=None)
    if chosen and chosen.code == HANGS and (blamed := tuple(r for r in chosen.ranks if r not in waiting)):
        return replace(chosen, ranks=blamed)
    return chosen


def _entry_text(entry: FlightEntry) -> str:
    """Describe a call, as in ``all-reduce of [1024] Float``."""
    sizes = ", ".join(str(list(size)) for size in entry.inputs[:2]) + (", …" if len(entry.inputs) > 2 else "")
    return f"{entry.op} of {sizes} {entry.dtype}".strip() if sizes else entry.op


def _layout(ranks: Mapping[int, Dump], claim: Claim | None) -> Iterator[Finding]:
    listed = [len(members) for dump in ranks.values() for members in dump.groups.values()]
    world = max([*listed, len(ranks)])
    if claim is None:
        yield Finding("ranks", None, world)
    else:
        plan = claim.plan
        wanted = int(plan.tp) * int(plan.pp) * int(plan.dp)
        yield Finding("ranks", wanted, world, reason="another plan than was said, or dumps are missing").judged()
    yield Finding("collectives recorded", None, sum(len(d.entries) for d in ranks.values()))
    yield Finding("collectives that did not end", None, sum(not e.done for d in ranks.values() for e in d.entries))


def _notes(ranks: Mapping[int, Dump]) -> Iterator[Note]:
    listed = {rank for dump in ranks.values() for members in dump.groups.values() for rank in members}
    if gone := sorted(listed - set(ranks)):
        yield Note("ranks", f"there is no dump of {ranks_in_words(gone)}: whether they came is not known")
    if len(ranks) == 1:
        yield Note("ranks", "one rank's dump tells where it stood; those of all ranks tell who did not come")


def _rows(groups: Mapping[Group, Calls]) -> Iterator[CollectiveRow]:
    """Yield the calls of each group's lowest rank. The least time of all ranks is the wire's, and the rest is waiting."""
    for (group, _), calls in groups.items():
        mine, kinds = calls[min(calls)], dict[str, list[FlightEntry]]()
        for entry in mine.values():
            kinds.setdefault(entry.op, []).append(entry)
        for op, entries in kinds.items():
            sizes = [e.nbytes for e in entries]
            total = sum(n for n in sizes if n is not None) if None not in sizes else None
            wire = wait = 0.0
            for entry in entries:
                took = [s for rank in calls if entry.seq in calls[rank] and (s := calls[rank][entry.seq].seconds) is not None]
                wire += min(took, default=0.0)
                wait += (entry.seconds or 0.0) - min(took, default=0.0) if entry.seconds is not None else 0.0
            yield CollectiveRow(op, "", group, len(calls), len(entries), total, wire, wait, 0.0)
