"""What depends on several fields of a question: kinds that exist and go together, lengths that divide."""

from collections.abc import Iterator, Mapping

import numpy as np

from commtax.cost.inventory import ROWWISE
from commtax.cost.memory import RECOMPUTE
from commtax.cost.schedules import TRAINING, most_chunks, passes_of
from commtax.cost.traffic import backend_called
from commtax.question import Question
from commtax.rules import Broken, check, refusal
from commtax.rules.values import check_number, positive
from commtax.spec import ARITHMETIC, DTYPE_BYTES, KINDS, MODULES, NO_TECHNIQUES, TAXES, Number
from commtax.statement import Note, Refusal

TRAINED_IN = ("", "bf16", "fp16", "fp8", ROWWISE, "mxfp8", "nvfp4")
CONVENTIONS = ("full", "causal")
LOOKING = ("prefill", "mixed")  # phases that look at pictures
MAX_PIXELS = 65_536  # of a picture's side
SAMPLING = ("greedy", "top-p")
MOST_TIMES = 1e6  # that a rank may be slower or busier
MOST_BANDWIDTH = 1e9  # times the link's own
STEP: Mapping[str, Broken] = {
    "copies-array": lambda q: np.ndim(q.plan.redundant_experts) > 0,
    "copies-trained": lambda q: q.plan.redundant_experts and q.trains,
    "copies-dense": lambda q: q.plan.redundant_experts and q.model.experts is None,
    "drafts": lambda q: q.speculative and q.phase not in ("decode", "mixed"),
    "overlap": lambda q: not 0 <= q.what_if.overlap <= 1,
    "sampling": lambda q: q.what_if.sampling not in SAMPLING,
    "flops": lambda q: q.what_if.flops not in CONVENTIONS,
    "imbalance": lambda q: _is_no_factor(q, "imbalance") and q.what_if.imbalance != 0,  # 0: not set
    "slow-rank-trained": lambda q: _is_no_factor(q, "slow_rank") and q.trains,
    "slow-rank": lambda q: _is_no_factor(q, "slow_rank"),
    "latency-scale": lambda q: q.what_if.latency_scale < 0,
    "bandwidth-scale": lambda q: _is_no_bandwidth(q, "bandwidth_scale"),
    "slow-links": lambda q: _is_no_bandwidth(q, "slow_links"),
}


def _is_no_factor(q: Question, name: str) -> bool:
    return not 1 <= check_number(getattr(q.what_if, name), name) < MOST_TIMES


def _is_no_bandwidth(q: Question, name: str) -> bool:
    factor = np.asarray(check_number(getattr(q.what_if, name), name))
    return not np.all((factor > 0) & (factor < MOST_BANDWIDTH))


def check_step(q: Question) -> None:
    """Check the numbers of a step, before anything is made of them."""
    positive(batch=q.batch)
    positive(q.kind.least, context=q.context)
    positive(micro_batch=q.micro_batch)
    check("step", STEP, q)


def check_arithmetic(q: Question) -> None:
    """Check that products train in a format of training, and are not served in a recipe of it."""
    if q.trains and q.plan.weights_dtype not in TRAINED_IN:
        raise refusal("arithmetic.trained", q, trained=TRAINED_IN[1:])
    if not q.trains and q.plan.weights_dtype == ROWWISE:
        raise refusal("arithmetic.rowwise", q)


def check_pictures(q: Question, prompt: Number | None) -> None:
    """Check that pictures have a tower, a phase that computes prompts, and room in them for their tokens."""
    images, (width, height), tower = q.pictures.images, q.pictures.image_size, q.model.tower
    if not images:
        return
    if tower is None:
        raise refusal("pictures.tower", q)
    if prompt is None:
        raise refusal("pictures.phase", q)
    if not (1 <= width <= MAX_PIXELS and 1 <= height <= MAX_PIXELS):
        raise refusal("pictures.size", q, width=width, height=height, most=MAX_PIXELS)
    tokens = images * tower.patches(width, height) // tower.patches_per_token
    if np.any(np.asarray(prompt) < tokens):
        raise refusal("pictures.room", q, tokens=tokens, width=width, height=height, prompt=prompt)


def _widest(q: Question) -> int:
    """Return the ranks of the widest group of experts."""
    return int(np.max(q.plan.ep, initial=1))


EXPERTS: Mapping[str, Broken] = {
    "copies": lambda q: q.plan.redundant_experts and _widest(q) == 1,
    "imbalance": lambda q: q.what_if.imbalance > 1 and (q.model.experts is None or _widest(q) == 1),
    "imbalance-most": lambda q: q.what_if.imbalance > _widest(q),
}
ADAPTERS: Mapping[str, Broken] = {  # they belong to a server that has them, in a rank that it keeps room for
    "rank": lambda q: not q.plan.lora_rank and q.plan.max_loras != 1,
    "trained": lambda q: q.plan.lora_rank and q.trains and q.plan.max_loras != 1,  # training has one set, which is what is trained
    "by-engine": lambda q: _is_served(q) and not q.engine.memory.lora,
    "ranks": lambda q: _is_served(q) and q.engine.memory.lora_ranks and q.plan.lora_rank not in q.engine.memory.lora_ranks,
    "spread": lambda q: _is_served(q) and q.model.experts and np.any(np.asarray(q.plan.ep) > 1),
}
BACKEND: Mapping[str, Broken] = {  # of experts: it belongs to a mixture, an engine that has it, and chips and links that carry it
    "dense": lambda q: q.model.experts is None,
    "by-engine": lambda q: q.what_if.ep_backend not in q.engine.sends.ep_backends,
    "vendor": lambda q: backend_called(q.what_if.ep_backend).vendor not in ("", q.cluster.chip.vendor),
    "link": lambda q: backend_called(q.what_if.ep_backend).one_domain and q.cluster.intra.kind != "nvlink",
    "domain": lambda q: backend_called(q.what_if.ep_backend).one_domain and _widest(q) > q.cluster.domain,
}


def check_run(q: Question) -> None:
    """Check what a settled question runs with: a backend and axes that its engine has, lengths and experts that divide."""
    habits, served_rank = q.engine.memory, 0 if q.trains else int(q.plan.lora_rank)
    ranks = nearest(habits.lora_ranks, served_rank)
    check("adapters", ADAPTERS, q, listed=habits.lora_ranks, ranks=ranks, nearest=" or ".join(map(str, ranks)))
    if backend := q.what_if.ep_backend:
        able = q.engine.sends.ep_backends
        facts = {"backend": backend, "able": able, "has": able or "none", "vendor": backend_called(backend).vendor.upper()}
        check("backend", BACKEND, q, widest=_widest(q), **facts)
    if q.techniques is not NO_TECHNIQUES or q.what_if.library:
        from commtax.rules.techniques import check_collectives, check_experts_techniques  # not for those who ask for none

        check_collectives(q)
        check_experts_techniques(q)
    check("experts", EXPERTS, q, widest=_widest(q), most=(_widest(q),))
    if not q.trains:
        return
    check_lengths(q)
    axes = q.what_if.async_axes or ()
    for axis in axes:
        if axis not in TAXES:
            raise refusal("async.axis", q, axis=axis, axes=TAXES)
    if "tp" in axes and not q.plan.sequence_parallel:
        raise refusal("async.tp", q)


def _is_served(q: Question) -> bool:
    return bool(q.plan.lora_rank) and not q.trains


def longest_taken(q: Question) -> int:
    """Return the tokens of the longest request that servers take: the limit of their command, else the model's."""
    return int(q.limits.max_model_len or q.model.max_len)


def spread_within_limit(q: Question) -> Number:
    """Return the requested spread of lengths, cut so that servers take the longest request, both of its parts rounded up."""
    wanted, room = q.requests, longest_taken(q) - q.requests.tokens
    most = np.maximum(0, room - 2) / wanted.tokens
    cut = (room >= 0) & (most < wanted.spread)
    return np.where(cut, most, wanted.spread)[()] if np.any(cut) else wanted.spread


def nearest(values: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    """Return the values just below and above one that is none of them."""
    return (*[v for v in values if v < wanted][-1:], *[v for v in values if v > wanted][:1])


def _lacks_arithmetic(q: Question) -> bool:
    """Return whether a model is to train in a narrow format that its chip does not multiply."""
    name = q.plan.weights_dtype
    narrow = name and name in TRAINED_IN and DTYPE_BYTES[name] < 2
    return bool(narrow) and "train" in q.engine.phases and ARITHMETIC.get(name, name) not in q.cluster.chip.flops_per_s


TRAINED: Mapping[str, Broken] = {  # kinds of training that do not exist or do not go together
    "zero": lambda q: q.plan.zero not in (0, 1, 2, 3),
    "zero-stages": lambda q: q.plan.zero >= 2 and np.any(np.asarray(q.plan.pp) > 1) and not q.engine.trains.master_is_parameter,
    "shard": lambda q: np.any(np.asarray(q.plan.shard) != 0) and q.plan.zero != 3,
    "sequence-parallel": lambda q: (
        (q.engine.mixes.needs_sequence_parallel and not q.plan.sequence_parallel)
        and np.any((np.asarray(q.plan.ep) > 1) & (np.asarray(q.plan.tp) > 1))
    ),
    "schedule": lambda q: q.plan.schedule not in TRAINING,
    "chunks": lambda q: q.plan.chunks < 1,
    "chunks-interleaved": lambda q: q.plan.chunks > 1 and q.plan.schedule != "interleaved",
    "recompute": lambda q: q.plan.recompute not in RECOMPUTE and len(q.plan.remade) < len(q.plan.recompute.split(",")),
    "recompute-selective": lambda q: q.plan.recompute == "selective" and not q.engine.trains.selective,
    "recompute-modules": lambda q: q.plan.remade and q.engine.trains.selective != "attention",
    "arithmetic": _lacks_arithmetic,
}


def check_kinds(q: Question) -> None:
    """Check the kinds of training, each one for all plans of an array."""
    for name in KINDS:
        if isinstance(getattr(q.plan, name), np.ndarray):
            raise refusal("kinds.array", q, name=name)
    arithmetic = ARITHMETIC.get(q.plan.weights_dtype, q.plan.weights_dtype)
    check("kinds", TRAINED, q, schedules=TRAINING, recompute=RECOMPUTE, modules=MODULES, arithmetic=arithmetic)


def check_lengths(q: Question) -> None:
    """Check that sequences divide over the ranks that split them (2 x cp chunks, and tp with sequence parallelism), and layers."""
    plan, context = q.plan, np.asarray(q.context)
    halves = 2 * np.asarray(plan.cp)
    if np.any((np.asarray(plan.cp) > 1) & (context % halves != 0)):
        raise refusal("lengths.context-parallel", q, halves=halves)
    if plan.sequence_parallel and np.any(context % (np.asarray(plan.tp) * plan.cp) != 0):
        raise refusal("lengths.sequence-parallel", q)
    # Virtual stages of the interleaved schedule may be unequal but not empty; other forms know equal ones only.
    layers, stages, chunks = q.model.num_layers, int(np.max(plan.pp)), passes_of(plan)
    if stages == 1 or chunks == 1:
        return
    if plan.schedule == "interleaved" and chunks > (most := int(most_chunks(layers, stages))):
        raise refusal("lengths.chunks" if most > 1 else "lengths.no-chunks", q, stages=stages, most=most, nearest=(most,))
    if plan.schedule != "interleaved" and np.any((np.asarray(plan.pp) > 1) & (layers % (np.asarray(plan.pp) * chunks) != 0)):
        raise refusal("lengths.layers", q, chunks=chunks)


def share_of(total: int, dp: int) -> int:
    """Return one replica's share of a global batch."""
    if dp < 1 or total % dp:
        raise Refusal(f"global_batch={total} does not divide by dp={dp}", "global_batch")
    return total // dp


def chosen_chunks(q: Question, requested: int) -> Iterator[Note]:
    """Note that the number of chunks was not the user's, or that there is nothing to cut into any."""
    plan, num_layers = q.plan, q.model.num_layers
    if plan.schedule == "interleaved" and plan.pp == 1:
        yield Note("chunks", "one stage: there is no pipeline to interleave (--pp)")
    elif plan.chunks != requested:
        even = "the fewest that share" if num_layers % (int(plan.pp) * plan.chunks) == 0 else "the fewest there are; none shares"
        why = f"{even} {num_layers} layers evenly over {int(plan.pp)} stages"
        yield Note("chunks", f"{plan.chunks} chunks per rank chosen for the interleaved schedule: {why} (--chunks)")
