"""vLLM start-up logs: what the engine says it loaded, how much KV cache it kept, and how it laid out its ranks.

The wording changed over the versions (``vllm_log.toml``); all of these are read, whatever prefixes, colours and interleaved
ranks surround them.
"""

import re
from itertools import islice

from commtax.evidence.thresholds import counts
from commtax.evidence.wordings import patterns
from commtax.logs import crashes
from commtax.logs.startup import STALLED, Claimed, Heard, Moment, Rank, StartupLog, Wordings, axes_of, lines, number, since_last
from commtax.units import GiB

SAYS = patterns(__name__)
_WORDINGS = Wordings("logs/vllm_log.toml")


def looks_like(text: str) -> bool:
    """Whether a text holds lines of a vLLM start-up."""
    return _WORDINGS.fits(text)


def parse(text: str) -> StartupLog:
    """Read a log; of several starts in one file the last counts.

    >>> log = parse("(Worker_TP1 pid=7) INFO 11-15 04:59:15 [x.py:1] Model loading took 7.51 GiB memory and 2.1 seconds")
    >>> log.weights_bytes[0][0], round(log.weights_bytes[0][1] / 2**30, 2)
    ('TP1', 7.51)
    """
    heard, first = Heard(), since_last(lambda: map(_introduced, lines(text)))
    workers: set[tuple[str, int]] = set()  # coordinates in their names
    for line in islice(lines(text), first, None):
        if not _WORDINGS.says(line):
            continue
        who, pid = _process(line)
        workers |= axes_of(_label(who, pid)).items()
        _WORDINGS.hear(heard, _label(who, pid), line)
        _claimed(heard, _label(who, pid), line)
        _layout(heard, line)
        _served(heard, line)
        _stalled(heard, _label(who, pid), line)
    _completed(heard, workers)
    heard.fail(islice(lines(text), first, None) if crashes.may(text) else ())
    return heard.record("vllm")


def _completed(heard: Heard, workers: set[tuple[str, int]]) -> None:
    """Weights, where only the account of all memory has them, and ranks, where only the names of workers tell them."""
    if used := heard.figures.get("used_weights_bytes"):
        heard.figures.setdefault("weights_bytes", used)
    if loaded := heard.figures.get("weights_s"):  # of several, the model's: a drafter is loaded after it
        heard.figures.setdefault("loading_s", list(dict(reversed(loaded)).items()))
    for name in ("loading_s", "compile_s", "init_s", "preempted", STALLED):
        heard.slowest(name)
    if not heard.ranks and workers:
        heard.ranks = {0: Rank(0, **{axis: max(at for name, at in workers if name == axis) for axis, _ in workers})}


def _introduced(line: str) -> tuple[str, str, bool]:
    """Which process begins with a line, if one does."""
    starts = (" LLM engine" in line or "vLLM API server" in line) and bool(SAYS.start.search(line))
    return (*_process(line), True) if starts else ("", "", False)


def _process(line: str) -> tuple[str, str]:
    """Name and pid of the process that wrote a line, where it says them."""
    named = [inside for inside in SAYS.brackets.findall(line[:2000]) if SAYS.worker.match(inside)]
    worker = next((name for name in named if "Worker" in name), named[0] if named else "")  # Ray's stand behind their engine
    match = SAYS.pid.search(worker)
    return worker.split(" pid=")[0].split(",")[0], match[1] if match else ""


def _label(who: str, pid: str) -> str:
    """``TP1``, ``DP0_TP1``, ``rank 0`` from a worker's name; its pid where it has no number (old versions)."""
    if match := re.search(r"(?:DP\d+|PP\d+|TP\d+|EP\d+)(?:_(?:DP|PP|TP|EP)\d+)*", who):
        return match[0]
    if match := re.search(r"rank=(\d+)", who):
        return f"rank {match[1]}"
    return f"pid {pid}" if pid and "Worker" in who else "rank 0"


def _layout(heard: Heard, line: str) -> None:
    """Ranks, groups, backends, and requests of full length."""
    facts = heard.facts
    if max(len(heard.ranks), len(heard.concurrency)) >= counts("logs.startup").most_moments:
        return
    if match := SAYS.concurrency.search(line):
        heard.concurrency.append((int(number(match[1])), number(match[2])))
    if match := SAYS.rank.search(line):
        heard.ranks[int(match[1])] = Rank(int(match[1]), **axes_of(match[3]))
        facts["world_size"] = int(match[2])
    if (match := SAYS.world.search(line)) and (backend := SAYS.backend.search(line, match.end())):
        heard.ranks.setdefault(int(match[2]), Rank(int(match[2])))
        facts |= {"world_size": int(match[1]), "backend": backend[1]}
    if (match := SAYS.backends.search(line)) and (group := SAYS.group.search(line, match.end() - 1)) and group[1] == "tp":
        facts["allreduce_backends"] = tuple(re.findall(r"[\w.]+", match[1]))


def _claimed(heard: Heard, worker: str, line: str) -> None:
    """What a CPU's worker takes of its node, each for itself."""
    if "requested memory" in line and (match := SAYS.claim.search(line)) and all(x.count(".") < 2 for x in match.group(1, 3)):
        claims = heard.facts.setdefault("claims", {})
        if len(claims) < counts("logs.startup").most_moments:
            claims[worker] = Claimed(int(match[2]), float(match[3]) * GiB, float(match[1]) * GiB)


def _stalled(heard: Heard, worker: str, line: str) -> None:
    """How long processes have waited for others by the end of the log: what is done or ready after it was worth the wait."""
    if match := SAYS.stalled.search(line):
        waited = dict(heard.figures.get(STALLED, ()))
        heard.figures[STALLED] = [*(waited | {worker: waited.get(worker, 0.0) + float(match[1])}).items()]
    elif STALLED in heard.figures and (
        "startup complete" in line or ("generation throughput: 0.0 " not in line and SAYS.moment.search(line))
    ):
        del heard.figures[STALLED]


def _served(heard: Heard, line: str) -> None:
    """A line that a serving engine writes every few seconds; those of an idle one say nothing."""
    if "generation throughput" not in line or len(heard.moments) >= counts("logs.startup").most_moments:
        return
    keys = dict[str, float]()
    for found in SAYS.moment.finditer(line):
        key, value = filter(None, found.groups())
        keys.setdefault("Waiting" if key == "Pending" else key, float(value))  # of the GPU's cache before the host's
    rate, running, waiting = (keys.get(key) for key in ("generation", "Running", "Waiting"))
    if running is None or not (rate or running or waiting):
        return
    usage, hits = (keys[key] / 100 if key in keys else None for key in ("KV cache usage", "Prefix cache hit rate"))
    prompts, waits = keys.get("prompt", 0.0), None if waiting is None else int(waiting)
    heard.moments.append(Moment(int(running), waits, rate or 0.0, usage, prompt_tokens_per_s=prompts, prefix_hits=hits))
