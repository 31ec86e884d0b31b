"""Prefixes that lie in another tier than the GPU's cache: loading them against computing them again."""

from collections.abc import Iterator

import numpy as np

from commtax.arrays import Array
from commtax.catalog.hardware import host_Bps, tier
from commtax.cost.caches import kv_bytes_per_token, loading_s, state_bytes_per_sequence
from commtax.cost.pricing import inference_bill
from commtax.question import Question
from commtax.records import dataclass
from commtax.rules.techniques import check_moving
from commtax.spec import Number, Workload
from commtax.statement import UNSAID, Note, Refusal
from commtax.units import format_seconds
from commtax.verbs.kv_caches import outside_Bps
from commtax.verbs.settling import terms_of

LENGTHS = 2.0 ** np.arange(4, 18)  # prefixes that are looked at for where loading begins to pay


@dataclass(frozen=True, slots=True)
class PrefixReturn:
    """Seconds of loading a prefix and of computing it beside what follows, and the length from which on loading is faster."""

    tokens: float
    loaded_s: float
    computed_s: float
    pays_from: float  # infinite: from none


def prefix_loading_s(worker: Question, tokens: Number) -> Number:
    """Return the seconds of loading a prefix to all ranks of its prompt, each over its link, 0 where their caches have it."""
    if not worker.techniques.kv_tier:
        return 0.0
    where, plan, model = tier(worker.techniques.kv_tier), worker.plan, worker.model
    nbytes = (kv_bytes_per_token(model, plan) * tokens + state_bytes_per_sequence(model, plan)) / plan.pp
    page, host_rate = worker.limits.block_size or worker.engine.memory.block_size, host_Bps(worker.cluster.chip)
    if not where.networked and not host_rate:
        rule = f"how {worker.cluster.chip.key} is linked to its host's memory is not known"
        raise Refusal(rule, "technique", subject=f"kv-offload={where.key}")
    rate = outside_Bps(worker.cluster, plan.num_gpus) if where.networked else min(where.bandwidth_Bps or np.inf, host_rate)
    return loading_s(nbytes, np.ceil(tokens / page), rate * where.share, where.piece_s, where.transfer_s)


def prefix_return(worker: Question, tokens: float) -> PrefixReturn:
    """Compare loading with computing, for a prefix of so many tokens and along all lengths."""
    lengths = np.append(LENGTHS[: np.searchsorted(LENGTHS, worker.model.max_len, "right")], max(1.0, tokens))
    rest = float(worker.limits.block_size or worker.engine.memory.block_size)  # what follows is computed whether or not it is found
    prompts = Workload(prefill_seqs=1.0, prefill_tokens=np.append(lengths, 0.0) + rest)
    whole: Array = np.asarray(inference_bill(terms_of(worker), prompts, 1).step_s)
    computed = np.maximum(0.0, whole[:-1] - whole[-1])
    loaded: Array = np.asarray(prefix_loading_s(worker, lengths))
    return PrefixReturn(tokens, float(loaded[-1]), float(computed[-1]), break_even(lengths[:-1], loaded[:-1], computed[:-1]))


def break_even(tokens: Array, loaded_s: Array, computed_s: Array) -> float:
    """Return the least length from which on loading is faster than computing at all lengths tried, else infinity."""
    last = int(np.flatnonzero(loaded_s >= computed_s)[-1]) if np.any(loaded_s >= computed_s) else -1
    if last in (-1, len(tokens) - 1):
        return float(tokens[0] if last < 0 else np.inf)
    # between the last that loses and the first that wins, both are taken to grow evenly; what the host's time hides costs nothing
    before, after = (float(computed_s[i] - loaded_s[i]) for i in (last, last + 1))
    return float(tokens[last] + (tokens[last + 1] - tokens[last]) * -before / (after - before))


def prefix_notes(worker: Question) -> Iterator[Note]:
    """Yield a note on the prefixes of requests, as long as whole prompts where their share is not set."""
    if worker.techniques.kv_tier and np.ndim(worker.requests.input_len) == 0:
        yield prefix_note(worker, float((worker.offered.prefix_hit_rate or 1.0) * worker.requests.input_len))


def prefix_note(worker: Question, tokens: float) -> Note:
    """Return the note that compares loading a prefix with computing it."""
    prefix, where = prefix_return(worker, tokens), tier(worker.techniques.kv_tier)
    pays = f"from about {prefix.pays_from:,.0f} tokens on" if np.isfinite(prefix.pays_from) else "at no length"
    pays = "at every length" if prefix.pays_from <= LENGTHS[0] else pays
    times = f"{format_seconds(prefix.loaded_s)} to load from {where.title} and {format_seconds(prefix.computed_s)} to compute"
    return Note("kv-offload", f"a prefix of {tokens:,.0f} tokens takes {times}; loading is faster {pays}")


def check_weighed(q: Question) -> None:
    """Refuse techniques that change no step: caches move between workers, and prefixes come back, before a step."""
    check_moving(q)
    if q.techniques.kv_tier and not q.offered.prefix_hit_rate:
        rule = f"{prefix_note(q, float(np.max(q.context)))}; simulate --prefix-cache SHARE prices such requests"
        raise Refusal(rule, "technique", kind=UNSAID, subject=f"kv-offload={q.techniques.kv_tier}")
