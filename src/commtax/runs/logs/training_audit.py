"""A training log: its plan, its pace, how steady its steps were, and why its MFU is what it is where model and GPUs are known.

An argument dump is read as the command that it came from. Every second of the measured step is put to a tax.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np

from commtax import catalog
from commtax.catalog.foreign_names import find_device_chip, model_key
from commtax.catalog.hf import from_config
from commtax.files import table
from commtax.launch.flags import flags_of
from commtax.launch.launch_options import model_with
from commtax.launch.read_command import parse
from commtax.ledger import Line
from commtax.question import PHASES, Question
from commtax.records import record_from
from commtax.runs.evidence.finding import Cause, Claim, Finding, Section, reason_assumed
from commtax.runs.evidence.identity import identity_findings
from commtax.runs.logs.training_log import TrainedStep, TrainingLog, mesh
from commtax.spec import AXES, PARALLEL, SIZES, TAXES, Model, Plan
from commtax.statement import Note, Refusal
from commtax.thresholds import levels, thresholds
from commtax.timeline import Column
from commtax.units import GiB, format_seconds, parse_count, plural
from commtax.verbs.billing import StepBill, price
from commtax.verbs.explain import Counterfactual, causes, counterfactuals
from commtax.verbs.keywords import CompareOptions
from commtax.verbs.settling import resolve_question, settle

COUNT, LEVEL = thresholds(__name__)

_TABLE = table("runs/logs/training_plan.toml")
CHANGES: Mapping[str, str] = table("runs/logs/log_causes.toml")["training"]


@dataclass(frozen=True, slots=True)
class LoggedPlan:
    """The plan of a log. ``options`` are those of a training question, and "", 0 or None stands for what it omits."""

    engine: str
    options: Mapping[str, object] = field(default_factory=dict)
    model: Model | None = None
    chip: str = ""
    gpus: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def cluster(self) -> str:
        """As many hosts of the chip as the run has GPUs, or "" where either is unknown."""
        if not self.chip or not self.gpus:
            return ""
        each = catalog.chip(self.chip).gpus_per_host
        hosts = -(-self.gpus // each)
        return f"{hosts}x{each}x{self.chip}" if hosts > 1 else f"{self.gpus}x{self.chip}"


def logged_plan(log: TrainingLog) -> LoggedPlan:
    """Return the plan, the model and the chip of a log."""
    return _by_mesh(log) if log.program == "torchtitan" else _by_arguments(log)


def _by_mesh(log: TrainingLog) -> LoggedPlan:
    """Read torchtitan's mesh, batches, model name and device."""
    facts, sizes = log.facts, mesh(log.facts)
    options: dict[str, object] = dict(sizes)
    if batch := facts.get("batch"):
        local, over_all, length = map(int, batch)
        plan = record_from(Plan, sizes)
        if plan.pp > 1:  # which cuts a replica's batch into as many microbatches as it has stages
            local = max(1, over_all // int(plan.dp) // int(plan.pp))
        options |= CompareOptions(global_batch=over_all, context=length, micro_batch=local)
    if log.steps and "recompute" in facts:
        options |= CompareOptions(recompute=_TABLE["recomputed"].get(facts["recompute"][0].lower(), "none"))
    if facts and "compiled" not in facts:
        options |= CompareOptions(eager=True)
    if facts.get("sharded", ("",))[0] == "DDP":
        options |= CompareOptions(zero=0)
    key = model_key(facts["model"][0]) if "model" in facts else ""
    gpus = math.prod(sizes.get(axis, 1) for axis in AXES)
    return LoggedPlan("torchtitan", options, catalog.model(key) if key else None, _chip(log), gpus if sizes else 0)


def _chip(log: TrainingLog) -> str:
    """Return the chip with the device's name whose memory is nearest to the reported memory."""
    if "device" not in log.facts:
        return ""
    name, reported = log.facts["device"][0], float(log.facts["device"][1]) * GiB
    key = find_device_chip(name)
    if not key:
        return ""
    first = key.partition("-")[0]
    alike = [key, *(other for other in catalog.keys("chips") if other.partition("-")[0] == first)]
    near = [other for other in alike if abs(catalog.chip(other).visible_bytes / reported - 1) <= LEVEL.memory_tolerance]
    return min(near, key=lambda other: abs(catalog.chip(other).visible_bytes / reported - 1)) if near else key


def _by_arguments(log: TrainingLog) -> LoggedPlan:
    """Read Megatron's dump as its command line with every argument spelled out, and batches of DeepSpeed's config."""
    arguments = _flags_of_arguments(log.arguments)
    engine = _engine(log)
    if not arguments:
        return LoggedPlan(engine)
    supported = flags_of("megatron").flags
    arguments_read = [(name, value) for name, value in arguments.items() if name in supported]
    words = [f"--{name}" if value == "True" else f"--{name} {shlex.quote(value)}" for name, value in arguments_read]
    world = arguments.get("world-size", "")
    axes = "tensor-model", "pipeline-model", "context"
    inner = math.prod(_count(arguments.get(f"{axis}-parallel-size", ""), 1) for axis in axes)
    gpus = _count(world) or inner * _count(arguments.get("data-parallel-size", ""), 1)
    try:
        launch = parse(f"torchrun --nproc-per-node={gpus} pretrain_gpt.py {' '.join(words)}")
    except Refusal as refusal:
        return LoggedPlan(engine, notes=(Note("arguments", f"the logged arguments make no plan: {refusal}"),))
    counts_replicas = "world-size" in arguments or "data-parallel-size" in arguments
    options: dict[str, object] = {name: value for name, value in launch.options.items() if counts_replicas or name != "dp"}
    if chunks := launch.chunks_of(_count(arguments.get("num-layers", ""))):
        options |= CompareOptions(chunks=chunks)
    options |= CompareOptions(async_axes=tuple(axis for axis in str(launch.options.async_axes).split(",") if axis))
    try:
        model = _model(dict(launch.shape), arguments, log)
    except Refusal as refusal:
        return LoggedPlan(engine, options, None, "", gpus if counts_replicas else 0, (Note("arguments", f"no model: {refusal}"),))
    return LoggedPlan(engine, options, model, "", gpus if counts_replicas else 0)


def _engine(log: TrainingLog) -> str:
    if log.program != "megatron":
        return str(_TABLE["engines"].get(log.program, "megatron"))
    if log.arguments.get("deepspeed") == "True" or "train_micro_batch_size_per_gpu" in log.arguments:
        return "megatron-deepspeed"
    return "megatron-bridge" if "bridge" in log.facts else "megatron"


def _flags_of_arguments(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that are set by flag names, leaving out those of features that are off."""
    made: dict[str, str] = {}
    for name, value in arguments.items():
        if value not in _TABLE["unset"]:
            made.setdefault(_TABLE["renamed"].get(name, name).replace("_", "-"), value)
    if not _count(made.get("num-experts", "").strip("[]")) > 1:
        made = {name: value for name, value in made.items() if not name.startswith("moe-") and name != "num-experts"}
    if made.get("group-query-attention") != "True" and "num-attention-heads" in made:
        made["num-query-groups"] = made["num-attention-heads"]
    if "checkpoint-activations" in made:  # before there were kinds of it
        made.setdefault("recompute-granularity", "full")
    if "num-virtual-stages-per-pipeline-rank" in made:
        made.pop("num-layers-per-virtual-pipeline-stage", None)
    return made


def _count(text: str, usual: int = 0) -> int:
    try:
        return parse_count(text, "argument")
    except ValueError:
        return usual


def _model(shape: dict[str, int], arguments: Mapping[str, str], log: TrainingLog) -> Model | None:
    """Return the bundled model of these sizes, else one made of them, or None where sizes are missing."""
    if not {"layers", "hidden", "heads"} <= shape.keys():
        return None
    vocab = int(log.facts["vocab"][0]) if "vocab" in log.facts else _count(arguments.get("padded-vocab-size", ""))
    if "vocab" in log.facts:
        shape = {**shape, "vocab": vocab}
    if key := model_with(shape.items()):
        return catalog.model(key)
    vocab = shape.get("vocab", vocab)
    if not vocab:
        return None
    gated, hidden, heads = "swiglu" in arguments, shape["hidden"], shape["heads"]
    config: dict[str, object] = {
        "hidden_size": hidden,
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": shape.get("kv_heads", heads),
        "head_dim": _count(arguments.get("kv-channels", ""), hidden // heads),
        "intermediate_size": shape.get("width", 4 * hidden),
        "vocab_size": vocab,
        "max_position_embeddings": _count(arguments.get("max-position-embeddings", ""), COUNT.usual_length),
        "tie_word_embeddings": "untie-embeddings-and-output-weights" not in arguments,
        "torch_dtype": "float16" if "fp16" in arguments else "bfloat16",
    }
    if "experts" in shape:
        config |= {"num_local_experts": shape["experts"], "num_experts_per_tok": shape.get("top_k", 2)}
        return from_config({**config, "architectures": ["MixtralForCausalLM"]}, "logged")
    if gated:
        return from_config({**config, "architectures": ["LlamaForCausalLM"]}, "logged")
    gpt = {"n_embd": hidden, "n_layer": shape["layers"], "n_head": heads, "n_inner": config["intermediate_size"]}
    gpt |= {"n_positions": config["max_position_embeddings"], "vocab_size": vocab, "tie_word_embeddings": True}
    return from_config({**gpt, "architectures": ["GPT2LMHeadModel"], "torch_dtype": config["torch_dtype"]}, "logged")


_TAX_TABLE = table("runs/logs/taxes.toml")


@dataclass(frozen=True, slots=True)
class Tax:
    """Seconds of a step that are no useful arithmetic at the chip's peak."""

    code: str
    title: str
    seconds: float


def taxes(priced: StepBill, measured_s: float) -> list[Tax]:
    """Return all seconds of the measured step but the useful ones, dearest first. They sum to it."""
    causal = priced.question.what_if.flops == "causal" or priced.mfu_definition.startswith("causal")
    ideal = float(priced.model_flops("causal") if causal else priced.model_flops())
    useful = ideal / float(priced.num_gpus * priced.peak_flops_per_s)
    compute = [x for x in priced.lines if x.kind == "compute"]
    again = _sum(x for x in compute if x.item.stage == "recompute")
    update = _sum(x for x in compute if x.item.part == "update" or x.item.stage in ("update", "once"))
    named = {axis: PARALLEL[axis].title.replace("-parallel size", " parallelism") for axis in TAXES} | _TAX_TABLE["named"]
    taxes_of_step = [
        Tax("kernels", "kernels below the chip's peak", _sum(compute) - again - update - useful),
        Tax("recompute", "recomputation", again),
        Tax("update", "optimiser and accumulation", update),
        Tax("host", "the host", _sum(x for x in priced.lines if x.kind == "host")),
        Tax("bubble", "pipeline bubble", float(priced.bubble_s)),
        *(Tax(axis, named[axis], float(priced.exposed_on(axis))) for axis in TAXES),
        Tax("unexplained", "not explained by the plan", measured_s - float(priced.step_s)),
    ]
    return sorted((t for t in taxes_of_step if t.seconds), key=lambda t: -t.seconds)


def _sum(lines: Iterator[Line] | list[Line]) -> float:
    return float(sum(float(x.exposed_s) for x in lines))


def tax_sentence(step_taxes: list[Tax], measured_s: float, mfu: float) -> str:
    """Describe where 100 % of the GPUs' arithmetic went.

    >>> tax_sentence([Tax("bubble", "pipeline bubble", 0.25), Tax("unexplained", "not explained by the plan", -0.1)], 1.0, 0.85)
    'of 100% of the peak: 85% MFU, 25% pipeline bubble, less 10% by which the step is faster than its price (9.1%)'
    """
    left = next((t.seconds for t in step_taxes if t.code == "unexplained"), 0.0)
    shares = [(t.seconds / measured_s, t.title) for t in step_taxes if t.code != "unexplained"]
    parts = [f"{mfu:.0%} MFU", *(f"{share:.0%} {title}" for share, title in shares if abs(share) >= LEVEL.least)]
    price = measured_s - left
    if left > 0:
        parts.append(f"{left / measured_s:.0%} not explained by the plan (the step is {left / price:.1%} slower than its price)")
    elif left:
        parts.append(f"less {-left / measured_s:.0%} by which the step is faster than its price ({-left / price:.1%})")
    return f"of 100% of the peak: {', '.join(parts)}"


def tax_causes(priced: StepBill, step_taxes: list[Tax], measured_s: float, measured_mfu: float) -> Iterator[Cause]:
    offered = {c.code: c for c in counterfactuals(priced) if c.delta_s < 0}
    for tax in step_taxes:
        share = tax.seconds / measured_s
        if share < LEVEL.least:
            continue
        text = f"{tax.title}: {format_seconds(tax.seconds)} of a step, {share:.1%}"
        if tax.code == "unexplained":
            reasons = causes(priced, measured_mfu)[: COUNT.told] if 0 < measured_mfu <= 1 else []
            likely = "; ".join(f"{c.what} ({c.detail})" if c.detail else c.what for c in reasons)
            yield Cause("unexplained", text, tax.seconds, share, likely)
        else:
            change, gain = _change(tax, offered, priced)
            yield Cause(f"tax-{tax.code}", text, tax.seconds, share, change, gain)


def _change(tax: Tax, offered: Mapping[str, Counterfactual], priced: StepBill) -> tuple[str, str]:
    """Return the what-if that saves most among those that lower a tax."""
    usual = ("bandwidth",) if tax.code in PARALLEL else ()
    helping = (offered[code] for code in _TAX_TABLE["helps"].get(tax.code, usual) if code in offered)
    best = min(helping, key=lambda c: c.delta_s, default=None)
    if best is None or -best.delta_s < LEVEL.least * float(priced.step_s):
        return "", ""
    note = f" ({best.note})" if best.note else ""
    return f"{best.what}{note}", f"{format_seconds(-best.delta_s)} per step, {-best.delta_s / float(priced.step_s):.0%}, as priced"


DEVIATION = 1.4826  # of a normal distribution over its median absolute deviation


@dataclass(frozen=True, slots=True)
class Shift:
    """The iteration since which steps take longer than before."""

    since: int
    before_s: float
    after_s: float

    @property
    def factor(self) -> float:
        return self.after_s / self.before_s


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of steps at the usual batch. ``deviation`` is relative, and ``slow`` are single steps, with their excess."""

    usual_s: float
    deviation: float
    counted: int
    warm_up: tuple[TrainedStep, ...] = ()
    slow: tuple[tuple[int, float], ...] = ()  # iteration and its seconds
    shift: Shift | None = None
    slow_share: float = 0.0  # of all time that slow steps took beyond the usual
    period: int = 0  # iterations between slow steps, where they come regularly


def pace(steps: Sequence[TrainedStep]) -> Pace | None:
    """Return the pace of the steps with a known time, or None where there is none."""
    timed = [s for s in steps if s.step_s]
    if not timed:
        return None
    batches = [s.batch for s in timed if s.batch]
    usual_batch = median(batches) if batches else 0.0
    seconds = [float(s.step_s or 0.0) * (usual_batch / s.batch if s.batch and usual_batch else 1.0) for s in timed]
    typical, first = median(seconds), 0
    while first < len(seconds) * LEVEL.most_warm_up - 1 and seconds[first] > LEVEL.warm_up * typical:
        first += 1
    indices, kept = [s.index for s in timed[first:]], seconds[first:]
    usual = median(kept)
    shift, split = _shift(indices, kept)
    sides = [kept[:split], kept[split:]] if shift else [kept]
    usuals = [each for each, side in [(median(side), side) for side in sides] for _ in side]
    slow = [(i, s, u) for i, s, u in zip(indices, kept, usuals, strict=True) if s >= LEVEL.slow * u]
    deviation = DEVIATION * median(abs(s / u - 1) for s, u in zip(kept, usuals, strict=True))
    # Iterations between slow steps that come at whole multiples of one number; 0 where they do not
    gaps = [b - a for a, b in pairwise([i for i, _, _ in slow])]
    common = math.gcd(*gaps) if len(gaps) > 1 else 0
    return Pace(
        usual_s=usual,
        deviation=deviation,
        counted=len(kept),
        warm_up=tuple(timed[:first]),
        slow=tuple((i, s) for i, s, _ in slow),
        shift=shift,
        slow_share=sum(s - u for _, s, u in slow) / sum(kept),
        period=common if common > 1 and common == min(gaps) else 0,
    )


def _shift(indices: Sequence[int], seconds: Sequence[float]) -> tuple[Shift | None, int]:
    """Find the one place after which steps take longer, by least squares of smoothed logarithms, and judge it by medians."""
    n = len(seconds)
    if n < 2 * COUNT.least_side:
        return None, n
    smooth: Column = np.array(seconds, dtype=float)
    if n >= 2 * COUNT.smoothed:  # running medians
        half = COUNT.smoothed // 2
        padded = np.concatenate([smooth[:half], smooth, smooth[-half:]])
        smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, COUNT.smoothed), axis=1)
    logs = np.log(smooth)
    sums, squares = np.cumsum(logs), np.cumsum(logs**2)
    at = np.arange(COUNT.least_side, n - COUNT.least_side + 1)
    left = squares[at - 1] - sums[at - 1] ** 2 / at
    right = (squares[-1] - squares[at - 1]) - (sums[-1] - sums[at - 1]) ** 2 / (n - at)
    split = int(at[int(np.argmin(left + right))])
    before, after = seconds[:split], seconds[split:]
    low, high = median(before), median(after)
    noise = max(DEVIATION * median(abs(s - m) for s in side) / m for side, m in ((before, low), (after, high)))
    if high / low < LEVEL.shifted or math.log(high / low) < LEVEL.shift_noise * noise:
        return None, n
    return Shift(indices[split], low, high), split


OTHER_RUN = "other hardware, software or options than was said; the taxes say where the time goes"
MEMORY_MODEL = "a model of what is allocated: allocators and libraries take more"


def audit_training(log: TrainingLog, claim: Claim | None, name: str = "log") -> Section:
    """Report what happened step by step, and compare it with a claim or with the logged plan where that is complete."""
    logged, went = logged_plan(log), pace(log.steps)
    priced, why = _price_step(log, logged, claim)
    notes = [*log.notes, *logged.notes, *_notes(log, went)]
    findings, causes = list(_figures(log, went, priced, claim)), list(_pace_causes(log, went))
    if priced is not None and (measured := _step_s(log, went, priced)):
        step_taxes, mfu = taxes(priced, measured), _mfu(priced, measured)
        notes.append(Note("taxes", tax_sentence(step_taxes, measured, mfu)))
        notes.append(Note("mfu", f"MFU counts {priced.mfu_definition}"))
        causes += tax_causes(priced, step_taxes, measured, mfu)
    elif why:
        notes.append(Note("not-priced", why))
    plan = list(_plan(log, logged, claim)) if claim else []
    causes.sort(key=lambda c: -(c.share or 0.0))
    return Section("training", (name,), (*plan, *findings), tuple(notes), causes=tuple(causes), facts=_facts(log, logged))


def _price_step(log: TrainingLog, logged: LoggedPlan, claim: Claim | None) -> tuple[StepBill | None, str]:
    """Return the priced step of the run, or why it has no price."""
    model = claim.question.model if claim else logged.model
    cluster = claim.question.cluster if claim else logged.cluster
    if model is None or not cluster:
        lacks = [what for what, there in (("the model (--model)", model), ("the GPUs (--cluster)", cluster)) if not there]
        return None, f"the log does not tell {' and '.join(lacks)}: the MFU is not explained"
    options = _options(log, logged, claim)
    if "batch" not in options or "context" not in options:
        return None, "the log does not tell the batch and the length of its sequences: say --global-batch and --context"
    try:
        return price(settle(resolve_question(model, cluster, options))), ""
    except Refusal as refusal:
        return None, f"the logged plan has no price here: {refusal}"


def _options(log: TrainingLog, logged: LoggedPlan, claim: Claim | None) -> dict[str, object]:
    """Return the options of the training question, from the claim or else from the log."""
    options: dict[str, object] = {k: v for k, v in logged.options.items() if v is not None}
    question = claim.question if claim else None
    options |= _options_of(question) if question else {}
    if claim and claim.context:
        options["context"] = claim.context
    *inner, dp = (_whole(options.get(axis, 0)) for axis in AXES)
    if not dp and question:  # replicas without a stated number follow from the GPUs
        dp = (logged.gpus or question.cluster.num_gpus) // math.prod(size or 1 for size in inner)
    dp = max(1, dp)
    over_all = options.pop("global_batch", 0) or (question.goal.global_batch if question else 0) or _batch(log)
    if over_all:
        options["batch"] = batch = max(1, _whole(over_all) // dp)
        options["micro_batch"] = min(_whole(options.get("micro_batch", 1)), batch)
    elif claim and claim.batch:
        options["batch"] = claim.batch
    named = question and question.trains and question.engine.key != PHASES["train"].engine
    engine = question.engine.key if question and named else logged.engine
    return {**options, **CompareOptions(dp=dp, phase="train", engine=engine, profile=question.profile if question else None)}


def _options_of(question: Question) -> dict[str, object]:
    """Return the options of a question that differ from the defaults."""
    plain = Question(question.model, question.cluster, question.engine)
    options: dict[str, object] = {axis: getattr(question.plan, axis) for axis in SIZES if getattr(question.plan, axis) != 1}
    for name in ("recompute", "schedule", "chunks"):
        options |= {name: value} if (value := getattr(question.plan, name)) != getattr(plain.plan, name) else {}
    usual, plan = question.engine.trains, question.plan
    options |= CompareOptions(dtype=plan.weights_dtype) if plan.weights_dtype else {}
    options |= CompareOptions(sequence_parallel=True) if plan.sequence_parallel and not usual.sequence_parallel else {}
    options |= CompareOptions(micro_batch=question.micro_batch) if question.micro_batch != 1 else {}
    options |= CompareOptions(global_batch=question.goal.global_batch) if question.goal.global_batch else {}
    options |= CompareOptions(zero=plan.zero) if plan.zero != usual.zero else {}
    options |= CompareOptions(eager=True) if question.what_if.eager else {}
    return options


def _whole(value: object) -> int:
    return int(value) if isinstance(value, (int, float, str)) else 0


def _batch(log: TrainingLog) -> float:
    batches = [s.batch for s in log.steps if s.batch]
    return median(batches) if batches else 0.0


def _mfu(priced: StepBill, measured_s: float) -> float:
    """Return the MFU of the measured step, by the FLOPs that the price counts."""
    return float(priced.mfu) * float(priced.step_s) / measured_s


def _rate(log: TrainingLog, went: Pace | None, figure: str) -> float | None:
    """Return the median of a figure over the steps that count, or None where no line has it."""
    warm = {s.index for s in went.warm_up} if went else set[int]()
    steps = [s for s in log.steps if s.index not in warm and (s.step_s or went is None)]
    values = [v for s in steps if (v := getattr(s, figure))]
    return median(values) if values else None


def _step_s(log: TrainingLog, went: Pace | None, priced: StepBill | None) -> float | None:
    """Return the seconds of the usual step as logged, else from the tokens a second and the priced batch."""
    if went:
        return went.usual_s
    rate = _rate(log, went, "tokens_per_s")
    return float(priced.tokens) / float(priced.num_gpus) / rate if priced and rate else None


def _figures(log: TrainingLog, went: Pace | None, priced: StepBill | None, claim: Claim | None) -> Iterator[Finding]:
    """Yield step time, rates, utilisation and memory, beside their prices where there are any."""
    tolerance = claim.tolerance if claim else levels("runs.evidence.finding").seconds_tolerance
    step_s, measured = float(priced.step_s) if priced else None, _step_s(log, went, priced)
    figures = ("tokens_per_s", "samples_per_s", "flops_per_s", "mfu")
    tokens_per_s, samples_per_s, flops_per_s, mfu = (_rate(log, went, figure) for figure in figures)
    if went and went.counted > 1:
        yield Finding("spread of steps", None, went.deviation, "share", reason=f"over {plural(went.counted, 'logged step')}")
    if measured:
        step = Finding("step", step_s, measured, "s", tolerance, OTHER_RUN if priced else "", evidence=bool(priced))
        why = reason_assumed(priced) if priced else ""  # a verdict needs a price that rests on measurements
        yield step.unsure(why) if why else step.judged()
    if priced and measured:
        tokens = float(priced.tokens) / float(priced.num_gpus)
        yield Finding("tokens/s per GPU", tokens / float(priced.step_s), tokens_per_s or tokens / measured, "", tolerance)
        why = "by the FLOPs that the price counts"
        yield Finding("MFU", float(priced.mfu), _mfu(priced, measured), "share", tolerance, why)
    elif tokens_per_s:
        yield Finding("tokens/s per GPU", None, tokens_per_s)
    argument = next((log.arguments[name] for name in _TABLE["batch_names"] if name in log.arguments), "")
    if batch := _batch(log) or (float(argument) if argument.isdecimal() and len(argument) < 16 else 0.0):
        yield Finding("global batch, sequences", None, batch)
    if samples_per_s:
        yield Finding("samples/s", None, samples_per_s)
    if flops_per_s:
        ours = flops_per_s * measured / step_s / 1e12 if step_s and measured else None
        yield Finding("TFLOP/s per GPU", ours, flops_per_s / 1e12, "", tolerance, "as the program counts them")
    if mfu:
        yield Finding("logged MFU", None, mfu, "share", reason="as the program counts it")
    timers = [t for t in log.timers if not measured or LEVEL.small * measured <= t.high_s <= measured * (1 + LEVEL.uneven)]
    again = {t.name.removesuffix("_microstep") for t in timers if t.name.endswith("_microstep")}  # the same over a whole step
    for timer in sorted((t for t in timers if t.name not in again), key=lambda t: -t.high_s)[: COUNT.most_clocks]:
        share = f"{timer.high_s / measured:.1%} of the step" if measured else ""
        yield Finding(Note("clock", f"clock {timer.name}"), None, timer.high_s, "s", reason=share, of=timer.name)
    memory = [*log.memory_bytes.values(), *(s.memory_bytes for s in log.steps if s.memory_bytes)]
    if memory:
        ours = float(priced.memory_bytes_per_rank) if priced else None
        yield Finding("memory of the fullest rank", ours, max(memory), "bytes", tolerance, MEMORY_MODEL if priced else "")


def _plan(log: TrainingLog, logged_run: LoggedPlan, claim: Claim) -> Iterator[Finding]:
    """Compare the claimed model, chip and sizes with the log."""
    yield from identity_findings(claim, logged_run.model.key if logged_run.model else "", " ".join(log.facts.get("device", ())))
    for axis in SIZES:
        wanted, logged = int(getattr(claim.plan, axis)), logged_run.options.get(axis)
        if wanted != 1 and logged is not None:
            yield Finding(PARALLEL[axis].title, wanted, _whole(logged), reason=f"the run was started with {axis} {logged}").judged()


def _pace_causes(log: TrainingLog, went: Pace | None) -> Iterator[Cause]:
    if went and (shift := went.shift):
        now, then = format_seconds(shift.after_s), format_seconds(shift.before_s)
        text = f"since iteration {shift.since:,} a step takes {now} instead of {then}"
        cost = shift.after_s - shift.before_s
        yield Cause("slower-since", f"{text} ({shift.factor - 1:+.0%})", cost, cost / shift.after_s, CHANGES["slower-since"])
    if went and went.slow:
        some = ", ".join(f"{i:,}" for i, _ in went.slow[:5])
        worst = max(s for _, s in went.slow)
        often = f", every {went.period:,} iterations" if went.period else ""
        text = f"{plural(len(went.slow), 'step')} took up to {format_seconds(worst)} (iterations {some}{often})"
        change = CHANGES["regular-slow-steps" if went.period else "slow-steps"]
        yield Cause("slow-steps", f"{text}: {went.slow_share:.1%} of the time", None, went.slow_share, change)
    for code, what in (("skipped", "skipped (its loss scale was too high)"), ("nan", "lost to values that are no numbers")):
        lost = sum(getattr(s, code) or 0.0 for s in log.steps)
        if lost:
            yield Cause(code, f"{plural(lost, 'iteration')} {what}")
    if went is None:
        return
    for timer in sorted(log.timers, key=lambda t: t.low_s - t.high_s):
        apart = timer.high_s - timer.low_s
        if apart >= LEVEL.uneven * went.usual_s and not timer.name.endswith("setup"):
            low, high = format_seconds(timer.low_s), format_seconds(timer.high_s)
            uneven = f"{timer.name}: {low} on the quickest rank, {high} on the slowest"
            yield Cause("uneven-ranks", uneven, apart, apart / went.usual_s, CHANGES["uneven-ranks"])
            return


def _notes(log: TrainingLog, went: Pace | None) -> Iterator[Note]:
    first, last = (log.steps[0].index, log.steps[-1].index) if log.steps else (0, 0)
    of = f" of {log.last:,}" if log.last else ""
    yield Note("steps", f"{plural(len(log.steps), 'logged step')}, iterations {first:,} to {last:,}{of}")
    if log.program == "deepspeed clocks":
        yield Note("micro-steps", "a step is one micro-batch of a rank here, as DeepSpeed's clocks sum up")
    if went and went.warm_up:
        took = format_seconds(max(s.step_s or 0.0 for s in went.warm_up))
        yield Note("warm-up", f"{plural(len(went.warm_up), 'first step')} left out as warm-up (up to {took})")
    if log.last and last < log.last:
        yield Note("partial", f"the log ends at iteration {last:,} of {log.last:,}")
    if log.restarts:
        yield Note("restarts", f"the run started again {plural(log.restarts, 'time')}; its longest part is told")


def _facts(log: TrainingLog, logged: LoggedPlan) -> dict[str, str]:
    facts = {"program": log.program, "engine": logged.engine}
    facts |= {name: ",".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in logged.options.items()}
    facts |= {"model": logged.model.key} if logged.model else {}
    facts |= {name: " ".join(words) for name, words in log.facts.items() if name in ("device", "model", "sharded", "peak")}
    facts |= {"gpus": str(logged.gpus)} if logged.gpus else {}
    return facts | {name: log.arguments[name] for name in _TABLE["compared"] if name in log.arguments}
