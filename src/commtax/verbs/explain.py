"""A bill in words: the one sentence that names what binds, what would change it, and what would explain a slower run."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commtax.cost.inventory import num_active_params, num_params
from commtax.cost.placement import expert_ranks
from commtax.cost.training import dp_token_threshold, tp_tax
from commtax.ledger import Line
from commtax.question import Changes, Question
from commtax.records import dataclass
from commtax.rules.drafts import is_accepted_known
from commtax.spec import DTYPE_BYTES, TAXES, Cluster
from commtax.statement import Refusal
from commtax.units import format_bytes, format_seconds
from commtax.verbs.billing import StepBill, price, with_collectives
from commtax.verbs.fitting import fits
from commtax.verbs.request_times import loop_of, requests_served
from commtax.verbs.settling import changed

COLLECTIVE = frozenset(("latency_scale", "bandwidth_scale", "library"))  # what-ifs that leave kernels and host as they are
LAYOUTS = {"tensor-attention": "without data-parallel attention", "data-attention": "with data-parallel attention"}
"""What-ifs of attention, and their words."""
SMALL = 0.05  # share of a step up to which communication, or what would shorten it, is no news
LARGE = 0.2  # share of a step from which on another layout that saves it is the answer, whatever communication costs
RECOMPUTE = "recompute-"  # how codes of what-ifs of recomputation begin
LARGE_TAX = 0.01  # share of a step from which on a cost of training leads its sentence
WORTH_NAMING = 0.005  # share of a step from which on a sentence names what saves it


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A step as it would be if fields of its question were otherwise: ``code`` names the change, ``what`` describes it."""

    code: str
    what: str
    changes: Changes
    note: str = ""
    step_s: float = math.nan
    delta_s: float = math.nan  # negative where it helps
    fits: bool = True


def verdict(b: StepBill, what_ifs: list[Counterfactual]) -> str:
    """Return one sentence: what binds the larger part of the step, how much is communication, why, and what would help."""
    if b.question.trains:
        return _training_verdict(b, what_ifs)
    head = f"{b.question.kind.title} at batch {int(b.question.batch):,}:"
    for c in what_ifs:  # another layout of attention leads where it saves much of the step, and whole requests end no later
        saved = -c.delta_s / float(b.step_s)
        if c.code in LAYOUTS and c.fits and saved > LARGE:
            now = loop_of(b.question)
            other = now.but(**{name: value for name, value in c.changes.items() if name != "batch"})
            if requests_served(other)[0].rate >= requests_served(now)[0].rate:
                head += f" {LAYOUTS[c.code]} ({c.what}) the step takes {saved:.0%} less;"
    lines = [x for x in b.items if x.kind == "comm"]
    if not lines:
        return f"{head} no communication; {_compute_words(b)}."
    share, top = float(b.comm_fraction), max(lines, key=lambda x: float(x.exposed_s))
    binds = f" {_compute_words(b)};" if share < 0.5 else ""
    whole = f"{head}{binds} {share:.0%} of the step is communication"
    biggest = f"{top.item.what} {top.item.op}, {top.bound}-bound: {int(top.item.count):,} x {format_seconds(float(top.each_s))}"
    remedy = f"; {_remedy(b, top, what_ifs)}" if share >= SMALL else ""
    return f"{whole} ({biggest}, {format_bytes(float(top.item.nbytes))} over {top.link}){remedy}."


def _remedy(b: StepBill, top: Line, what_ifs: list[Counterfactual]) -> str:
    saved = {c.code: -c.delta_s / float(b.step_s) for c in what_ifs}
    latency, bandwidth = saved["latency"], saved["bandwidth"]
    fused = f" (a fused all-reduce {saved['fused']:.0%})" if saved.get("fused", 0.0) > WORTH_NAMING else ""
    if max(latency, bandwidth) < 0.01:
        remedy = "neither half the latency nor twice the bandwidth would save 1%"
    elif bandwidth > max(latency, SMALL):
        remedy = f"more bandwidth will help: twice the bandwidth saves {bandwidth:.0%}, half the latency {latency:.0%}"
    elif bandwidth < 0.02 and latency > SMALL:
        remedy = f"more bandwidth will not help, but lower latency will: halving it saves {latency:.0%}{fused}"
    else:
        remedy = f"half the latency saves {latency:.0%}{fused}, twice the bandwidth {bandwidth:.0%}"
    tp, holds = int(b.question.plan.tp), {c.code for c in what_ifs if c.fits}
    better = max((saved[code] if code in holds else -1.0, n) for code, n in (("narrower", tp // 2), ("wider", 2 * tp)))
    if better[0] > 0.02:
        remedy += f"; tp {better[1]} would be {better[0]:.0%} faster"
    if str(top.link) == b.question.cluster.inter.key and top.item.axis == "tp":
        remedy += "; tensor parallelism inside a host and a pipeline across hosts would avoid it"
    return remedy


def _compute_words(b: StepBill) -> str:
    compute = [(float(x.item.count), x) for x in b.items if x.kind != "comm"]
    fixed, moving = sum(n * float(x.fixed_s) for n, x in compute), sum(n * float(x.moving_s) for n, x in compute)
    read = sum(n * float(x.item.nbytes) for n, x in compute) / b.question.cluster.chip.memory_Bps
    arithmetic = sum(n * float(x.flops) / x.peak_flops_per_s for n, x in compute)
    if fixed > moving:
        return f"most of the time is fixed costs of kernels and host ({format_seconds(fixed)} of {format_seconds(fixed + moving)})"
    if read > arithmetic:
        return f"memory-bound: reading the weights and the KV cache alone takes {format_seconds(read)}"
    return f"compute-bound: the arithmetic alone takes {format_seconds(arithmetic)} at the chip's peak"


def _training_verdict(b: StepBill, what_ifs: list[Counterfactual]) -> str:
    """Describe the step and its largest avoidable cost: recomputation, where less of it fits and saves more than any tax."""
    step, axis = float(b.step_s), str(b.binding)
    whole = f"Step {format_seconds(step)}, MFU {float(b.mfu):.1%}"
    taxed = float(b.taxes[axis]) if axis in b.taxes else 0.0
    recomputed = [c for c in what_ifs if c.code.startswith(RECOMPUTE) and c.fits and -c.delta_s > max(taxed, LARGE_TAX * step)]
    if recomputed:
        less = min(recomputed, key=lambda c: c.step_s)
        saves = f"with {less.what}, which fits, the step takes {format_seconds(less.step_s)} ({less.delta_s / step:.1%})"
        beside = f"; the largest tax is that of {axis}, {taxed / step:.1%}" if taxed else ""
        return f"{whole}: the largest avoidable cost is recomputation: {saves}{beside}."
    if axis == "compute":
        return f"{whole}: compute-bound ({float(b.compute_s) / step:.0%} of the step); communication is small or hidden."
    share = f"{taxed / step:.1%} of the step"
    if axis == "pp":
        split = f"{int(b.question.plan.microbatches)} microbatches on {int(b.question.plan.pp)} stages"
        tax = f"the largest tax is the pipeline's, {share} (bubble {float(b.bubble_fraction):.1%} of the step with {split})"
        return f"{whole}: {tax}; more microbatches or chunks would shrink it."
    top, why = max(comm_of(b, axis), key=lambda x: float(x.exposed_s)), "on the critical path: nothing runs beside it"
    if b.runs_beside(top):
        late, whole_s, window_s = top.total_s > top.window_s, float(top.total_s), float(top.window_s)
        place, but = ("does not fit", "") if late else ("fits", ", but takes SMs and bandwidth from it")
        why = f"{format_seconds(whole_s)} {place} in its window of {format_seconds(window_s)}{but}"
    return f"{whole}: the largest tax is that of {axis}, {share} ({top.item.what} {top.item.op} over {top.link}; {why})."


def comm_of(b: StepBill, axis: str) -> list[Line]:
    return [x for x in b.items if x.kind == "comm" and x.item.whole_axis == axis]


@dataclass(frozen=True, slots=True)
class LessonInequalities:
    """The lesson's two inequalities with this step's numbers."""

    local_tokens: float  # of the microbatch that the window is made of
    dp_tokens: float  # from this many on data parallelism's traffic fits in its window; 0: no data parallelism
    tp_tax: float  # (T - 1)/3 x FLOP/s / (bandwidth x hidden); 0: no tensor parallelism


def thresholds(b: StepBill) -> LessonInequalities:
    """Return the inequalities at the kernels' own rate and the links that the groups really cross, one direction per GPU."""
    plan, cluster = b.question.plan, b.question.cluster
    rate = float(sum(x.flops * x.item.count for x in b.items if x.kind == "compute")) / float(b.compute_s)
    dp_link, tp_link = (next((str(x.link) for x in comm_of(b, axis)), "") for axis in ("dp", "tp"))
    # Each rank sends 1/(tp pp) of the model and computes as little of it, so its size cancels, but not its sparsity.
    idle, grads = num_params(b.question.model) / num_active_params(b.question.model), DTYPE_BYTES[plan.grads_dtype]
    # Bytes on the wire over FLOPs of the window, against the lesson's 4 over 4: ZeRO 0 all-reduces gradients (twice their bytes)
    # behind backward's 4 FLOPs, ZeRO 1 and 2 scatter them once, ZeRO 3 also gathers bf16 parameters twice behind 6 FLOPs.
    wire = {0: 2 * grads / 4, 3: (grads + 4) / 6}.get(plan.zero, grads / 4)
    dp = float(dp_token_threshold(rate, _speed(cluster, dp_link))) * wire * idle if dp_link else 0.0
    tp = float(tp_tax(rate, _speed(cluster, tp_link), b.question.model.hidden, plan.tp)) if tp_link else 0.0
    return LessonInequalities(float(b.question.micro_batch * plan.share(b.question.context)), dp, tp)


def _speed(cluster: Cluster, link: str) -> float:
    if link == cluster.inter.key:
        return cluster.inter.bandwidth_Bps * cluster.nics_per_host / cluster.gpus_per_host
    return (cluster.bridge if cluster.bridge and link == cluster.bridge.key else cluster.intra).bandwidth_Bps


def counterfactuals(b: StepBill) -> list[Counterfactual]:
    """Price each what-if of a step that no rule forbids."""
    q, now, as_is, answers = b.question, float(b.step_s), bool(fits(b)), []
    for one in tries(b):
        try:
            sent = COLLECTIVE.issuperset(one.changes)
            other = with_collectives(b, **one.changes) if sent else price(changed(q, *one.changes.items()))
        except ValueError:
            continue
        step, holds = float(other.step_s), as_is if sent else bool(fits(other))
        notes = one.note, "" if holds else "does not fit in memory", _draft_words(b, step) if one.code == "plain" else ""
        answers.append(replace(one, note="; ".join(filter(None, notes)), step_s=step, delta_s=step - now, fits=holds))
    return answers


BATCHES = tuple(dict.fromkeys(round(2 ** (n / 4)) for n in range(49)))
"""Of a replica, at which drafts are compared with none: four to a doubling."""


def _draft_words(b: StepBill, plain_s: float) -> str:
    """Describe from how many accepted tokens on drafts pay here, and up to which batch they do with those that are."""
    needed = f"drafts pay from a mean of {float(b.step_s) / plain_s - 1:.2f} accepted per step"
    if not is_accepted_known(b.question):
        return needed
    batch = np.array(BATCHES)
    drafted, plain = (price(b.question.but(batch=batch, **changes)).tokens_per_s for changes in ({}, {"speculative": 0}))
    lost = batch[np.asarray(drafted) < np.asarray(plain)]
    if not len(lost):
        return f"{needed}; at every batch up to {BATCHES[-1]:,} here"
    return f"{needed}; they stop paying at batch {lost[0]:,} here" if lost[0] > 1 else f"{needed}; at no small batch here"


def tries(b: StepBill) -> Iterator[Counterfactual]:
    """Yield what-ifs of a step before they are priced, those that a rule forbids among them."""
    q, what_if, tp = b.question, b.question.what_if, int(b.question.plan.tp)
    if q.trains:
        yield from _training_tries(b)
        return
    yield _try("latency", "collective latency / 2", latency_scale=what_if.latency_scale / 2)
    yield _try("bandwidth", "collective bandwidth x 2", bandwidth_scale=what_if.bandwidth_scale * 2)
    for code, size, note in (("narrower", tp // 2, "fewer ranks"), ("wider", 2 * tp, "more ranks")):
        if size:  # experts follow tp, as engines tie them to tp x dp
            yield _try(code, f"tp {size}", note, tp=size, ep=size * int(q.plan.dp) if q.plan.ep > 1 else 1)
    yield from attention_layouts(q)
    custom, other = any(x.via == "custom" for x in b.items), "prefill" if q.phase == "decode" else "decode"
    in_one = "with residual and norm, in one kernel"
    applied = (
        (custom and q.cluster.chip.family != "cpu", _try("nccl", "NCCL only", "custom all-reduce disabled", library="nccl")),
        (not q.techniques.fused_reduce, _try("fused", "fused all-reduce", in_one, fused_reduce="auto")),
        (not what_if.eager and q.engine.sends.graph_sizes, _try("eager", "eager", "no CUDA graphs", eager=True)),
        (what_if.eager, _try("graphs", "CUDA graphs", eager=False)),
        (not q.plan.weights_dtype and not q.model.quant, _try("fp8", "fp8 weights", weights_dtype="fp8")),
        (q.speculative, _try("plain", "no drafted tokens", speculative=0)),
    )
    yield from (one for applies, one in applied if applies)
    yield _try("phase", f"{other} instead", f"the same batch and length as a {other} step", phase=other, speculative=0, images=0)


def attention_layouts(q: Question) -> Iterator[Counterfactual]:
    """Yield attention of a mixture split the other way, by tensor or data parallelism, on the same GPUs and requests."""
    tp, dp, batch = int(q.plan.tp), int(q.plan.dp), int(q.batch)
    if q.model.experts is None:
        return
    if dp > 1 and expert_ranks(q.plan, q.engine).over_replicas:
        code, tp, dp, ep, batch = "tensor-attention", tp * dp, 1, 1, batch * dp
    elif dp == 1 and tp > 1 and batch % tp == 0:
        code, tp, dp, ep, batch = "data-attention", 1, tp, tp, batch // tp
    else:
        return
    note = f"{LAYOUTS[code]}, same GPUs and requests"
    yield _try(code, f"tp {tp}, dp {dp}", note, tp=tp, dp=dp, ep=ep, batch=batch, redundant_experts=0)


def _try(code: str, what: str, note: str = "", **changes: object) -> Counterfactual:
    return Counterfactual(code, what, changes, note)


def _training_tries(b: StepBill) -> Iterator[Counterfactual]:
    q, plan, axes = b.question, b.question.plan, b.async_axes
    beside_dp, beside_tp, _, beside_ep, _ = (axis in axes for axis in TAXES)
    pieces, dispatch = "products cut into pieces", "dispatch beside the experts of another microbatch"
    piped, kinds = plan.pp > 1 and plan.schedule == "1f1b", ("none", "selective", "full")
    applied = (
        (True, _try("bandwidth", "network and links x 2", bandwidth_scale=q.what_if.bandwidth_scale * 2)),
        (b.exposed_comm_s and beside_dp, _try("exposed", "nothing overlapped", async_axes=())),
        (plan.tp > 1 and not plan.sequence_parallel, _try("sequence-parallel", "sequence parallel", sequence_parallel=True)),
        (plan.tp > 1 and plan.sequence_parallel and not beside_tp, _try("async-tp", "async tp", pieces, async_axes=(*axes, "tp"))),
        (plan.ep > 1 and not beside_ep, _try("async-ep", "async ep", dispatch, async_axes=(*axes, "ep"))),
        *((kind != plan.recompute, _try(f"{RECOMPUTE}{kind}", f"recompute {kind}", recompute=kind)) for kind in kinds),
        (piped, _try("interleaved", "interleaved, 2 chunks", schedule="interleaved", chunks=2)),
        (piped, _try("zb-h1", "zero-bubble zb-h1", schedule="zb-h1")),
    )
    yield from (one for applies, one in applied if applies)
    trades = [("narrower", int(plan.tp) // 2, int(plan.dp) * 2)] * (plan.tp > 1)
    trades += [("wider", int(plan.tp) * 2, int(plan.dp) // 2)] * (plan.dp % 2 == 0)
    for code, tp, dp in trades:
        each, rest = divmod(int(q.batch) * int(plan.dp), dp)
        if not rest:
            micro, note = min(int(q.micro_batch), each), "same GPUs and global batch"
            yield _try(code, f"tp {tp}, dp {dp}", note, tp=tp, dp=dp, batch=each, micro_batch=micro, shard=0)
    if not plan.weights_dtype:
        yield _try("fp8", "fp8 products", weights_dtype="fp8")


@dataclass(frozen=True, slots=True)
class PossibleSlowdown:
    """Something that would make a step slower: how slow, and how much of a measured gap that is."""

    what: str
    step_s: float
    explains: float  # share of the gap; 1 where the cause has a free size, which ``detail`` names
    detail: str = ""


SIZED_RANK = 0.35  # causes of any size explain every gap: they stand behind things that happen or not and come within this of it


def causes(b: StepBill, measured_mfu: float) -> list[PossibleSlowdown]:
    """Return what would bring the predicted step to the measured one, nearest first, if that is slower."""
    if not 0 < measured_mfu <= 1:
        rule = "a fraction above 0 and at most 1 is needed (an MFU above 100% is impossible)"
        raise Refusal(f"measured_mfu={measured_mfu:g}: {rule}", "measured_mfu")
    now, ranked_causes = float(b.step_s), list[tuple[float, PossibleSlowdown]]()
    gap = now * float(b.mfu) / measured_mfu - now
    if gap <= 0.02 * now:
        return []
    for tried in _slowdowns(b):
        try:
            step = float(price(b.question.but(**tried.changes)).step_s)
        except ValueError:
            continue
        if step > now * 1.005:
            explains = (step - now) / gap
            ranked_causes.append((abs(1 - explains), PossibleSlowdown(tried.what, step, explains, tried.note)))
    ranked_causes += [(SIZED_RANK, c) for c in _sized_slowdowns(b, gap)]
    return [cause for _, cause in sorted(ranked_causes, key=lambda ranked: ranked[0])]


def _slowdowns(b: StepBill) -> Iterator[Counterfactual]:
    q, plan, cluster, engine = b.question, b.question.plan, b.question.cluster, b.question.engine
    for axis in b.async_axes:
        if comm_of(b, axis):
            rest = tuple(a for a in b.async_axes if a != axis)
            yield _try("overlap", f"{axis} collectives do not overlap", "all of them exposed", async_axes=rest)
    if plan.tp > 1 and not cluster.is_one_domain and str(comm_of(b, "tp")[0].link) != cluster.inter.key:
        last = replace(engine, order=(*(axis for axis in engine.order if axis != "tp"), "tp"))
        yield _try("order", f"tp groups lie across hosts, on {cluster.inter.key}", "check the rank order", engine=last)
    if not q.what_if.eager:
        yield _try("eager", "element-wise kernels are not fused", "no torch.compile, no fused kernels", eager=True)
    if plan.recompute != "full":
        yield _try(f"{RECOMPUTE}full", "full recomputation is on", recompute="full")
    if engine.trains.attention != "unfused":
        yield _try("attention", "attention is not fused", "the score matrix is written", engine=engine.but(attention="unfused"))


def _sized_slowdowns(b: StepBill, gap: float) -> Iterator[PossibleSlowdown]:
    now, compute = float(b.step_s), float(b.compute_s)
    rate, step = compute / (compute + gap), now + gap
    yield PossibleSlowdown("kernels are slower than modelled", step, 1.0, f"all at {rate:.0%} of the modelled rate")
    slow = f"{format_seconds(gap)} per step, {1 / rate:.2f} x its compute"
    yield PossibleSlowdown("one rank is slow, or waits for data", step, 1.0, slow)
    for axis in (axis for axis in TAXES if comm_of(b, axis)):
        # The share of one axis' bandwidth at which the step takes ``step_s``: bisection, because less hides as it slows.
        low, high = 1e-6, 1.0
        for _ in range(30):
            middle = (low * high) ** 0.5
            slower = float(price(b.question.but(slow_axis=axis, slow_links=middle)).step_s) > step
            low, high = (middle, high) if slower else (low, middle)
        yield PossibleSlowdown(f"{axis} links are slow", step, 1.0, f"at {low:.1%} of the modelled bandwidth")
    if (bubble := float(b.bubble_s)) > 0:
        longer = f"a bubble of {(bubble + gap) / step:.0%}, not {bubble / now:.0%}"
        yield PossibleSlowdown("the pipeline idles longer", step, 1.0, longer)
