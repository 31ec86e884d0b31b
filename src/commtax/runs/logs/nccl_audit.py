"""What NCCL's log shows: who reaches whom over what, what that costs, which rank is missing, and what was called."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from commtax import catalog
from commtax.catalog.hosts import with_between, with_inside_link
from commtax.files import table
from commtax.runs.evidence.finding import Cause, Claim, CollectiveRow, Culprit, Finding, Section
from commtax.runs.logs.nccl_log import Communicator, NcclLog, Route, Who, join_logs
from commtax.spec import Cluster
from commtax.statement import Note, Refusal
from commtax.thresholds import counts
from commtax.units import format_bytes, format_seconds, plural
from commtax.verbs.billing import price
from commtax.verbs.settling import settle

COUNT = counts(__name__)
GONE = ("Broken pipe", "Connection closed", "Connection reset", "Connection refused")  # the other end of a connection failed first
_CAUSES = table("runs/logs/log_causes.toml")
Blamed = tuple[Culprit, str]  # who is to blame, and the code of the cause that names them, or ""
CHANNEL_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")


def audit_nccl(logs: Sequence[NcclLog], claim: Claim | None, names: Sequence[str]) -> Section:
    """Audit the logs of all ranks of a job, or of one of them."""
    log = join_logs(logs)
    by_cost = sorted(causes(log, claim), key=lambda c: -(c.cost_s or 0.0))
    differing, odd = _differing_calls(log) or ("", [])  # the rank that called something else than most under the same number
    called = (Culprit("late rank", odd[0], None, differing), "mismatch") if odd else None
    culprit, blamed = called or _late_rank(log) or _absent_rank(log) or (None, "")
    findings = (*_layout(log, claim), *_connections(log), *_timeout_findings(log))
    notes, rows = (*_notes(log), *_progress_notes(log)), tuple(_call_rows(log))
    section = Section("log", tuple(names), findings, notes, causes=tuple(by_cost), culprit=culprit, blamed=blamed)
    return replace(section, collectives=rows, facts=facts(log))


def _layout(log: NcclLog, claim: Claim | None) -> Iterator[Finding]:
    world = log.world
    if not world:
        return
    nodes = world.nodes or (len(set(world.hosts.values())) if len(world.hosts) == world.size else 0)
    if claim is None:
        yield Finding("ranks in a communicator", None, world.size)
        if nodes:
            yield Finding("hosts", None, nodes)
        return
    plan, place = claim.plan, claim.question.cluster
    tp, pp, dp = int(plan.tp), int(plan.pp), int(plan.dp)
    groups = (tp * pp * dp, tp * pp, tp * dp, pp, dp, tp)
    wanted = world.size if world.size in groups else max(groups)
    yield Finding("ranks in a communicator", wanted, world.size, reason="another plan than was said, or one part of it").judged()
    if nodes:
        wanted = -(-world.size // place.gpus_per_host)
        yield Finding("hosts", wanted, nodes, reason="ranks lie on more or fewer hosts than the cluster has for them").judged()


def _connections(log: NcclLog) -> Iterator[Finding]:
    """Yield how long communicators took to start, how many pairs of ranks use each transport, and over how many channels."""
    if log.init_s:
        size = max(log.init_s)
        yield Finding(Note("init", f"start of a communicator of {size} ranks"), None, log.init_s[size], "s")
    for (transport, direct), pairs in _transports(log).items():
        yield Finding(Note("transport", f"ways over {_called_so(transport, direct)}"), None, pairs)
    if log.widths:
        channels, nvls, _ = min(log.widths)
        yield Finding("channels", None, channels)
        if nvls:
            yield Finding("NVLS channels", None, nvls)
    if depth := _depth(log.parents):
        yield Finding("levels of the tree", None, depth)


def _unfinished_starts(log: NcclLog) -> list[Communicator]:
    """List communicators whose start never finished, unless the same ranks finished a later one of that size."""
    unfinished: list[Communicator] = []
    later: dict[int, set[int]] = {}
    for comm in reversed(log.comms.values()):
        done = later.setdefault(comm.size, set())
        if comm.begun - done:
            unfinished.append(comm)
        done |= comm.complete
    return unfinished[::-1]


def _start_words(comm: Communicator) -> str:
    """Describe which ranks began, which finished, and which have no line."""
    text = f"{ranks_in_words(sorted(comm.begun))} of {comm.size} began (Init START) and never finished (Init COMPLETE)"
    ended = f"; {ranks_in_words(sorted(comm.complete))} finished" if comm.complete else ""
    gone = sorted(set(range(min(comm.size, COUNT.most_ranks))) - set(comm.hosts))
    return text + ended + (f"; no line of {ranks_in_words(gone)}" if gone else "")


def _timeout_findings(log: NcclLog) -> Iterator[Finding]:
    """Yield starts and collectives that never ended, and calls that failed or differ, none of which a sound run has."""
    if begun := _unfinished_starts(log):
        item = Note("unstarted", "communicators that did not start")
        yield Finding(item, 0, len(begun), reason=_start_words(begun[0])).judged()
    if abandoned := len({(t.seq, t.op) for t in log.timeouts}):
        yield Finding("collectives given up", 0, abandoned, reason="they ran until the watchdog ended the job").judged()
    if failed := set(log.returned.values()):
        yield Finding(Note("failed", "calls of the library that failed"), 0, len(failed), reason=min(failed)).judged()
    if _differing_calls(log):
        yield Finding("collectives that ranks call differently", 0, 1, reason="at least this one: see what each called").judged()


def _transports(log: NcclLog) -> Counter[tuple[str, bool]]:
    return Counter((route.transport, route.direct) for route in log.routes)


def _called_so(transport: str, direct: bool) -> str:
    return f"{transport} (GPU direct)" if direct else transport


def _depth(parents: dict[int, int]) -> int:
    """Return the levels below the root of the first tree, or 0 where the log lacks some of it."""
    roots = [rank for rank, parent in parents.items() if parent < 0]
    children: dict[int, list[int]] = {}
    for rank, parent in parents.items():
        children.setdefault(parent, []).append(rank)
    level, seen, depth = roots, len(roots), 0
    while level := [child for rank in level for child in children.pop(rank, ())]:
        depth, seen = depth + 1, seen + len(level)
    return depth if len(roots) == 1 and seen == len(parents) > 1 else 0


def facts(log: NcclLog) -> dict[str, str]:
    stated = {f"ways over {_called_so(t, direct)}": str(pairs) for (t, direct), pairs in sorted(_transports(log).items())}
    stated |= {name: ", ".join(sorted(values)) for name, values in sorted(log.environment.items())}
    widths = zip(("channels", "NVLS channels", "channels of pairs"), map(str, min(log.widths, default=())), strict=False)
    others = {
        "version": ", ".join(sorted(set(log.versions.values()))),
        "network": ", ".join(sorted(log.networks)),
        "NICs": ", ".join(log.nics),
        "ranks": str(log.world.size) if log.world else "",
        **dict(widths),
        "algorithms": ", ".join(sorted(log.tuned)),
        "NVLS": "available" if log.counted["nvls"] else "not available" if log.counted["no_nvls"] else "",
    }
    return stated | {name: value for name, value in others.items() if value}


def _notes(log: NcclLog) -> Iterator[Note]:
    versions = Counter(log.versions.values())
    if versions:
        yield Note("version", "collectives by " + ", ".join(sorted(versions)))
    for comm in log.comms.values():
        gone = sorted(set(range(comm.size)) - set(comm.hosts))
        if gone and len(comm.hosts) > 1:
            yield Note("ranks", f"the log holds {len(comm.hosts)} of {comm.size} ranks: without {ranks_in_words(gone)}")
        if waiting := sorted(set(comm.hosts) - comm.complete) if comm.complete else []:
            others = ranks_in_words(sorted(comm.complete))
            yield Note("unfinished", f"{ranks_in_words(waiting)} did not finish the start that {others} finished")
    later = log.routes or log.widths or log.calls or any(c.complete for c in log.comms.values())  # what comes after a start
    if begun := None if later else next((c for c in reversed(log.comms.values()) if c.opened - c.begun), None):
        who = ranks_in_words(sorted(begun.opened))
        yield Note("partial", f"the log ends in the start of a communicator: {who} of {begun.size} began, none finished in it")
    for text, times in log.warnings.most_common(COUNT.named):
        yield Note("warning", f"NCCL warns{f' ({times} times)' if times > 1 else ''}: {text}")
    for name, (times, least, most) in sorted(log.tuned.items()):
        sizes = format_bytes(least) if least == most else f"{format_bytes(least)} to {format_bytes(most)}"
        yield Note("algorithm", f"NCCL chose {name} {plural(times, 'time')}, for {sizes}")
    if (first := next(iter(log.rings), ())) and len(first) > 1:
        order = " ".join(map(str, first[: 4 * COUNT.named])) + (" …" if len(first) > 4 * COUNT.named else "")
        yield Note("rings", f"{plural(len(log.rings), 'ring')}, the first {order}")


def _progress_notes(log: NcclLog) -> Iterator[Note]:
    """Note where ranks stood when the watchdog wrote, in one line for ranks that had come as far."""
    alike: dict[tuple[str, int, int], list[int]] = {}
    for (group, rank), at in log.progress.items():
        alike.setdefault((group, at.enqueued, at.completed), []).append(rank)
    for (group, enqueued, completed), ranks in list(alike.items())[: COUNT.named]:
        done = f"completed up to number {completed:,}" if completed >= 0 else "completed none"
        who = f"{ranks_in_words(sorted(ranks))} of group {group}"
        yield Note("progress", f"{who} had enqueued up to number {enqueued:,} and {done}")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 0, 1`` or the first few of many."""
    more = f" and {len(ranks) - COUNT.named} more" if len(ranks) > COUNT.named else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[: COUNT.named]))}{more}"


def causes(log: NcclLog, claim: Claim | None) -> Iterator[Cause]:
    """Yield what costs time by the ways that were taken, and what went wrong."""
    for why, times in sorted(Counter(log.returned.values()).items())[: COUNT.named]:
        text = f"a call of the library failed{f' in {times} processes' if times > 1 else ''}: {why}"
        yield Cause("failed", text, change=_CAUSES["nccl"]["peer" if any(word in why for word in GONE) else "failed"])
    yield from _way_causes(log, claim)
    versions = Counter(version for process, version in log.versions.items() if process)
    if len(versions) > 1:
        many = ", ".join(f"{version} in {n}" for version, n in versions.most_common())
        yield _cause("versions", f"versions differ between processes: {many}")
    if differing := _differing_calls(log):
        yield _cause("mismatch", differing[0])
    elif apart := _mismatch_words(log):
        yield _cause("mismatch", apart)
    if log.timeouts:
        yield _timeout_cause(log)
        lowest: dict[int, int] = {}
        for t in log.timeouts:
            lowest[t.rank] = min(t.seq, lowest.get(t.rank, t.seq))
        least, most = min(lowest.values()), max(lowest.values())
        if least < most:
            behind = sorted(rank for rank, seq in lowest.items() if seq == least)
            gave_up = f"{ranks_in_words(behind)} gave up number {least:,}, the lowest; others had come up to number {most:,}"
            yield _cause("behind", f"{gave_up}: unless these are two groups, look there first")
        yield from (unheard := _silent_rank_causes(log))
        if not unheard and (gone := _silent_ranks(log)):
            yield _cause("absent", _missing_words(log, gone))
    for comm in _unfinished_starts(log)[: COUNT.named]:
        yield _cause("unstarted", f"the start of a communicator did not end: {_start_words(comm)}")


def _way_causes(log: NcclLog, claim: Claim | None) -> Iterator[Cause]:
    """Yield ways, channels and rings that cost time."""
    routes = log.routes
    yield from _network(log, [r for r in routes if r.transport.startswith("NET/")], claim)
    if shared := [r for r in routes if r.transport == "SHM"]:
        off = log.counted["p2p_off"] or "NCCL_P2P_DISABLE" in log.environment
        why = ": GPUs could not be joined directly" if off else ""
        text = f"{plural(len(shared), 'way')} inside a host through its memory{why}"
        yield _priced_cause("shared memory", text, claim, inside=True)
    yield from _width(log, claim)
    if zigzag := _crossings(log):
        ring, crossed, hosts = zigzag
        text = f"a ring crosses hosts {crossed} times where {hosts} would do ({' '.join(map(str, ring[:16]))} …)"
        yield _cause("ring order", text)


def _network(log: NcclLog, routes: Sequence[Route], claim: Claim | None) -> Iterator[Cause]:
    """Report TCP instead of a network that reads memory, and such a network without GPU direct."""
    sockets = [r for r in routes if r.transport == "NET/Socket"]
    if sockets:
        why = "; ".join(log.failures) or ("NCCL_IB_DISABLE is set" if "NCCL_IB_DISABLE" in log.environment else "")
        text = f"{plural(len(sockets), 'way')} between hosts over TCP sockets{f' ({why})' if why else ''}"
        yield _priced_cause("sockets", text, claim, inside=False)
    staged = [r for r in routes if not r.direct and r.transport != "NET/Socket"]
    if staged:
        text = f"{plural(len(staged), 'way')} over {staged[0].transport} copy through the host: GPU direct is off"
        yield _cause("no GPU direct", text)


def _width(log: NcclLog, claim: Claim | None) -> Iterator[Cause]:
    """Report few channels, and a switch known to sum (NVLS) that does not."""
    if limits := [name for name in CHANNEL_LIMITS if name in log.environment]:
        yield Cause("few channels", f"{limits[0]} limits the channels", change=f"start without {limits[0]}")
    if claim is None:
        return
    place = claim.question.cluster
    fast = place.intra.kind == "nvlink"
    channels, nvls, _ = min(log.widths, default=(COUNT.few_channels, 0, 0))
    if fast and channels < COUNT.few_channels and not limits:
        yield _cause("few channels", f"{plural(channels, 'channel')} do not fill {place.intra.name}")
    if place.intra.key in _CAUSES["links"]["nvls"] and not nvls and log.counted["no_nvls"]:
        yield _cause("no NVLS", "the NVSwitch does not sum (NVLS multicast is not available)")


def _crossings(log: NcclLog) -> tuple[tuple[int, ...], int, int] | None:
    """Return a ring that leaves hosts more often than it must, how often it does, and the number of hosts."""
    world = log.world
    for ring in log.rings if world and len(world.hosts) == world.size else ():
        if world and len(ring) == world.size and set(ring) == set(world.hosts):
            at = [world.hosts[rank] for rank in ring]
            crossed = sum(here != there for here, there in zip(at, [*at[1:], at[0]], strict=True))
            if crossed > (hosts := len(set(at))) > 1:
                return ring, crossed, hosts
    return None


def _cause(code: str, text: str) -> Cause:
    return Cause(code, text, change=_CAUSES["nccl"][code])


def _priced_cause(code: str, text: str, claim: Claim | None, *, inside: bool) -> Cause:
    """Return the cause with what such a way adds to the claimed decode step, where that uses one."""
    cause = _cause(code, text)
    if claim is None:
        return cause
    place = claim.question.cluster
    slow = catalog.link(table("runs/logs/nccl_log.toml")["fastest"]["memory" if inside else "sockets"])
    try:
        other: Cluster = with_inside_link(place, slow) if inside else with_between(place, slow)
        step = claim.question.but(phase="decode", batch=claim.batch or 1, context=claim.context or 1024)
        plain, slowed = (float(price(settle(replace(step, cluster=c))).step_s) for c in (place, other))
    except Refusal:  # no such chip has such a link
        return cause
    cost = slowed - plain
    gain = f"at least {format_seconds(cost)} of each decode step ({cost / (plain + cost):.1%}), were the way {slow.name}"
    return replace(cause, cost_s=cost, share=cost / (plain + cost), gain=gain) if cost > 0 else cause


def _timeout_cause(log: NcclLog) -> Cause:
    first = min(log.timeouts, key=lambda t: t.seq)
    gave_up = {t.rank for t in log.timeouts}
    # Of some ranks only the watchdog's second line is there: with an error in the same work of a group that gave it up.
    groups = {group for (group, rank), at in log.progress.items() if at.failed == first.seq and rank in gave_up}
    waiting = {rank for (group, rank), at in log.progress.items() if group in groups and at.failed == first.seq}
    ranks = sorted({t.rank for t in log.timeouts if t.seq == first.seq and t.op == first.op} | waiting)
    size = f" of {first.elements:,} elements" if first.elements is not None else ""
    text = f"{first.op} number {first.seq}{size} ran {format_seconds(first.ran_s)} on {ranks_in_words(ranks)} and was given up"
    return _cause("timeout", text)


def _silent_rank_causes(log: NcclLog) -> list[Cause]:
    """Report ranks of the first group that gave up without a line in the text. Elements tell the group's size."""
    first = min(log.timeouts, key=lambda t: t.seq)
    spoke = {t.rank for t in log.timeouts} | {rank for _, rank in log.progress}
    there = {t.rank for t in log.timeouts if t.seq == first.seq and t.op == first.op}
    if first.members <= len(spoke):
        return []
    gone = sorted(set(range(min(first.members, COUNT.most_ranks))) - spoke) if max(spoke) < first.members else []
    who = ranks_in_words(gone) if gone else f"{first.members - len(there)} of them"
    has = "has" if len(gone) == 1 else "have"
    text = f"{first.op} number {first.seq} is shared out among {first.members} ranks, and {who} {has} no line here"
    return [_cause("absent", f"{text}: never came, had ended before, or their lines are cut")]


def _silent_ranks(log: NcclLog) -> list[int]:
    """List one rank, or a few of many, whose watchdog wrote nothing. Unless the job's size is known, three others must have."""
    spoke = {t.rank for t in log.timeouts} | {rank for _, rank in log.progress}
    grouped = max((t.members for t in log.timeouts), default=0)
    size = max([*spoke, *log.heard, grouped - 1, log.world.size - 1 if log.world else 0]) + 1
    gone = sorted(set(range(min(size, COUNT.most_ranks))) - spoke)
    few = len(gone) == 1 or len(gone) * COUNT.few <= len(spoke)  # groups of every other rank leave gaps too
    return gone if few and len(spoke) >= (2 if log.world else 3) else []


def _absent_rank(log: NcclLog) -> Blamed | None:
    """Return the one rank that did not wait in the collective in which all others did."""
    gone = _silent_ranks(log) if len({(t.seq, t.op) for t in log.timeouts}) == 1 else []
    if len(gone) != 1:
        return None
    return Culprit("late rank", gone[0], None, _missing_words(log, gone)), "" if _silent_rank_causes(log) else "absent"


def _missing_words(log: NcclLog, gone: Sequence[int]) -> str:
    first = min(log.timeouts, key=lambda t: t.seq)
    words = f"no watchdog line of {ranks_in_words(gone)}, while the others waited from {first.op} number {first.seq:,} on"
    return f"{words}: {'it' if len(gone) == 1 else 'they'} never came, or had ended before"


def _mismatch_words(log: NcclLog) -> str:
    """Describe the first number under which ranks gave up different collectives, or return ""."""
    under: dict[int, dict[tuple[str, int | None], set[int]]] = {}
    for t in log.timeouts:
        under.setdefault(t.seq, {}).setdefault((t.op, t.elements), set()).add(t.rank)
    for seq, kinds in sorted(under.items()):
        if len(kinds) > 1 and len(set().union(*kinds.values())) > 1:
            sized = {kind: f" of {kind[1]:,} elements" if kind[1] is not None else "" for kind in kinds}
            each = ", ".join(f"{kind[0]}{sized[kind]} on {ranks_in_words(sorted(who))}" for kind, who in kinds.items())
            return f"number {seq} is {each}: unless these are two groups, ranks do not call the same"
    return ""


def _late_rank(log: NcclLog) -> Blamed | None:
    """Return the rank that had not called a collective on which the others of its group gave up."""
    groups: dict[str, list[int]] = {}
    for group, rank in log.progress:
        groups.setdefault(group, []).append(rank)
    for group, ranks in groups.items():
        failed = min(log.progress[group, rank].failed for rank in ranks)
        late = [rank for rank in ranks if log.progress[group, rank].enqueued < failed]
        if 0 < len(late) < len(ranks):
            text = f"{ranks_in_words(late)} never called collective {failed} of group {group}, on which the others waited"
            return Culprit("late rank", late[0], None, text), ""
    return None


def _differing_calls(log: NcclLog) -> tuple[str, list[int]] | None:
    """Return the first number under which calls differ, in words, and the ranks that deviate from the majority."""
    for (size, number), calls in sorted(log.issued.items()):
        by: dict[str, list[Who]] = {}
        for caller in calls:
            by.setdefault(log.members.get(caller, ("", 0))[0], []).append(caller)
        unknown = by.get("", [])  # form a group if no process is twice in it
        if len({process for process, _ in unknown}) < len(unknown) or len(unknown) > size:
            by.pop("", None)
        for members in (members for members in by.values() if len(members) > 1):
            (usual, many), *others = Counter(calls[who] for who in members).most_common()
            if others:
                odd = [who for who in members if calls[who] != usual]
                names, rest = (sorted(_rank(log, who) for who in group) for group in (odd, set(members) - set(odd)))
                text = f"{ranks_in_words(names)} called {calls[odd[0]][0]} as number {number:x}, {ranks_in_words(rest)} {usual[0]}"
                return text, names if many > len(members) / 2 else []
    return None


def _rank(log: NcclLog, who: Who) -> int:
    """Return a rank, or the number of the device where the log names no ranks."""
    member = log.members.get(who)
    return member[1] if member else int(who[0].rsplit(":", 1)[-1] or 0)


def _call_rows(log: NcclLog) -> Iterator[CollectiveRow]:
    """Yield the calls of the rank that made most of a kind, over all of its communicators of one size."""
    each: dict[tuple[str, int], dict[str, tuple[int, float]]] = {}
    for ((process, _), op, size), (count, nbytes) in log.calls.items():
        before = each.setdefault((op, size), {}).get(process, (0, 0.0))
        each[op, size][process] = before[0] + count, before[1] + nbytes
    rows = {kind: max(by_rank.values()) for kind, by_rank in each.items()}
    for (op, size), (count, nbytes) in sorted(rows.items(), key=lambda row: -row[1][1]):
        yield CollectiveRow(op, "", f"of {plural(size, 'rank')}", size, count, nbytes, 0.0, 0.0, 0.0)
