"""SGLang logs: the start (weights, KV cache, ranks, arguments) and the lines that its scheduler writes while it serves.

Memory is counted in GiB whatever the unit says. A speculative model's cache has as many tokens as that of the model it helps, and
is no part of it; a cache for windows has fewer, and is.
"""

import re
from collections.abc import Iterator
from itertools import islice

from commtax.evidence.thresholds import counts
from commtax.evidence.wordings import patterns
from commtax.logs import crashes
from commtax.logs.startup import Heard, Moment, Rank, StartupLog, Wordings, axes_of, lines, number, since_last
from commtax.units import GiB

SAYS = patterns(__name__)
_START = "server_args=ServerArgs("
_COUNT = re.compile(r"(#[a-z-]{1,30}(?: token)?|token usage|cuda graph|(?:gen|input) throughput \(token/s\)): ([\w.]{1,30}+)")
_IDLE = "#running-req: 0,"  # in a line of prompts: nothing else ran
_WORDINGS = Wordings("logs/sglang_log.toml")


def looks_like(text: str) -> bool:
    """Whether a text holds lines of an SGLang server."""
    return _WORDINGS.fits(text)


def parse(text: str) -> StartupLog:
    """Read a log; of several starts in one file the last counts.

    >>> log = parse("[2025-03-08 12:29:21 TP1] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB")
    >>> log.kv_tokens, round(log.available_kv_bytes / 2**30, 2)
    (46611, 2.84)
    """
    heard, pools, resumed = Heard(), dict[str, dict[int, float]](), set[str]()
    first = since_last(lambda: _introduced(text))
    for line in islice(lines(text), first, None):
        if not _WORDINGS.says(line):
            continue
        match = SAYS.worker.match(line)
        worker = match[1].strip().replace(" ", "_") if match else "rank 0"
        if "Load weight" in line and any(worker == who for who, _ in heard.figures.get("weights_bytes", ())):
            continue  # a drafter is loaded after the model that it helps
        _WORDINGS.hear(heard, worker, line)
        _cache(pools, worker, line)
        _served(heard, line, worker, resumed)
    _summed(heard, pools)
    heard.fail(islice(lines(text), first, None) if crashes.may(text) else ())
    return heard.record("sglang")


def _introduced(text: str) -> Iterator[tuple[str, str, bool]]:
    """Which host's server printed its arguments: that it did so again is another start."""
    for at, line in enumerate(lines(text)):
        node = SAYS.node.search(line) if _START in line else None
        yield (node[1] if node else "0"), str(at), _START in line


def _cache(pools: dict[str, dict[int, float]], worker: str, line: str) -> None:
    """A pool of the cache by its tokens; the first of as many tokens is the model's own."""
    if match := SAYS.cache.search(line):
        nbytes = sum(float(size) for size in SAYS.size.findall(match[2])) * GiB
        pools.setdefault(worker, {}).setdefault(int(match[1]), nbytes)


def _summed(heard: Heard, pools: dict[str, dict[int, float]]) -> None:
    """The cache of the worker that has least."""
    if held := [(sum(pool.values()), max(pool)) for pool in pools.values()]:
        heard.note("available_kv_bytes", "", min(held)[0])
        heard.figures.setdefault("kv_tokens", [("", min(held)[1])])
    workers = dict.fromkeys(worker for noted in heard.figures.values() for worker, _ in noted)
    heard.ranks = {at: Rank(at, **axes) for at, worker in enumerate(workers) if (axes := axes_of(worker))}
    heard.slowest("loading_s")
    if retracted := heard.figures.get("preempted"):  # each line counts those of its own step
        heard.figures["preempted"] = [("", sum(count for _, count in retracted))]
    if heard.settings.get("enable_dp_attention") == "True":  # replicas share the ranks that tp counts
        heard.facts["tp"] = max(1, heard.facts.get("tp", 1) // max(1, heard.facts.get("dp", 1)))


def _served(heard: Heard, line: str, worker: str, resumed: set[str]) -> None:
    """A batch as the scheduler counts it; the first decode line after nothing ran counts the pause too, and says nothing."""
    match = SAYS.batch.search(line)
    if not match or len(heard.moments) >= counts("logs.startup").most_moments:
        return
    said: dict[str, str] = dict(reversed(_COUNT.findall(line, match.end())))  # of a full cache before that of windows
    if match[1] == "Prefill":
        if _IDLE in line:
            resumed.add(worker)
        _counted(heard, said, prompts=_figure(said, "input throughput (token/s)") or 0.0)
    elif worker in resumed:
        resumed.discard(worker)
    elif (rate := _figure(said, "gen throughput (token/s)")) is not None:
        _counted(heard, said, rate, graph={"True": True, "False": False}.get(said.get("cuda graph", "")))


def _counted(heard: Heard, said: dict[str, str], rate: float = 0.0, prompts: float = 0.0, graph: bool | None = None) -> None:
    """One line's counts; what runs is that of the line before, where a terminal cut it out of the line."""
    tokens = _figure(said, "#token") or _figure(said, "#full token")
    running, waiting, begun = (_figure(said, name) for name in ("#running-req", "#queue-req", "#new-seq"))
    if running is None and waiting is not None and heard.moments:
        running = heard.moments[-1].running
    if running is not None:
        waits, cached = None if waiting is None else int(waiting), int(tokens) if tokens else None
        share = _figure(said, "token usage")
        heard.moments.append(Moment(int(running), waits, rate, share, cached, graph, prompts, let_in=int(begun or 0)))


def _figure(said: dict[str, str], name: str) -> float | None:
    value = said.get(name, "").rstrip(".")
    return number(value) if value.replace(".", "", 1).isdecimal() else None
