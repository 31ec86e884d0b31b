"""The step of any phase: its price (``commtax.bill``, ``commtax.train_bill``), and what it sends (``commtax.traffic``)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import repeat
from typing import Any, Unpack

import numpy as np

from commtax import catalog
from commtax.answer import Answer
from commtax.arrays import cache_answers, pick
from commtax.cost.compute import Placing, busiest_rank
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import pace_of
from commtax.cost.memory import TrainMemory, training_memory
from commtax.cost.placement import expert_ranks, span
from commtax.cost.pricing import Pricer, backend_of, comm_lines, expose_lines, in_step, inference_bill
from commtax.cost.traffic import inference, padded_rows
from commtax.ledger import Z80, Bill, Item, Line
from commtax.options import check_taken
from commtax.question import INPUT_LEN, Limits, Question
from commtax.records import dataclass, replace
from commtax.rules.questions import LOOKING, check_arithmetic, check_pictures
from commtax.spec import ARITHMETIC, TAXES, Cluster, Condition, Engine, Model, Number
from commtax.statement import Note, Refusal
from commtax.verbs.keywords import BillOptions, TrafficOptions, TrainBillOptions
from commtax.verbs.settling import Settled, context_notes, copies_cache, link_notes, resolve_question, settle, terms_of

LEAST_S = 1e-12
USABLE = 0.95  # share of the chip's memory that a training run can use


@dataclass(frozen=True)  # without slots: sums are asked for often and kept
class StepBill(Bill, Answer):
    """A priced step with the question it answers: lines that add up to it.

    >>> import commtax
    >>> step = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8)
    >>> bool(sum(line.exposed_s for line in step.items) == step.step_s)
    True
    """

    question: Settled
    rows: Number  # of the activation matrix, padding included
    notes: tuple[Note, ...] = ()

    @property
    def legal(self) -> Condition:
        return self.question.legal

    @property
    def low_s(self) -> Number:
        """The lower end of its 80 % range, which the chip's bandwidth and peak cut off."""
        least = np.minimum(self.step_s, self.least_s(self.question.cluster.chip.memory_Bps))
        return np.maximum(self.step_s * np.exp(-Z80 * self.sigma), least)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{x.kind}: {x.source}" for x in self.items if x.source))

    @property
    def async_axes(self) -> tuple[str, ...]:
        """Axes whose collectives run beside compute."""
        return self.question.what_if.beside(self.question.engine)

    def runs_beside(self, line: Line) -> bool:
        """Return whether a collective is launched beside compute: with its whole axis, or by itself."""
        return line.item.whole_axis in self.async_axes or bool(np.any(np.asarray(line.hidden_s) > 0))

    @property
    def bubble_s(self) -> Number:
        return self._sum(lambda line: line.exposed_s, "bubble")

    @property
    def bubble_fraction(self) -> Number:
        return self.bubble_s / self.step_s

    @property
    def taxes(self) -> dict[str, Number]:
        """Seconds that each axis adds to the step, those of the pipeline being its hand-offs and its bubble."""
        return {axis: self.exposed_on(axis) + (self.bubble_s if axis == "pp" else 0.0 * self.step_s) for axis in TAXES}

    @property
    def binding(self) -> Any:
        """The axis with the largest tax, or ``compute`` where none takes 1% of the step. Arrays have an array of names."""
        names = np.array([*TAXES, "compute"])
        stack = np.stack([np.asarray(t / self.step_s, dtype=float) for t in self.taxes.values()])
        worst = np.where(stack.max(axis=0) < 0.01, len(TAXES), stack.argmax(axis=0))
        return str(names[worst]) if np.ndim(worst) == 0 else names[worst]

    @property
    def prompt_tokens_per_s(self) -> Number:
        """Tokens of prompts over all replicas: of the batch in prefill, of one prompt beside decodes in a mixed step."""
        q, prompts = self.question, {"prefill": self.question.batch, "mixed": 1.0}
        return prompts.get(q.phase, 0.0) * q.context * q.plan.dp * q.plan.replicas / self.step_s

    @property
    def ttft_s(self) -> Number:
        """The TTFT of prompts with no request before them: their step, the way to the engine and that of the first token back."""
        return self.step_s + self.question.engine.host.request_s

    @property
    def num_gpus(self) -> Number:
        return self.question.plan.num_gpus

    @property
    def multiplied_in(self) -> str:
        """The type of the products."""
        return self.question.plan.weights_dtype or self.question.plan.activations_dtype

    @property
    def peak_flops_per_s(self) -> float:
        """Dense peak of one GPU in the arithmetic of the products."""
        peaks, listed = self.question.cluster.chip.flops_per_s, ARITHMETIC.get(self.multiplied_in, self.multiplied_in)
        return float(peaks.get(listed) or peaks.get("bf16") or peaks.get("fp16") or max(peaks.values()))

    def model_flops(self, convention: str = "") -> Number:
        """Return the FLOPs that the model needs in one training step: nothing recomputed, padded or masked (``step_flops``)."""
        from commtax.cost.train_kernels import step_flops

        causal = (convention or self.question.what_if.flops) == "causal"
        return step_flops(self.question.model, self.question.plan, self.question.context, causal) * self.tokens

    def _utilization(self, flops: Number) -> Number:
        return flops / (self.step_s * self.num_gpus * self.peak_flops_per_s)

    @property
    def _causal(self) -> Condition:
        """Whether causal pairs alone are counted: as requested, and where all pairs would be above what the chip can do."""
        return np.asarray(self._utilization(self.model_flops())) > 1 if self.question.what_if.flops == "full" else np.True_

    @property
    def mfu(self) -> Number:
        """Model FLOPs of training over what the GPUs could do in the step's time, as ``mfu_definition`` says."""
        return pick(self._causal, self._utilization(self.model_flops("causal")), self._utilization(self.model_flops()))

    @property
    def hfu(self) -> Number:
        """MFU with recomputed FLOPs counted too."""
        from commtax.cost.train_kernels import recomputed_flops

        q = self.question
        layers = [recomputed_flops(q.model, q.plan, q.step, q.engine, causal) for causal in (False, True)]
        return self.mfu + self._utilization(pick(self._causal, layers[1], layers[0]) * self.tokens)

    @property
    def mfu_definition(self) -> str:
        """What a scalar bill's MFU counts."""
        peak = f"over {self.peak_flops_per_s / 1e12:,.0f} TFLOP/s dense {self.multiplied_in} per GPU"
        if self.question.what_if.flops == "causal":
            return f"causal pairs only, nothing recomputed, {peak}"
        if np.any(self._causal):
            return f"causal pairs only, because all pairs would be above 100% of what the chip can do, {peak}"
        return f"all query-key pairs (as PaLM and Megatron count), nothing recomputed, {peak}"

    @cached_property
    def memory(self) -> TrainMemory:
        """What a rank of the first stage holds while it trains."""
        return training_memory(self.question.model, self.question.plan, self.question.step, self.question.engine)

    @property
    def memory_bytes_per_rank(self) -> Number:
        return self.memory.total

    def days(self, tokens: float) -> Number:
        """Return the days that ``tokens`` tokens take."""
        return tokens / self.tokens_per_s / 86400

    def gpu_hours(self, tokens: float) -> Number:
        """Return the hours that ``tokens`` tokens take, times the GPUs."""
        return 24 * self.days(tokens) * self.num_gpus


def by_cost(b: StepBill) -> list[Line]:
    """Return the lines of a bill, the costliest first."""
    return sorted(b.items, key=lambda x: -float(x.exposed_s))


def labels(b: StepBill) -> list[str]:
    """Return the label of each line, the costliest first. Lines with equal labels are numbered."""
    lines = [(x.kind == "comm", x.item) for x in by_cost(b)]
    names = [f"{x.axis} {x.what} {x.op}" if sent else x.what + " (recomputed)" * (x.stage == "recompute") for sent, x in lines]
    return [name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)]


def bill(model: str | Model, cluster: str | Cluster, **options: Unpack[BillOptions]) -> StepBill:
    """Price one prefill, decode or mixed step, line by line.

    >>> import commtax
    >>> step = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, batch=64)
    >>> f"{step.step_s * 1e3:.1f} ms, {step.comm_fraction:.0%} of it exposed communication"
    '4.9 ms, 18% of it exposed communication'

    Sizes, batch and context may be arrays, and then every figure is one. With ``pp`` stages the batch is split into ``pp``
    microbatches that are in flight together: ``step_s`` is one microbatch through all stages, and tokens of all of them come
    out in that time. ``profile`` is a machine's own constants (a file of ``commtax calibrate``): its engine and type are used
    unless others are given. ``commtax.keywords("bill")`` says what each keyword means.
    """
    q = resolve_question(model, cluster, check_taken("bill", options))
    if q.trains:
        raise Refusal("phase 'train': train_bill prices training steps; bill is for decode, prefill and mixed", "phase")
    return price(settle(q))


def train_bill(model: str | Model, cluster: str | Cluster, **options: Unpack[TrainBillOptions]) -> StepBill:
    """Price one optimiser step: ``batch`` sequences per replica in microbatches of ``micro_batch``, ``context`` tokens each.

    >>> import commtax
    >>> step = commtax.train_bill("llama-3.1-8b", "8xh100-sxm", dp=8, batch=8, engine="fsdp")
    >>> f"MFU {step.mfu:.0%}; the largest tax is that of {step.binding}; 1T tokens take {step.days(1e12):.0f} days"
    'MFU 45%; the largest tax is that of dp; 1T tokens take 169 days'

    Sizes may be arrays, and then every figure is one. ``hsdp`` shards over groups of that many ranks; ``async_axes`` are the axes
    whose collectives run beside compute (the engine's own unless given); ``flops`` says what MFU counts.
    """
    if "microbatches" in options:
        raise Refusal.about(microbatches="follow from batch and micro_batch")
    return price(settle(resolve_question(model, cluster, check_taken("train_bill", options), "train")))


def price(q: Settled) -> StepBill:
    """Price the step of a question. A step that was priced before is not priced again."""
    return _price_question(replace(q.normal(), limits=q.limits if copies_cache(q) else Limits(), notes=q.notes, codes=q.codes))


@cache_answers
def _price_question(q: Settled) -> StepBill:
    check_arithmetic(q)
    check_pictures(q, q.context if q.phase in LOOKING else None)
    terms = terms_of(q)
    if q.trains:
        from commtax.cost.training import training_bill  # not for those who serve

        plain = training_bill(terms, q.step, q.tokens)
    else:
        plain = inference_bill(terms, q.work, q.tokens)
        if q.phase == "decode" and q.profile and q.profile.lessons:
            from commtax.verbs.profiles import learnt_step_sigma  # not for those who have no profile

            plain = replace(plain, known_sigma=learnt_step_sigma(q, step_shares(plain, q.engine, q.batch)), measured=True)
    rows = _rows(q)
    notes = (*q.notes, *_step_notes(q, rows), *link_notes(q), *_untaken(plain, q))
    return StepBill(plain.lines, plain.tokens, q, rows, notes, known_sigma=plain.known_sigma, measured=plain.measured)


def _rows(q: Question) -> Number:
    return q.micro_batch * q.context if q.trains else padded_rows(q.work.rows, q.work, q.engine, q.plan.tp, q.what_if.eager)


def _step_notes(q: Question, rows: Number) -> Iterator[Note]:
    yield from flight_notes(q)
    if q.trains:
        yield from context_notes(q, q.context)
        return
    most, wanted = q.engine.serves.max_batched_tokens, q.work.rows
    if np.ndim(rows) == 0 and rows != wanted:
        yield padding_note(q, wanted, rows)
    yield from context_notes(q, q.context)
    if q.phase != "decode" and np.ndim(wanted) == 0 and wanted > most and q.engine.sends.graph_sizes:
        cut = f"{int(np.ceil(wanted / most))} chunks of {most:,}"
        yield Note("chunks", f"{q.engine.key} would run these {wanted:,.0f} tokens in {cut}; one step is priced")
    if q.techniques.kv_tier and np.ndim(q.context) == 0 and q.context:
        from commtax.verbs.prefix_tiers import prefix_note  # not for those whose prefixes lie at hand

        yield prefix_note(q, float(q.context))
    if copies_cache(q) and q.phase != "prefill":
        read = f"{q.engine.key} has no kernel for an fp8 cache of latents here: each layer copies all of it into 16 bits first"
        none = "bf16 copies nothing, nor FlashMLA (--technique flashmla), nor fp8_e5m2, which Triton reads"
        yield Note("copied-cache", f"{read}, also what no sequence uses (sgl-project/sglang issue 35291; {none})")
    moe, plan = q.model.experts, q.plan
    if moe is not None and not (q.what_if.imbalance or np.ndim(rows) or np.ndim(plan.ep)) and plan.ep > 1:
        tokens, placing = rows * expert_ranks(plan, q.engine).reach, Placing.of(q.engine, plan, q.techniques.balanced)
        why = "as a layout by measured loads leaves it" if q.techniques.balanced else "as routers were seen to choose"
        load = float(busiest_rank(moe, tokens, plan.ep, placing))
        yield Note("imbalance", f"busiest expert rank {load:.2f}x the mean, {why} (--imbalance)")
    if q.speculative:
        from commtax.rules.drafts import draft_notes  # not for those who draft nothing

        yield from draft_notes(q)


def padding_note(q: Question, rows: Number, padded: Number, when: str = "") -> Note:
    """Return the note that a step is as long as one of more rows."""
    graph = f"{q.engine.key} runs {rows:,.0f} rows in a CUDA graph of {padded:,.0f}"
    return Note("padding", f"{when}{graph}: the padding is computed and sent too")


def flight_notes(q: Question) -> Iterator[Note]:
    """Yield a note on a scalar pipeline: how its batch is split, and whether stages idle."""
    if not q.kind.staged or np.ndim(q.plan.pp) or np.ndim(q.batch) or q.plan.pp <= 1:
        return
    flight = min(int(q.plan.pp), int(q.batch))
    idle = 1 - flight / int(q.plan.pp)
    starved = f"; {idle:.0%} of the stages idle: fewer requests than stages" if idle else ""
    text = f"{flight} microbatches of {q.in_flight:,.0f} in flight, one a stage{starved}; the lines are one microbatch's"
    yield Note("in-flight", text)


def _untaken(plain: Bill, q: Question) -> list[Note]:
    profile, comm = q.profile, [x for x in plain.items if x.kind == "comm"]
    if q.trains or not profile or not profile.libraries or not comm or any(x.source.basis == profile.label.basis for x in comm):
        return []
    instead = f"--library {next(iter(profile.libraries))} prices with it"
    return [Note("profile", f"none of these collectives takes a path of profile {profile.name}: {instead}")]


def step_shares(bill: Bill, engine: Engine, seqs: Number, prompts: bool = False) -> dict[str, Number]:
    """Return the shares of a step by the constant that they go by."""
    return {name: part / bill.step_s for name, part in step_seconds(bill, engine, seqs, prompts).items()}


def step_seconds(bill: Bill, engine: Engine, seqs: Number, prompts: bool = False) -> dict[str, Number]:
    """Return the seconds of a step by the constant that they go by."""
    host, prompt_s = engine.host, engine.host.prompt_s if prompts else 0.0
    seconds: dict[str, Number] = {"host_s": host.host_s, "host_s_per_seq": host.host_s_per_seq * seqs, "prompt_s": prompt_s}
    for line in bill.lines:
        if line.kind == "compute" and isinstance(line.priced_from, Kernel):
            name = pace_of(line.priced_from)
            seconds[name] = seconds.get(name, 0.0) + line.exposed_s
        elif line.kind == "comm":
            left = line.exposed_s / np.maximum(line.each_s, LEAST_S)
            for name, part in (("pace_latency", line.fixed_s), ("pace_wire", line.moving_s)):
                seconds[name] = seconds.get(name, 0.0) + left * part
    return seconds


def with_collectives(priced: StepBill, **changes: object) -> StepBill:
    """Price the same step with other collectives (library, latency, bandwidth): kernels and host are as they were."""
    q = priced.question.vary(**changes)
    if q.what_if.eager or q.profile or q.trains:  # without graphs the host waits for collectives too
        return price(priced.question.but(**changes))
    terms, sent = in_step(terms_of(q), q.work), [x.item for x in priced.lines if x.kind == "comm"]
    lines = [*(x for x in priced.lines if x.kind != "comm"), *comm_lines(sent, Pricer(terms), repeat(q.what_if))]
    return replace(priced, lines=expose_lines(lines, terms), question=q)


def with_link(cluster: Cluster, name: str) -> Cluster:
    """Return the same hosts on another link: inside where the link is an inside one, else between single-GPU hosts."""
    link = catalog.link(name)
    if link.scope == "intra":
        return catalog.with_inside_link(cluster, link)
    if cluster.is_one_domain:
        cluster = replace(cluster, num_hosts=cluster.num_gpus, gpus_per_host=1, nvlink_domain=1, bridge=None)
    return catalog.with_between(cluster, link)


@dataclass(frozen=True, slots=True)
class SentLine:
    """An item and the link it crosses."""

    item: Item
    link: str
    crosses_hosts: bool


@dataclass(frozen=True, slots=True)
class Traffic(Answer):
    """Everything one step sends.

    >>> import commtax
    >>> commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=1).lines
    []
    """

    question: Settled
    rows: Number
    items: tuple[Item, ...]
    notes: tuple[Note, ...] = ()

    @property
    def legal(self) -> Condition:
        return self.question.legal

    @property
    def lines(self) -> list[SentLine]:
        """The items that this (scalar) plan issues, with their links."""
        cluster, lines = self.question.cluster, []
        for item in (i for i in self.items if i.is_sent):
            group = span(item.axis, self.question.plan, cluster, self.question.engine)
            crosses, inside = bool(group.crosses), cluster.as_pairs if group.paired else cluster
            lines.append(SentLine(item, (cluster.inter if crosses else inside.intra).key, crosses))
        return lines

    @property
    def sent_bytes_per_rank(self) -> Number:
        """Least bytes one rank sends in the step."""
        return sum((i.sent_bytes_per_rank for i in self.items), start=0.0)


def traffic(model: str | Model, cluster: str | Cluster, **options: Unpack[TrafficOptions]) -> Traffic:
    """Return what one step sends, exactly: every collective with its bytes and how often it runs, and no seconds.

    >>> import commtax
    >>> sent = commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=8, batch=3)
    >>> [(x.item.what, int(x.item.nbytes), x.item.count) for x in sent.lines[:2]]
    [('embedding', 32768, 1), ('attention output', 32768, 32)]

    ``batch`` counts sequences per replica; ``context`` is cached tokens per sequence in decode, prompt length in prefill,
    sequence length in training. A mixed step is ``batch`` decodes beside one prompt of ``context`` tokens.
    """
    put = resolve_question(model, cluster, {**TrafficOptions(context=INPUT_LEN), **check_taken("traffic", options)})
    for name in ("eager", "kv_dtype") if put.trains else ():
        if options.get(name):
            raise Refusal.about(**{name: "belongs to serving, not to phase train"})
    if put.profile:
        raise Refusal.about(profile="holds seconds, and what is sent has none")
    return question_traffic(settle(put))


def question_traffic(q: Settled) -> Traffic:
    """Return the collectives of a question's step."""
    check_arithmetic(q)
    check_pictures(q, q.context if q.phase in LOOKING else None)
    if q.trains:
        from commtax.cost.training import training_items

        return Traffic(q, _rows(q), tuple(training_items(q.model, q.plan, q.step, q.engine, q.what_if.ep_backend)), q.notes)
    how, sent_as, rows = q.what_if, q.techniques.dispatch_dtype, _rows(q)
    backend = backend_of(q.work, q.engine, how.ep_backend)
    items = inference(q.model, q.plan, q.work, q.engine, ep_backend=backend, eager=how.eager, dispatch_dtype=sent_as)
    if q.speculative:
        from commtax.cost.drafting import draft_items  # not for those who draft nothing
        from commtax.rules.drafts import drafter_of

        items += draft_items(drafter_of(q), q.plan, q.work, q.engine, backend, how.eager)
    notes = [*q.notes, *flight_notes(q), *context_notes(q, q.context)]
    if np.ndim(rows) == 0 and rows != q.work.rows:
        notes.append(padding_note(q, q.work.rows, rows))
    alone = q.model.experts is None or not np.any(expert_ranks(q.plan, q.engine).over_replicas)
    if np.ndim(q.plan.dp) == 0 and q.plan.dp != 1 and alone:
        notes.append(Note("alone", f"DP {q.plan.dp}: its ranks send each other nothing here; the lines are one rank's"))
    return Traffic(q, rows, tuple(items), tuple(notes))
