"""The question, as one frozen record that every verb takes.

Command line, page, pasted command, planner, audit and what-ifs all build a ``Question``; ``question.but(tp=4)`` is the same one
with something changed. Sizes, batch and lengths may be NumPy arrays, and then every figure of the answer is one.
Change here what can be asked: a new field has its option in ``options.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Self

import numpy as np

from commtax.records import dataclass, replace
from commtax.spec import Cluster, Condition, Engine, Model, Number, Plan, Profile, TrainStep, Workload
from commtax.spec.plan import NO_TECHNIQUES, Techniques
from commtax.spec.stream import Lengths, RequestStream
from commtax.statement import Note

SPREAD = 0.5  # requests of real users differ; those of equal length that start together go on in lockstep
MAX_CONCURRENCY = 1024  # clients of a copy, or of a rank of its attention data parallelism, that a search goes up to
CONFIDENCE = 0.65  # probability with which a search keeps limits by default (benchmarks/decisions.py)
AUTO = "auto"
STEP_AXES = ("batch", "context")  # what a step grows with, whatever its plan
EVEN = 0.5  # … and the one that goes by the central prediction
Changes = Mapping[str, object]  # fields of a question, and what they become


@dataclass(frozen=True, slots=True)
class Phase:
    """A kind of step, and its defaults."""

    name: str
    title: str
    engine: str
    length: int  # tokens of a sequence
    least: int = 1  # … at least
    trains: bool = False
    staged: bool = True  # its batch is split into one microbatch a stage


INPUT_LEN, OUTPUT_LEN, SEQUENCE_LEN = 1024, 128, 4096
"""Default tokens of every verb: of a prompt or a cache, of an answer, of a sequence in training."""
_PHASES = (
    Phase("decode", "Decode", "vllm", INPUT_LEN, least=0),
    Phase("prefill", "Prefill", "vllm", INPUT_LEN),
    Phase("mixed", "A mixed step", "vllm", INPUT_LEN, staged=False),
    Phase("train", "A training step", "megatron", SEQUENCE_LEN, trains=True, staged=False),
)
PHASES: Mapping[str, Phase] = {phase.name: phase for phase in _PHASES}


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How a step is run beside its plan: each field but the last is a labelled change of the plain answer."""

    eager: bool = False  # every kernel is launched by the host; in training, element-wise kernels are not fused
    ep_backend: str = ""  # how tokens reach their experts; "": the engine's own
    sampling: str = "greedy"  # how the next token is chosen; "top-p": among the most likely, for which some engines sort all logits
    overlap: float = 0.0  # share of communication that a user supposes hidden
    slow_rank: float = 1.0  # the slowest rank's compute time over the others': all wait for it
    latency_scale: float = 1.0  # of every collective
    bandwidth_scale: Number = 1.0
    library: str = ""  # whose collectives run; "": the engine's own
    async_axes: tuple[str, ...] | None = None  # axes whose collectives run beside compute; None: the engine's own
    imbalance: float = 0.0  # tokens of the busiest expert rank over the mean; 0: training 1, serving as routers were measured
    slow_axis: str = ""  # the axis whose links alone …
    slow_links: float = 1.0  # … have this share of their bandwidth
    flops: str = "full"  # which query-key pairs MFU counts: all of them, or causal ones

    @property
    def trained_imbalance(self) -> float:
        """Return the tokens of the busiest expert rank over the mean in training, which balances its router."""
        return self.imbalance or 1.0

    def beside(self, engine: Engine) -> tuple[str, ...]:
        """Return the axes whose collectives run beside compute."""
        return engine.trains.async_axes if self.async_axes is None else self.async_axes


AS_IT_IS = WhatIf()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a launch command limits, 0 where it leaves that to the engine."""

    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    gpu_memory_utilization: float = 0.0
    block_size: int = 0
    kv_cache_memory_bytes: float = 0.0  # a fixed KV budget a rank; 0: what is left
    recurrent_dtype: str = ""  # of states; "": the model's own, or the engine's
    state_slots: int = 0  # states of a layer that a running request has


@dataclass(frozen=True, slots=True)
class Requests:
    """A closed loop: ``concurrency`` clients that each send a request as soon as the last one is answered."""

    concurrency: Number = 1  # of all replicas
    input_len: Number = INPUT_LEN
    output_len: Number = OUTPUT_LEN
    num_prompts: Number = np.inf  # requests of the whole benchmark; inf: the steady state
    spread: Number = SPREAD  # lengths vary by this share of their mean to either side
    disaggregated: bool = False  # prompts run on workers of their own; in a search: such plans are tried
    prefill_workers: int | None = None  # None: enough that no prompt waits
    prefill_tp: int | None = None
    prefill_dp: int | None = None  # ranks of attention data parallelism of a prompt worker
    decode_workers: int | None = None
    prefill_cluster: Cluster | None = None  # where prompt workers are; None: beside those that decode
    kv_tokens: Number | None = None  # free tokens of a replica's cache, where they are measured; None: predicted

    @property
    def tokens(self) -> Number:
        """Of a whole request."""
        return self.input_len + self.output_len


@dataclass(frozen=True, slots=True)
class OfferedRequests:
    """Requests in time: when they come, how long they are, which of them share text, and how replicas share them."""

    request_rate: float = 0.0  # requests/s over all replicas; 0: there is none
    burstiness: float = 1.0  # shape of the gaps' gamma distribution: 1 Poisson, less in bursts, infinite a constant rate
    duration_s: float = math.inf  # requests that arrive within it; infinite: ``num_prompts`` of them
    inputs: Lengths | None = None  # None: ``requests.input_len``, give or take its spread
    outputs: Lengths | None = None
    trace: RequestStream | None = None  # requests as they came; the fields above do not count then
    unique_prompts: int = 0  # distinct prompts that come again and again; 0: none comes twice
    shared_prefix: int = 0  # tokens that all prompts begin with
    prefix_hit_rate: float = 0.0  # share of a prompt that is in the cache, where it is measured
    max_in_flight: float = math.inf  # clients have no more requests in flight
    ramp_up_s: float = 0.0  # the first requests of a closed loop are spread over this long
    warmup: int = 0  # requests that no figure counts
    router: str = "round-robin"
    seed: int = 0

    def cached_tokens(self, input_len: Number) -> Number:
        """Return the tokens of a prompt that are in the cache: a measured share, or the text that all prompts begin with."""
        return np.maximum(self.prefix_hit_rate * input_len, np.minimum(self.shared_prefix, input_len))


@dataclass(frozen=True, slots=True)
class Goal:
    """What a search is for. Limits are of means over requests of a closed loop: TTFT from sending to the first token."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    objective: str = "throughput"
    dtypes: tuple[str, ...] = ("",)  # types of weights that are tried
    max_concurrency: int | None = None  # clients of all copies together; None: as many as copies take
    usd_per_gpu_hour: float = 0.0  # 0: none is stated
    prefill_usd_per_gpu_hour: float = 0.0  # of GPUs for prompts that are others
    cost_of: str = "output"  # tokens that dollars are spread over: those of outputs, or ``total``, those of prompts too
    global_batch: int = 0  # training: sequences of a step over all replicas …
    train_tokens: float = 1e12  # … and tokens of a whole run
    slo: tuple[tuple[str, float], ...] = ()  # requests in time: statistics (``ttft_p95``) and the seconds that they may have
    growth: float = 0.0  # … and the share by which the rate may grow with the limits still kept
    confidence: float = CONFIDENCE  # probability with which each limit is kept, by the ranges of the times
    # Sets of techniques that are tried beside none, or ``AUTO``: those that gain on good plans …
    technique_sets: tuple[str, ...] = ()
    technique_layouts: tuple[tuple[int, ...], ...] = ()  # … on these layouts (exchange, mode, tp, pp, dp, ep)
    workload: str = ""  # what is served, by name: in a ``batch`` first tokens may wait
    margin: float | None = None  # by which the best may beat a simpler plan that is recommended; None: the range of their ratio

    @property
    def limited(self) -> bool:
        """Whether the time of a token is."""
        return self.tpot_s < math.inf

    @property
    def times(self) -> tuple[tuple[str, float], ...]:
        """Return the means that are limited, and their limits."""
        return tuple((name, limit) for name, limit in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s)) if limit < math.inf)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures that every prompt has. Their tokens are part of its length."""

    images: int = 0
    image_size: tuple[int, int] = (1024, 1024)  # pixels, width and height


def workload(phase: str, batch: Number, context: Number, speculative: int = 0) -> Workload:
    """Return one serving step of ``batch`` sequences."""
    rows = 1 + speculative
    if phase == "decode":
        return Workload(decode_seqs=batch, cached_tokens=batch * context, rows_per_seq=rows)
    if phase == "prefill":
        return Workload(prefill_seqs=batch, prefill_tokens=batch * context)
    return Workload(batch, batch * context, prefill_seqs=1, prefill_tokens=context, rows_per_seq=rows)


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its names resolved. ``notes`` and ``codes`` are what the rules find in its plan."""

    model: Model
    cluster: Cluster
    engine: Engine
    plan: Plan = Plan()
    phase: str = "decode"
    batch: Number = 1  # sequences a replica and step
    context: Number = INPUT_LEN  # cached tokens a sequence in decode, prompt length in prefill, sequence length in training
    micro_batch: Number = 1  # training: sequences that pass the stages together
    speculative: int = 0  # drafted tokens a sequence
    pictures: Pictures = Pictures()
    what_if: WhatIf = AS_IT_IS
    techniques: Techniques = NO_TECHNIQUES
    limits: Limits = Limits()
    requests: Requests = Requests()
    offered: OfferedRequests = OfferedRequests()
    goal: Goal = Goal()
    profile: Profile | None = None  # a machine's own constants, laid over cluster and engine
    notes: tuple[Note, ...] = ()
    codes: Number = 0  # for arrays: 0 where legal, else 1 + the index in ``legality.RULES`` of the rule that is broken

    @property
    def kind(self) -> Phase:
        return PHASES[self.phase]

    @property
    def trains(self) -> bool:
        return self.kind.trains

    @property
    def legal(self) -> Condition:
        """Return, for arrays, which elements are legal plans."""
        return self.codes == 0

    @property
    def places(self) -> tuple[Cluster, ...]:
        """Return where it runs: the cluster, or that of prompt workers and that of those that decode."""
        ahead = self.requests.prefill_cluster
        return (ahead, self.cluster) if ahead else (self.cluster,)

    @property
    def gpus_there(self) -> int:
        return sum(place.num_gpus for place in self.places)

    @property
    def in_flight(self) -> Number:
        """Return the sequences that pass the stages together: one microbatch per stage of a batch, or the whole mixed step."""
        return self.micro_batch if self.trains else np.ceil(self.batch / self.plan.pp) if self.kind.staged else self.batch

    @property
    def work(self) -> Workload:
        return self.seen(workload(self.phase, self.in_flight, self.context, self.speculative), self.context)

    def seen(self, work: Workload, prompt: Number) -> Workload:
        """Return a step with the pictures of its prompts, each ``prompt`` tokens long: as many as the computed share of them."""
        if not self.pictures.images or self.model.tower is None:
            return work
        prompts = work.prefill_tokens / np.maximum(1, prompt)
        return replace(work, pictures=prompts * self.pictures.images, patches=self.model.tower.patches(*self.pictures.image_size))

    @property
    def step(self) -> TrainStep:
        return TrainStep(self.micro_batch, self.context)

    @property
    def tokens(self) -> Number:
        """Tokens that come out of a step of all replicas: trained ones, or one a sequence and the drafts that it accepts."""
        if self.trains:
            return self.batch * self.plan.dp * self.context
        decoded = self.batch * self.techniques.per_step if self.phase != "prefill" else self.batch
        return (decoded if self.kind.staged else decoded + 1) * self.plan.dp * self.plan.replicas

    def but(self, **changes: Any) -> Question:
        """Return the same question with something changed, whichever of its parts that belongs to."""
        for part, names in PARTS.items():
            if inner := {name: changes.pop(name) for name in names if name in changes}:
                changes[part] = replace(changes.get(part, getattr(self, part)), **inner)
        return replace(self, **changes)

    def normal(self) -> Self:
        """Return the question of its step alone: the rest does not change what the step costs."""
        return replace(self, limits=Limits(), requests=Requests(), offered=OfferedRequests(), goal=Goal(), notes=(), codes=0)


PARTS: Mapping[str, tuple[str, ...]] = {
    part.name: tuple(f.name for f in fields(part.default)) for part in fields(Question) if is_dataclass(part.default)
}
