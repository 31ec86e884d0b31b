"""What the lines of a serving engine tell: how many requests ran and waited, how full the cache was, and what holds others up."""

from collections.abc import Iterator, Sequence
from statistics import median

from commtax.files import table
from commtax.runs.evidence.finding import Cause, Finding
from commtax.runs.logs.startup import Moment, StartupLog
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import GiB, plural

COUNT, LEVEL = thresholds(__name__)
CAUSES = table("runs/logs/log_causes.toml")


def serving_findings(log: StartupLog) -> Iterator[Finding]:
    """Medians over the lines in which anything was done or waited for, with the range of each."""
    busy = [m for m in log.moments if m.running or m.waiting or m.prompt_tokens_per_s]
    told: dict[str, Sequence[float]] = {
        "requests running": [m.running for m in busy if m.running],
        "requests waiting": [m.waiting for m in busy if m.waiting is not None and log.engine != "trtllm"],  # which does not tell
        "prompt tokens/s": [m.prompt_tokens_per_s for m in busy if m.prompt_tokens_per_s],
        "generated tokens/s": [m.tokens_per_s for m in busy if m.tokens_per_s],
        "tokens in the KV cache": [m.cached_tokens for m in busy if m.cached_tokens],
    }
    for name, values in told.items():
        if values:
            yield Finding(name, None, median(values), reason=range_in_words(values), told=True)
    if hits := [m.prefix_hits for m in busy if m.prefix_hits is not None]:
        item, why = "prompt tokens found in the prefix cache", f"since the start, {_lines(hits)}"
        yield Finding(item, None, hits[-1], "share", reason=why, told=True)
    if shares := [m.cache_share for m in busy if m.cache_share is not None]:
        low = f"{min(shares):.1%} at least, " if min(shares) < max(shares) else ""
        item = Note("cache", "KV cache in use, at most")
        yield Finding(item, None, max(shares), "share", reason=f"{low}{_lines(shares)}", told=True)


def range_in_words(values: Sequence[float]) -> str:
    """From the least to the most, where they differ, and in how many lines."""
    low, high = min(values), max(values)
    shown = f"{low:,.10g} to {high:,.10g}, " if low < high else ""
    return f"{shown}{_lines(values)}"


def _lines(values: Sequence[float]) -> str:
    return f"in {plural(len(values), 'line')}"


def served_cause(code: str, said: str) -> Cause:
    return Cause(code, said, change=CAUSES["served"][code])


def waits_for_cache(waits: Sequence[Moment], moments: Sequence[Moment]) -> bool:
    """Whether lines in which requests wait for a full cache are no chance: several, or many wait in most of a few."""
    many = [m for m in waits if (m.waiting or 0) >= max(COUNT.chance, LEVEL.many * m.running)]
    return len(waits) >= COUNT.few_moments or 2 * len(many) > len(moments)


def queue_causes(log: StartupLog) -> Iterator[Cause]:
    """Queues behind a full cache and others, and a cache that has no room for a second request."""
    yield from _overload_causes(log)
    moments = [m for m in log.moments if m.waiting is not None and (m.running or m.waiting)]
    queued = [m for m in moments if (m.waiting or 0) >= max(1, m.running)]
    full = [m for m in moments if m.waiting and (m.cache_share or 0.0) >= LEVEL.full_cache]
    if len(queued) >= COUNT.few_moments and 2 * len(queued) > len(moments) and not waits_for_cache(full, moments):
        # As many requests wait as run, or more, and the cache has room: prompts bind, or nobody is let in. A full house is none.
        waiting, running = [m.waiting or 0 for m in queued], [m.running for m in queued]
        shares = [m.cache_share for m in queued if m.cache_share is not None]
        cache = f", with the KV cache {max(shares):.0%} full at most" if shares else ""
        words = f"requests queue: {_range_text(waiting)} wait while {_range_text(running)} run{'s' * (max(running) == 1)}{cache}"
        prompts = median(m.prompt_tokens_per_s for m in queued)
        if prompts > median(m.tokens_per_s for m in queued):
            yield served_cause("queue", f"{words}: their prompts are computed at {prompts:,.0f} tokens/s, and bind")
        elif waiting[-1] >= (1 - LEVEL.many) * waiting[0] and any(m.let_in for m in queued):
            fewer = "no fewer" if waiting[-1] >= waiting[0] else "hardly fewer"
            words = f"overloaded: {_range_text(waiting)} wait while {_range_text(running)} run, and {fewer} at the end"
            yield served_cause("overload", words)
        elif waiting[-1] >= waiting[0] and not any(m.prompt_tokens_per_s for m in queued):
            change = "a higher limit of running requests, or more KV memory where the next request needs more than is free"
            yield Cause("queue", f"{words}: none is let in", change=change)
    if (lost := log.figures.get("preempted", 0.0)) >= COUNT.chance:
        said = f"overloaded: {lost:,.0f} times a request lost its place in the KV cache, and was computed again"
        yield served_cause("preempted", said)
    yield from _small_cache(log)


def _overload_causes(log: StartupLog) -> Iterator[Cause]:
    """Requests that wait for a full cache or ever more of them, and steps that are launched one by one."""
    moments = [m for m in log.moments if m.running]
    waits = [m for m in moments if m.waiting and (m.cache_share or 0.0) >= LEVEL.full_cache]
    if waits_for_cache(waits, moments):
        most, full = max(m.waiting or 0 for m in waits), f"{plural(len(waits), 'line')} of {len(moments)}"
        queue = f"up to {most:,} requests wait" if most > 1 else "1 request waits"
        yield served_cause("cache full", f"overloaded: the KV cache is full in {full}, and {queue}")
    yield from _growing_queue(moments)
    launched = [m for m in moments if m.graph is False and m.running > COUNT.always_captured]
    decoded = sum(m.graph is not None or m.tokens_per_s > 0 for m in moments)
    if len(launched) >= COUNT.few_moments and len(launched) * 2 > decoded:
        said = f"{plural(len(launched), 'decode line')} of {decoded} ran without a CUDA graph"
        yield served_cause("no graph", said)


def _growing_queue(moments: list[Moment]) -> Iterator[Cause]:
    """More requests wait in the last third of the lines than in the first, and as many as run: more come than are answered."""
    told = [m for m in moments if m.waiting is not None]
    third = len(told) // 3
    if third < COUNT.few_moments:
        return
    early, late = (median(m.waiting or 0 for m in part) for part in (told[:third], told[-third:]))
    if late >= LEVEL.grows * max(1.0, early) and late >= median(m.running for m in told[-third:]):
        said = f"overloaded: {early:.0f} requests wait in the first third of the lines, and {late:.0f} in the last"
        yield served_cause("overload", said)


def _range_text(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"


def _small_cache(log: StartupLog) -> Iterator[Cause]:
    """A cache that is small beside the weights and holds hardly more than one request of full length."""
    kv, each = log.available_kv_bytes, max((nbytes for _, nbytes in log.weights_bytes), default=0.0)
    if kv is None or not log.max_concurrency or log.max_concurrency >= LEVEL.full_lengths or not 0 < kv < LEVEL.little * each:
        return
    length = f" of {log.max_model_len:,} tokens" if log.max_model_len else ""
    held = f"{kv / GiB:.2f} GiB beside {each / GiB:.2f} GiB of weights"
    said = f"almost no KV cache: {held} hold {log.max_concurrency:.2f} requests"
    yield served_cause("little cache", f"{said}{length}")
