"""Logs of NCCL and RCCL (``NCCL_DEBUG=INFO``), and of the watchdog that PyTorch keeps over them.

Who talks to whom over what, in which rings and trees, over which network, which versions; calls and their sizes where
``NCCL_DEBUG_SUBSYS=COLL`` wrote them; and which collective timed out. Files of several ranks are one job (``join_logs``).
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from commtax.files import table
from commtax.runs.logs.engine_logs import lines
from commtax.thresholds import counts
from commtax.wordings import patterns

_TABLE = table("runs/logs/nccl_log.toml")
COUNT = counts(__name__)
ELEMENT_BYTES: tuple[int, ...] = tuple(_TABLE["element_bytes"])
OPS: dict[str, str] = _TABLE["ops"]
GATHERED = ("all-gather", "reduce-scatter")  # whose count is of one rank's part
SAYS = patterns(__name__)
_COUNTED = [(name, re.compile(wording)) for name, wordings in _TABLE["counted"].items() for wording in wordings]
_FAILED = [re.compile(wording) for wording in _TABLE["failed"]]


@dataclass(frozen=True, slots=True)
class Route:
    """A way from rank to rank: P2P/IPC, P2P/CUMEM, P2P/direct, SHM, NET/IB … ``direct``: the NIC reads the GPU's memory."""

    source: int
    target: int
    transport: str
    direct: bool = False


@dataclass(slots=True)
class Communicator:
    """Ranks that talk: how many there are, which of them the log holds, where each ran, and which finished their start."""

    size: int
    nodes: int = 0
    hosts: dict[int, str] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)  # that began and went no further
    complete: set[int] = field(default_factory=set)
    opened: set[int] = field(default_factory=set)  # whose first line ends before its end


@dataclass(frozen=True, slots=True)
class Timeout:
    """A collective that a rank's watchdog gave up."""

    rank: int
    seq: int
    op: str
    elements: int | None
    ran_s: float
    members: int = 0  # of its group, by the elements that go in and come out; 0 where that is unclear


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a rank stood in one group when the watchdog spoke: the work that failed, the last enqueued, the last completed."""

    failed: int
    enqueued: int
    completed: int


Who = tuple[str, str]  # a process and its own name for a communicator


@dataclass(slots=True)
class NcclLog:
    """The content of all lines together. A mask of channels has a bit for each of them and of its connections."""

    versions: dict[str, str] = field(default_factory=dict)  # of each process
    networks: Counter[str] = field(default_factory=Counter)
    environment: dict[str, set[str]] = field(default_factory=dict)
    nics: dict[str, None] = field(default_factory=dict)  # in their order
    comms: dict[str, Communicator] = field(default_factory=dict)
    members: dict[Who, tuple[str, int]] = field(default_factory=dict)  # which communicator and rank
    routes: dict[Route, int] = field(default_factory=dict)
    rings: dict[tuple[int, ...], int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)  # of the first tree
    widths: set[tuple[int, int, int]] = field(default_factory=set)  # channels of collectives, of NVLS and of pairs
    counted: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)  # why a network or a plugin was not taken
    calls: dict[tuple[Who, str, int], tuple[int, float]] = field(default_factory=dict)  # count and bytes
    issued: dict[tuple[int, int], dict[Who, tuple[str, ...]]] = field(default_factory=dict)  # by size and number of the call
    timeouts: list[Timeout] = field(default_factory=list)
    progress: dict[tuple[str, int], Progress] = field(default_factory=dict)  # by group and rank
    starting: dict[str, tuple[str, int]] = field(default_factory=dict)  # each process's last start: communicator and rank
    heard: set[int] = field(default_factory=set)  # ranks that PyTorch's lines name
    init_s: dict[int, float] = field(default_factory=dict)  # of the slowest rank, by the ranks of its communicator
    warnings: Counter[str] = field(default_factory=Counter)
    warned: dict[str, str] = field(default_factory=dict)  # each process's last warning
    returned: dict[str, str] = field(default_factory=dict)  # … and what it was when a call of the library came back with an error
    tuned: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # by algorithm: how often, the least and the most bytes

    @property
    def world(self) -> Communicator | None:
        """The largest communicator."""
        return max(self.comms.values(), key=lambda c: c.size, default=None)

    def channels(self, route: Route) -> int:
        return self.routes[route].bit_count()


def parse(text: str) -> NcclLog:
    """Read a log.

    >>> log = parse("n1:7:9 [0] NCCL INFO Channel 01/0 : 3[3] -> 8[0] [send] via NET/IB/0/GDRDMA")
    >>> list(log.routes)
    [Route(source=3, target=8, transport='NET/IB', direct=True)]
    """
    log = NcclLog()
    for line in lines(text):
        if " version" in line and len(log.versions) < COUNT.most and (match := SAYS.version.search(line)):
            printed = SAYS.spoken.search(line[:500].split(" NCCL ")[0])
            log.versions[f"{printed[1]}:{printed[2]}" if printed else ""] = f"{match[1]} {match[2]}"
        for sign in ("NCCL INFO ", "NCCL WARN "):
            at = line.find(sign)
            if at > 0 or line.startswith(sign):
                spoken = SAYS.spoken.search(line[max(0, at - 500) : at].rstrip())
                host, process = (spoken[1], f"{spoken[1]}:{spoken[2]}:{spoken[4]}") if spoken else ("", "")
                _read_nccl_line(log, host, process, line[at + len(sign) :], sign == "NCCL WARN ")
                break
        else:
            _read_watchdog(log, line)
    return log


def _read_nccl_line(log: NcclLog, host: str, process: str, message: str, warning: bool) -> None:
    if warning and (len(log.warnings) < COUNT.most_warnings or message[: COUNT.most_text] in log.warnings):
        log.warnings[message[: COUNT.most_text].strip()] += 1
    if warning and process not in log.returned and len(log.returned) < COUNT.most and SAYS.not_done.search(message):
        log.returned[process] = log.warned.get(process, message[: COUNT.most_text].strip())
    if warning and len(log.warned) < COUNT.most:
        log.warned[process] = message[: COUNT.most_text].strip()
    if " -> " in message and process in log.warned and SAYS.returned.match(message):
        log.returned[process] = log.warned[process]
    if message.startswith(("Channel ", "Ring ", "Trees ")):
        _paths(log, message)
        return
    if "comm 0x" in message and (match := SAYS.comm.search(message)):
        _communicator(log, host, process, match, message)
    if "opCount " in message and (match := SAYS.call.search(message)):
        _read_call(log, process, match)
    if " Bytes -> Algo " in message and (match := SAYS.tuned.search(message)):
        name = f"{_tuning_name('algorithms', match[2])} {_tuning_name('protocols', match[3])}"
        if name in log.tuned or len(log.tuned) < COUNT.most_warnings:
            _chosen(log, name, 1, int(match[1]), int(match[1]))
    if "coll channels" in message and (match := SAYS.width.search(message)):
        log.widths.add((int(match[1]), int(match[2] or 0), int(match[3])))
        _finish_start(log, process)
    if "Init timings" in message and len(log.init_s) < COUNT.most and (match := SAYS.init.search(message)):
        log.init_s[int(match[1])] = max(float(match[2]), log.init_s.get(int(match[1]), 0.0))
    if message.startswith("Using network "):
        log.networks[message[14:80].strip()] += 1
    if " set " in message and (match := SAYS.environment.search(message)):
        log.environment.setdefault(match[1], set()).add(match[2].strip().rstrip("."))
    if message.startswith(("NET/IB : Using ", "NET/Socket : Using ")):
        log.nics |= dict.fromkeys(SAYS.nic.findall(message[:4000]))
    if any(word in message for word in _TABLE["counted_words"]):
        log.counted.update(name for name, pattern in _COUNTED if pattern.search(message))
    if ("NET" in message or "libibverbs" in message) and len(log.failures) < COUNT.most_warnings:
        log.failures.update(match[0][: COUNT.most_text].strip() for pattern in _FAILED if (match := pattern.search(message)))


def _chosen(log: NcclLog, name: str, times: int, least: int, most: int) -> None:
    """Count the choice of an algorithm and protocol, and widen the range of its sizes."""
    before = log.tuned.get(name, (0, least, most))
    log.tuned[name] = before[0] + times, min(before[1], least), max(before[2], most)


def _tuning_name(kind: str, word: str) -> str:
    """Return the name of an algorithm or a protocol, which older versions number."""
    names: list[str] = _TABLE[kind]
    return names[int(word)] if word.isdecimal() and len(word) < 3 and int(word) < len(names) else word


def _paths(log: NcclLog, message: str) -> None:
    """Read the way of one channel between two ranks, a ring, or trees."""
    if message.startswith("Trees "):
        for tree, rank, parent in SAYS.tree.findall(message[:200]):
            if tree == "0" and len(log.parents) < COUNT.most:
                log.parents[int(rank)] = int(parent)
    elif match := SAYS.channel.match(message):
        transport, direct = _transport(match[5])
        route = Route(int(match[3]), int(match[4]), transport, direct)
        if len(log.routes) >= COUNT.most and route not in log.routes:
            return
        log.routes[route] = log.routes.get(route, 0) | 1 << (int(match[1]) * 4 + min(3, int(match[2] or 0)))
    elif (match := SAYS.ring.match(message)) and len(log.rings) < COUNT.most_rings:
        ring = tuple(int(rank) for rank in match[1].split() if len(rank) < 10)
        log.rings[ring] = log.rings.get(ring, 0) + 1


@lru_cache(maxsize=4096)
def _transport(via: str) -> tuple[str, bool]:
    """Return a transport without the number of its NIC, and whether the NIC reads the GPU's memory.

    >>> _transport("NET/AWS Libfabric/1(2)/GDRDMA/Shared comm 0x5 nRanks 08"), _transport("SHM/direct/direct")
    (('NET/AWS Libfabric', True), ('SHM', False))
    """
    first, *rest = via.split(" comm ")[0].strip().split("/")
    if first == "NET":
        return f"NET/{rest[0]}" if rest else "NET", "GDRDMA" in rest
    if first == "P2P":
        return f"P2P/{rest[0].split()[0]}" if rest and rest[0].strip() else "P2P", False
    return "SHM" if first == "SHM" or "shared memory" in first else first, False


def _communicator(log: NcclLog, host: str, process: str, match: re.Match[str], message: str) -> None:
    """Record a rank's place in a communicator, whose number all of its ranks share where the version prints it."""
    rank, size, who = int(match[2]), int(match[3]), (process, match[1])
    if len(log.members) >= COUNT.most and who not in log.members:
        return
    number = SAYS.comm_id.search(message)
    key = number[1] if number else log.members.get(who, (f"{size} ranks", 0))[0]
    log.members[who] = (key, rank)
    comm = log.comms.setdefault(key, Communicator(size))
    comm.hosts[rank] = host
    if nodes := SAYS.nodes.search(message):
        comm.nodes = int(nodes[1])
    if "Init COMPLETE" in message:
        comm.complete.add(rank)
        comm.begun.discard(rank)
    elif "Init START" in message:
        _finish_start(log, process)
        log.starting[process] = key, rank
        comm.begun.add(rank)
    elif message.startswith("ncclCommInit") and "COMPLETE" not in message:
        comm.opened.add(rank)


def _finish_start(log: NcclLog, process: str) -> None:
    """Mark a start as finished by what follows it, whether or not the text has its last line."""
    if process and (last := log.starting.pop(process, None)):
        log.comms[last[0]].begun.discard(last[1])


def _read_call(log: NcclLog, process: str, match: re.Match[str]) -> None:
    """Record a call with its size, which is that of the whole tensor."""
    op = OPS.get(match[1], "")
    dtype, size, who = int(match[4]), int(match[6]), (process, match[5])
    if not op or dtype >= len(ELEMENT_BYTES) or (len(log.calls) >= COUNT.most and (who, op, size) not in log.calls):
        return
    _finish_start(log, process)
    nbytes = float(match[3]) * ELEMENT_BYTES[dtype] * (size if op in GATHERED else 1)
    count, total = log.calls.get((who, op, size), (0, 0.0))
    log.calls[who, op, size] = count + 1, total + nbytes
    if op != "send-recv" and len(log.issued) < COUNT.most:
        mine = log.issued.setdefault((size, int(match[2], 16)), {})
        mine[who] = (*mine.get(who, ()), f"{op} of {int(match[3]):,} x {ELEMENT_BYTES[dtype]} bytes")[:64]


def _members(op: str, entering: int, leaving: int) -> int:
    """Return how many ranks share out or gather what goes in, which is how often one side fits into the other.

    >>> _members("_REDUCE_SCATTER_BASE", 4096, 512), _members("_ALLGATHER_BASE", 512, 4096), _members("ALLREDUCE", 8, 8)
    (8, 8, 0)
    """
    small, large = sorted((entering, leaving))
    whole = small > 0 and large % small == 0 and large > small
    return large // small if whole and ("SCATTER" in op or "GATHER" in op) else 0


def _read_watchdog(log: NcclLog, line: str) -> None:
    if "ank" in line and len(log.heard) < COUNT.most and (match := SAYS.heard.search(line)):
        log.heard.add(int(match[1] or match[2]))
    if "Watchdog caught" in line and len(log.timeouts) < COUNT.most_timeouts and (match := SAYS.timeout.search(line)):
        elements, members = (int(match[4]), _members(match[3], int(match[4]), int(match[5]))) if match[4] else (None, 0)
        ran_s = int(match[7] or match[6]) / 1e3
        log.timeouts.append(Timeout(int(match[1]), int(match[2]), match[3], elements, ran_s, members))
    elif "last enqueued" in line and len(log.progress) < COUNT.most and (match := SAYS.progress.search(line)):
        log.progress[match[1], int(match[2])] = Progress(int(match[3]), int(match[4]), int(match[5]))


_JOINED = (
    *("versions", "nics", "members", "parents", "calls", "progress", "rings", "returned", "widths", "heard"),
    *("networks", "counted", "failures", "warnings"),
)
"""Of a log, what is put together as it is."""


def join_logs(logs: Iterable[NcclLog]) -> NcclLog:
    """Join the files of several ranks into one log."""
    whole = NcclLog()
    for log in logs:
        for name in _JOINED:
            getattr(whole, name).update(getattr(log, name))
        for name, values in log.environment.items():
            whole.environment.setdefault(name, set()).update(values)
        for key, comm in log.comms.items():
            mine = whole.comms.setdefault(key, Communicator(comm.size))
            mine.nodes = max(mine.nodes, comm.nodes)
            mine.hosts |= comm.hosts
            mine.complete |= comm.complete
            mine.opened |= comm.opened
            mine.begun = (mine.begun | comm.begun) - mine.complete
        for route, mask in log.routes.items():
            whole.routes[route] = whole.routes.get(route, 0) | mask
        for number, calls in log.issued.items():
            whole.issued.setdefault(number, {}).update(calls)
        for name, figures in log.tuned.items():
            _chosen(whole, name, *figures)
        for size, seconds in log.init_s.items():
            whole.init_s[size] = max(seconds, whole.init_s.get(size, 0.0))
        whole.timeouts += log.timeouts
    return whole
