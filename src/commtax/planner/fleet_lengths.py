"""How many of a fleet's copies are simulated, which requests they see, and how long runs of them are."""

from dataclasses import replace
from math import ceil, isfinite, isinf

from commtax.arrays import cache_few_answers
from commtax.judgement.fleet_samples import Size
from commtax.planner.layouts import Layout
from commtax.question import Question
from commtax.spec import Plan
from commtax.spec.stream import RequestStream
from commtax.verbs.loads import Sample, sample_of, stream_of, used_of, workers_of

COUNTED, EACH = 1000, 300  # requests that count: of a run, and for each copy in it
MOST = 20_000  # requests of a run
TOKEN_S = 0.05  # an output token takes this long, where no limit says: how long the warm-up lasts
_cached_stream = cache_few_answers(stream_of)


def warm_up_requests(q: Question) -> int:
    """Requests under way at once where tokens take as long as they may (Little's law): the warm-up."""
    limits = [limit for name, limit in q.goal.slo if name.split("_")[0] in ("itl", "tpot")]
    outputs = q.offered.outputs.mean if q.offered.outputs else float(q.requests.output_len)
    return ceil(q.offered.request_rate * outputs * min([*limits, TOKEN_S]))


def lengths_of_run(q: Question, copies: int) -> tuple[int, int]:
    """Requests of a run, and how many of them are warm-up."""
    if isfinite(q.requests.num_prompts):
        count = int(q.requests.num_prompts)
        return count, min(warm_up_requests(q), count // 5)
    counted = max(COUNTED, EACH * copies)
    warmup = min(warm_up_requests(q), MOST - min(counted, MOST // 2))
    return min(MOST, warmup + counted), warmup


def is_sampled(layout: Layout, size: Size) -> bool:
    """Whether a few copies are simulated for the fleet."""
    return sample_of_fleet(layout, size).size != size


def sample_of_fleet(layout: Layout, size: Size) -> Sample:
    """The copies that are simulated for a fleet."""
    workers = workers_of(size, layout.apart)
    sample = sample_of(layout.question.but(**workers))
    return replace(sample, question=sample.question.but(num_prompts=layout.question.requests.num_prompts))


def used_size(layout: Layout, size: Size) -> Size:
    """Copies, and workers of prompts, that get requests."""
    q = layout.question
    return (size[0], used_of(q, size[1])) if layout.apart else (used_of(q, size[0]), 0)


def run_lengths(sample: Sample) -> tuple[int, int]:
    """Requests of a run of a sample, and how many of them are warm-up: as many more as are decoded elsewhere."""
    count, warmup = lengths_of_run(sample.question, sum(sample.size) if sample.share == 1 else 1)
    return (min(MOST, ceil(count / sample.decoded)), warmup) if isinf(sample.question.requests.num_prompts) else (count, warmup)


def all_requests(q: Question) -> RequestStream:
    """The longest stream that any fleet of a question sees, at one request/s."""
    count = q.requests.num_prompts if isfinite(q.requests.num_prompts) else MOST
    alike = replace(q.requests, num_prompts=count, disaggregated=False, prefill_tp=None, kv_tokens=None)
    alike = replace(alike, prefill_workers=None, decode_workers=None)
    return _cached_stream(replace(q, plan=Plan(), requests=alike, offered=replace(q.offered, request_rate=1.0, burstiness=1.0)))
