"""What a question must keep to: numbers that are numbers, kinds that exist and go together, lengths that divide."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from commtax.cost.memory import RECOMPUTE
from commtax.cost.schedules import TRAINING, most_chunks, passes_of
from commtax.cost.tensors import ROWWISE
from commtax.options import Option
from commtax.question import Question
from commtax.spec import ARITHMETIC, DTYPE_BYTES, KINDS, MODULES, NO_TECHNIQUES, TAXES, Chip, Engine, Number, Plan
from commtax.statement import OTHER_ENGINES, OTHER_MODELS, Note, Refusal
from commtax.units import MAX_COUNT, parse_seconds

SPELLED = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
"""Types as engines' options spell them."""
KV_TYPES = ("", "bf16", "fp16", "fp32", "fp8")
STATE_TYPES = ("", "fp32", "bf16", "fp16")
TRAINED_IN = ("", "bf16", "fp16", "fp8", ROWWISE, "mxfp8", "nvfp4")
CONVENTIONS = ("full", "causal")
LOOKING = ("prefill", "mixed")  # phases that look at pictures
MAX_PIXELS = 65_536  # of a picture's side
SAMPLING = ("greedy", "top-p")
FACTOR = "a factor of at least 1 is needed"


def check_number(value: object, name: str) -> Number:
    """A number, or an array of them widened so that products cannot overflow; anything else is refused by name."""
    if isinstance(value, (list, tuple)):
        value = np.asarray(value)
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, (int, float, np.number, np.ndarray)):
        raise Refusal(f"{name}={value!r}: a number or a NumPy array is needed", name)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iuf":
            raise Refusal(f"{name}: an array of numbers is needed, not of {value.dtype}", name)
        return value.astype(float if value.dtype.kind == "f" else np.int64)
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise Refusal(f"{name}: larger than anything that is modelled (2^48); at most {MAX_COUNT:,}", name, (MAX_COUNT,))
    return value.item() if isinstance(value, np.number) else value


def positive(least: int = 1, /, **given: object) -> Number:
    """A whole number of at least ``least``, or an array of them, given under its name."""
    ((name, value),) = given.items()
    if type(value) is int and least <= value <= MAX_COUNT:
        return value
    value = check_number(value, name)
    number = np.asarray(value, dtype=float)
    if not np.all(np.isfinite(number)) or np.any(number < least) or np.any(number != np.floor(number)):
        raise Refusal(f"{name}={value}: a whole number of at least {least} is needed", name)
    if np.any(number > MAX_COUNT):
        raise Refusal(f"{name}={value}: larger than anything that is modelled (2^48)", name, (MAX_COUNT,))
    return value


def seconds(value: object, name: str) -> float:
    """A time above 0, in seconds or as text: ``0.03`` or ``"30ms"``."""
    limit = parse_seconds(value, name) if isinstance(value, str) else value
    if isinstance(limit, bool) or not isinstance(limit, (int, float, np.number)) or not limit > 0:
        raise Refusal(f"{name}={value}: a time above 0 is needed", name)
    return float(limit)


def check_option(value: object, option: Option) -> object:
    """A plain value, held to what the table says of its option; anything else is refused by name."""
    name, least = option.name, option.least
    if option.rule:
        return RULES[option.rule](value, name)
    if option.words:
        if value not in option.words:
            raise Refusal(f"{name} '{value}': one of {', '.join(option.words)}", name, option.words)
        return value
    if option.above is not None:
        value = parse_time(value, name) if option.unit == " s" else value
        return 0.0 if value == 0 == least else number(value, name, option.above, option.most or np.inf, option.unit, option.endless)
    if option.most is not None and np.ndim(value):  # type: ignore[arg-type]
        raise Refusal(f"{name}: one number is needed", name)
    whole = positive(int(least or 0), **{name: value})
    if option.most is not None and whole > option.most:
        raise Refusal(f"{name}={whole}: at most {option.most:,}", name, (int(option.most),))
    return whole if option.most is None else int(whole)


def number(value: object, name: str, low: float, high: float, unit: str = "", endless: bool = False) -> float:
    """A number between two bounds, above the lower one where that is 0; infinite where that means something."""
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, (int, float, np.number)) or np.isnan(value):
        raise Refusal(f"{name}={value!r}: a number is needed", name)
    if endless and value == np.inf:
        return np.inf
    if not low < value <= high:
        nearest = f"{high:g}" if value > high else "1"
        rule = f"above {low:g} and at most {high:g}{unit}; nearest valid: {nearest}"
        raise Refusal(f"{name}={value:g}{unit}: {rule}", name, (nearest,))
    return float(value)


def parse_time(value: object, name: str) -> object:
    """Seconds as a number, or as text with a unit or without."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return parse_seconds(value, name)


def part(value: object, name: str) -> float:
    """A share of something, all and nothing of it among them."""
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        nearest = 1 if isinstance(value, (int, float)) and value > 1 else 0
        raise Refusal(f"{name}={value}: a share from 0 to 1 is needed; nearest valid: {nearest}", name, (nearest,))
    return float(value)


def share(value: float, name: str) -> float:
    """A share of a chip's memory."""
    if not 0 < value <= 1:
        raise Refusal(f"{name}={value}: a fraction above 0 and at most 1 is needed", name)
    return value


def factor(value: object, name: str) -> Number:
    """How many times as much as usual."""
    if (times := check_number(value, name)) < 1:
        raise Refusal(f"{name}={times}: {FACTOR}", name, (1,))
    return times


def size(value: float, name: str) -> float:
    """Bytes; 0 leaves them to the engine."""
    if value < 0:
        raise Refusal(f"{name}={value}: a size of at least 0 is needed", name, (0,))
    return value


def varied(value: object, name: str) -> Number:
    """A share of a mean, or an array of them."""
    shares = check_number(value, name)
    if np.any(np.asarray(shares) < 0) or np.any(np.asarray(shares) > 1):
        raise Refusal(f"{name}={shares}: a share of the mean length from 0 to 1 is needed", name)
    return shares


def dtype(name: str, argument: str = "dtype") -> str:
    """A type of weights by its own name; "" is the checkpoint's."""
    if name in ("", "auto"):
        return ""
    name = SPELLED.get(name, name)
    if name not in DTYPE_BYTES:
        raise Refusal(f"{argument} '{name}': one of {', '.join(DTYPE_BYTES)}", argument)
    return name


def kv_dtype(value: str, name: str) -> str:
    if (known := dtype(value, name)) not in KV_TYPES:
        raise Refusal(f"{name} '{value}': a KV cache is kept in auto, bf16, fp16, fp32 or fp8", name)
    return known


def recurrent_dtype(value: str, name: str) -> str:
    if (known := dtype(value, name)) not in STATE_TYPES:
        raise Refusal(f"{name} '{value}': states are kept in auto, fp32, bf16 or fp16", name, STATE_TYPES[1:])
    return known


def check_arithmetic(q: Question) -> None:
    """Products train in bf16, fp16, fp8, MXFP8 or NVFP4."""
    name = q.plan.weights_dtype
    if q.trains and name not in TRAINED_IN:
        raise Refusal.of(f"training multiplies in {', '.join(TRAINED_IN[1:])}", TRAINED_IN[1:], dtype=name)
    if not q.trains and name == ROWWISE:
        raise Refusal.of("a recipe of training; weights that are served keep a checkpoint's scales", ("fp8",), dtype=name)


def check_step(q: Question) -> None:
    """Numbers of a step, before anything is made of them."""
    positive(batch=q.batch)
    positive(q.kind.least, context=q.context)
    positive(micro_batch=q.micro_batch)
    copies = q.plan.redundant_experts
    if np.ndim(copies):
        raise Refusal.about(redundant_experts="one number for all plans, not an array of them")
    if copies and q.trains:
        raise Refusal.of("copies of popular experts belong to serving, and training has none", (0,), redundant_experts=copies)
    if copies and q.model.experts is None:
        raise Refusal.of(f"{q.model.key} is dense and has no experts to copy", (0,), redundant_experts=copies)
    if q.speculative and q.phase not in ("decode", "mixed"):
        raise Refusal.of(f"drafted tokens are checked in decode, not in {q.phase}", speculative=q.speculative)
    if not 0 <= q.what_if.overlap <= 1:
        raise Refusal.of("a fraction from 0 to 1 is needed", overlap=q.what_if.overlap)
    if q.what_if.sampling not in SAMPLING:
        raise Refusal.of("greedy, or top-p", SAMPLING, sampling=q.what_if.sampling)
    if q.what_if.flops not in CONVENTIONS:
        raise Refusal.of("full (all query-key pairs) or causal", flops=q.what_if.flops)
    what_if = q.what_if
    slowest = FACTOR if q.trains else "the slowest rank takes at least 1 times as long as the others"
    if not 1 <= (imbalance := check_number(what_if.imbalance, "imbalance")) < 1e6 and imbalance != 0:  # which nobody has set
        raise Refusal.of(FACTOR, imbalance=imbalance)
    if not 1 <= (slow_rank := check_number(what_if.slow_rank, "slow_rank")) < 1e6:
        raise Refusal.of(slowest, slow_rank=slow_rank)
    if what_if.latency_scale < 0:
        raise Refusal.of("a factor of at least 0 is needed", (0,), latency_scale=what_if.latency_scale)
    for name in ("bandwidth_scale", "slow_links"):
        factor = np.asarray(check_number(getattr(what_if, name), name))
        if not np.all((factor > 0) & (factor < 1e9)):
            raise Refusal(f"{name}={getattr(what_if, name)}: a factor above 0 is needed", name)


def image_size(value: object, name: str) -> tuple[int, int]:
    """Width and height in pixels: ``"1024x768"``, or both as numbers."""
    sides = value.lower().split("x") if isinstance(value, str) else value
    if isinstance(sides, (list, tuple)) and len(sides) == 2 and all(str(side).strip().isdecimal() for side in sides):
        return int(sides[0]), int(sides[1])
    raise Refusal(f"{name}={value!r}: width and height in pixels are needed, such as 1024x768", name, ("1024x1024",))


RULES: Mapping[str, Callable[[Any, str], object]] = {
    "share": part,
    "fraction": share,
    "factor": factor,
    "size": size,
    "varied": varied,
    "dtype": dtype,
    "kv dtype": kv_dtype,
    "state dtype": recurrent_dtype,
    "pixels": image_size,
}
"""Checks that the table of options names."""


def check_pictures(q: Question, prompt: Number | None) -> None:
    """Pictures need a tower, a phase that computes prompts, and room in them for their tokens."""
    images, size = q.pictures.images, q.pictures.image_size
    if not images:
        return
    if q.model.tower is None:
        raise Refusal.of(f"{q.model.key} has no vision tower", (0,), images=images)
    if prompt is None:
        raise Refusal.of(f"pictures are looked at in prefill, not in {q.phase}", (0,), images=images)
    if any(not 1 <= pixels <= MAX_PIXELS for pixels in size):
        raise Refusal(f"image_size={size[0]}x{size[1]}: from 1 to {MAX_PIXELS:,} pixels a side", "image_size", ("1024x1024",))
    tokens = images * q.model.tower.patches(*size) // q.model.tower.patches_per_token
    if np.any(np.asarray(prompt) < tokens):
        raise Refusal.of(f"{tokens:,} tokens of pictures of {size[0]}x{size[1]} are more than a prompt of {prompt}", images=images)


def check_run(q: Question) -> None:
    """What a settled question runs with: a backend and axes that its engine has, lengths and experts that divide."""
    check_adapters(q)
    check_backend(q)
    if q.techniques is not NO_TECHNIQUES or q.what_if.library:
        from commtax.verbs.collective_rules import check_collectives, check_experts_techniques  # not for those who ask for none

        check_collectives(q)
        check_experts_techniques(q)
    widest, imbalance, copies = np.max(q.plan.ep, initial=1), q.what_if.imbalance, q.plan.redundant_experts
    if copies and widest == 1:
        raise Refusal.of("needs experts that are spread over ranks, ep > 1", (0,), redundant_experts=copies)
    if imbalance > 1 and (q.model.experts is None or widest == 1):
        raise Refusal(f"imbalance={imbalance:g}: needs a mixture of experts with ep > 1", "imbalance")
    if imbalance > widest:
        rule = f"the busiest of {widest} ranks has at most {widest} times the mean"
        raise Refusal(f"imbalance={imbalance:g}: {rule}", "imbalance", (int(widest),))
    if not q.trains:
        return
    check_lengths(q)
    given = q.what_if.async_axes or ()
    for axis in given:
        if axis not in TAXES:
            raise Refusal(f"async '{axis}': axes are {', '.join(TAXES)}, or none", "async", TAXES)
    if "tp" in given and not q.plan.sequence_parallel:
        raise Refusal("async 'tp': only all-gather and reduce-scatter can be cut into pieces; add sequence_parallel", "async")


def check_adapters(q: Question) -> None:
    """Adapters belong to a server that has them, in a rank that it keeps room for; none of experts that are spread over ranks.

    Training has one set of them, which is what is trained.
    """
    plan, habits = q.plan, q.engine.memory
    rank, slots = plan.lora_rank, plan.max_loras
    if not rank:
        if slots != 1:
            raise Refusal(f"max_loras={slots}: needs the adapters' rank, lora_rank", "lora_rank")
        return
    if q.trains:
        if slots != 1:
            raise Refusal.of("training has one set of adapters; max_loras=1", (1,), max_loras=slots)
        return
    if not habits.lora:
        raise Refusal.of(f"LoRA adapters are served beside a model, and {q.engine.key} serves none", (0,), lora_rank=rank)
    if habits.lora_ranks and rank not in habits.lora_ranks:
        near, listed = nearest(habits.lora_ranks, int(rank)), ", ".join(map(str, habits.lora_ranks))
        rule = f"{q.engine.key} keeps room for ranks of {listed}; nearest: {' or '.join(map(str, near))}"
        raise Refusal.of(rule, near, lora_rank=rank)
    if q.model.experts and np.any(np.asarray(plan.ep) > 1):
        raise Refusal(f"ep={plan.ep} with lora_rank={rank}: adapters of experts are not spread over ranks; ep=1", "ep", (1,))


def longest_taken(q: Question) -> int:
    """Tokens of the longest request that servers take: as they are told, else the model's own."""
    return int(q.limits.max_model_len or q.model.max_len)


def spread_within_limit(q: Question) -> Number:
    """The spread of lengths as asked, but no more than leaves the longest request, both parts rounded up, one that servers take."""
    wanted, room = q.requests, longest_taken(q) - q.requests.tokens
    most = np.maximum(0, room - 2) / wanted.tokens
    cut = (room >= 0) & (most < wanted.spread)
    return np.where(cut, most, wanted.spread)[()] if np.any(cut) else wanted.spread


def nearest(values: tuple[int, ...], wanted: int) -> tuple[int, ...]:
    """The values just below and above one that is none of them."""
    return (*[v for v in values if v < wanted][-1:], *[v for v in values if v > wanted][:1])


def check_backend(q: Question) -> None:
    """An expert backend belongs to a mixture, and to an engine that has it."""
    backend, able = q.what_if.ep_backend, q.engine.sends.ep_backends
    if backend and q.model.experts is None:
        rule = f"{q.model.key} is dense: it has no experts to exchange tokens with"
        raise Refusal(rule, "ep_backend", kind=OTHER_MODELS, subject=f"all2all backend '{backend}'")
    if backend and backend not in able:
        rule = f"{q.engine.name} does not have it; it has {', '.join(able) or 'none'}"
        raise Refusal(f"all2all backend '{backend}': {rule}", "ep_backend", able, OTHER_ENGINES)
    if backend:
        from commtax.verbs.collective_rules import check_exchange  # not for those who leave it to the engine

        check_exchange(q)


def check_kinds(plan: Plan, engine: Engine, chip: Chip) -> None:
    """Refuse kinds of training (ZeRO, schedule, recomputation) that do not exist or do not go together."""
    for name in KINDS:
        if isinstance(getattr(plan, name), np.ndarray):
            raise Refusal(f"{name}: one kind for all plans, not an array of them", name)
    if plan.zero not in (0, 1, 2, 3):
        raise Refusal.of("ZeRO stages are 0, 1, 2 and 3", (0, 1, 2, 3), zero=plan.zero)
    if plan.zero >= 2 and np.any(np.asarray(plan.pp) > 1) and not engine.trains.master_is_parameter:
        rule = f"{engine.key} keeps gradients of all microbatches, use zero 0 or 1"
        raise Refusal(f"zero={plan.zero} with pp > 1: {rule}", "zero", (0, 1))
    if np.any(np.asarray(plan.shard) != 0) and plan.zero != 3:
        rule = f"sharding over groups belongs to ZeRO 3 (fsdp, torchtitan), not to zero={plan.zero}"
        raise Refusal.of(rule, (0,), hsdp=plan.shard)
    mixed = np.any((np.asarray(plan.ep) > 1) & (np.asarray(plan.tp) > 1))
    if engine.mixes.needs_sequence_parallel and mixed and not plan.sequence_parallel:
        raise Refusal(f"ep > 1 with tp > 1: {engine.key} needs sequence_parallel for it", "ep")
    if plan.schedule not in TRAINING:
        raise Refusal.of(f"one of {', '.join(TRAINING)}", TRAINING, schedule=plan.schedule)
    if plan.chunks < 1:
        raise Refusal.of("a rank has at least 1 chunk", (1,), chunks=plan.chunks)
    if plan.chunks > 1 and plan.schedule != "interleaved":
        raise Refusal.of("only the interleaved schedule has several chunks per rank", (1,), chunks=plan.chunks)
    named = plan.recompute.split(",")
    if plan.recompute not in RECOMPUTE and len(plan.remade) < len(named):
        known = f"one of {', '.join(RECOMPUTE)}, or modules of {', '.join(MODULES)} with commas between"
        raise Refusal.of(known, RECOMPUTE, recompute=plan.recompute)
    if plan.recompute == "selective" and not engine.trains.selective:
        raise Refusal(f"recompute 'selective': {engine.key} has no such mode; none or full", "recompute", ("none", "full"))
    if plan.remade and engine.trains.selective != "attention":
        raise Refusal.of(f"{engine.key} recomputes no modules by name; none or full", ("none", "full"), recompute=plan.recompute)
    wanted = plan.weights_dtype
    listed = ARITHMETIC.get(wanted, wanted)
    narrow = wanted in TRAINED_IN and wanted and DTYPE_BYTES[wanted] < 2
    if "train" in engine.phases and narrow and listed not in chip.flops_per_s:
        raise Refusal.of(f"{chip.key} has no {listed} arithmetic", dtype=wanted)


def check_lengths(q: Question) -> None:
    """Sequences divide over the ranks that split them: 2 x cp chunks, and tp with sequence parallelism."""
    plan, context = q.plan, q.context
    halves = 2 * np.asarray(plan.cp)
    if np.any((np.asarray(plan.cp) > 1) & (np.asarray(context) % halves != 0)):
        raise Refusal.of(f"context parallelism needs a sequence length divisible by 2 x cp = {halves}", context=context)
    if plan.sequence_parallel and np.any(np.asarray(context) % (np.asarray(plan.tp) * plan.cp) != 0):
        raise Refusal.of("sequence parallelism needs a sequence length divisible by tp x cp", context=context)
    _check_chunks(q.model.num_layers, plan)


def _check_chunks(layers: int, plan: Plan) -> None:
    """Virtual stages of the interleaved schedule may be unequal but not empty; other forms know equal ones only."""
    stages, chunks = int(np.max(plan.pp)), passes_of(plan)
    if stages == 1 or chunks == 1:
        return
    if plan.schedule == "interleaved" and chunks > (most := int(most_chunks(layers, stages))):
        limit = f"make at most {most} chunks per rank" if most > 1 else "are too few for chunks"
        empty = "every virtual stage has a layer, but for the embedding's and the head's"
        raise Refusal.of(f"{layers} layers on pp={stages} {limit} ({empty})", (most,) if most > 1 else (), chunks=chunks)
    if plan.schedule != "interleaved" and np.any((np.asarray(plan.pp) > 1) & (layers % (np.asarray(plan.pp) * chunks) != 0)):
        rule = f"{layers} layers are not divisible by pp x {chunks} chunks; interleaved takes any"
        raise Refusal.of(rule, ("interleaved",), schedule=plan.schedule)


def share_of(total: int, dp: int) -> int:
    """One replica's share of a global batch."""
    if dp < 1 or total % dp:
        raise Refusal(f"global_batch={total} does not divide by dp={dp}", "global_batch")
    return total // dp


def chosen_chunks(q: Question, said: int) -> Iterator[Note]:
    """That the number of chunks was not the user's, or that there is nothing to cut into any."""
    plan, num_layers = q.plan, q.model.num_layers
    if plan.schedule == "interleaved" and plan.pp == 1:
        yield Note("chunks", "one stage: there is no pipeline to interleave (--pp)")
    elif plan.chunks != said:
        even = "the fewest that share" if num_layers % (int(plan.pp) * plan.chunks) == 0 else "the fewest there are; none shares"
        why = f"{even} {num_layers} layers evenly over {int(plan.pp)} stages"
        yield Note("chunks", f"{plan.chunks} chunks per rank chosen for the interleaved schedule: {why} (--chunks)")
