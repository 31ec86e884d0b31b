"""Published kernel tables through the path of a bill: what a step of that engine would make and charge for the same shape.

A bill makes its kernels from a model, a plan and a workload (``cost.compute``) and prices them as served (``cost.pricing``): with
the engine's constants of steps and the clock of whole steps. A table's rows are asked the same way here, so that another table, a
stand-in or an effect between the two shows.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import numpy as np

from commtax import catalog
from commtax.arrays import Array
from commtax.catalog.models import bundled_model
from commtax.catalog.quantisation import MXFP4, NVFP4, TILES
from commtax.cost.attention import decode_attention, prefill_attention
from commtax.cost.compute import routed_experts
from commtax.cost.kernel import Kernel, KernelStep, PricingTerms
from commtax.cost.kernels import served_lines
from commtax.cost.layer_forms import EAGER, routed_kernels
from commtax.spec import DTYPE_BYTES, Attention, Block, Chip, Engine, Experts, Model, Number, Plan, Quant, Workload
from commtax.statement import Refusal
from commtax_lab import lab_table
from commtax_lab.published.kernel_kinds import experts, plain
from commtax_lab.published.kernel_kinds.kind import Sizes, Words
from commtax_lab.published.kernel_tables import KernelTable
from commtax_lab.published.scoring.kernel_scores import ENGINE, overlap_launches
from commtax_lab.published.spellings import dtype_named, engine_named

DYNAMIC = Quant("compressed-tensors", "fp8", (1, 0))
"""fp8 whose activations are quantised on the way, as the tables of products time it."""
GROUPS = Quant("gptq", "int4", (1, 128), scale_bytes=2)
PRODUCTS: Mapping[str, Quant | None] = {
    "bfloat16": None,
    "float16": None,
    "fp8": DYNAMIC,
    "fp8_block": TILES,
    "nvfp4": NVFP4,
    "int4_wo": GROUPS,
    "int8_wo": Quant("gptq", "int8", (1, 0), scale_bytes=2, weight_only=True),
}
"""How a checkpoint stores the weights of a table's products …"""
EXPERTS: Mapping[str, Quant | None] = {
    **PRODUCTS,
    "fp8": Quant("modelopt", "fp8"),
    "w4a16_mxfp4": MXFP4,
    "w4a8_mxfp4_mxfp8": replace(MXFP4, activations="fp8"),
}
"""… and of its experts."""
UNLIKE: dict[str, dict[str, str]] = lab_table("published/scoring/parts.toml")
"""What tables time and no engine serves so: why, with what tells their rows."""
SMALL, LARGE = 16.0, 1024.0
"""Rows of an activation matrix, or tokens of a prompt or a sequence's cache, up to which shapes are small and from which large."""
SURELY = 1.5
"""A host's launches take so much longer, or shorter, on another host."""
LAWFUL = 1.5
"""How far the median of a group of shapes may be off."""
Make = Callable[[Words, Sizes, Engine], Sequence[Kernel]]


@dataclass(frozen=True, slots=True)
class ShapeGroup:
    """Shapes of one chip, engine, kind, number format and class of size: ln(charged / measured) of each."""

    chip: str
    engine: str
    kind: str
    form: str  # number format
    size: str
    errors: Array
    why: str = ""  # no engine serves so

    @property
    def key(self) -> tuple[str, ...]:
        return self.chip, self.engine, self.kind, self.form, self.size, self.why

    @property
    def obeys_law(self) -> bool:
        return bool(self.why) or abs(float(np.median(self.errors))) <= math.log(LAWFUL)


def groups(tables: Iterable[KernelTable]) -> list[ShapeGroup]:
    """Return all groups of some tables."""
    errors_by_group: dict[tuple[str, str, str, str, str, str], list[Array]] = {}
    for one in tables:
        for words, mask, charged in bill_seconds(one):
            assert one.chip
            errors = np.log(charged / one.sizes["seconds"][mask])
            form = words.get("moe_dtype") or "/".join(dict.fromkeys((words["written"], words["stored"])))
            sizes = _size_classes(one.kind.tail, {name: x[mask] for name, x in one.sizes.items()})
            for size in dict.fromkeys(sizes):
                key = (one.chip.key, words["framework"] or ENGINE, one.kind.name, form, str(size), _reason_unserved(one, words))
                errors_by_group.setdefault(key, []).append(np.broadcast_to(errors, sizes.shape)[sizes == size])
    whole = {key: np.concatenate(errors) for key, errors in sorted(errors_by_group.items())}
    return [ShapeGroup(*key[:5], errors, key[5]) for key, errors in whole.items()]


def _size_classes(tail: str, x: Sizes) -> Array:
    """Classify sizes as small, middling or large, by the rows that enter or what each sequence has cached."""
    rows = next(x[name] for name in ("m", "num_tokens", "isl", "seq_len", "batch_size") if name in x)
    if tail == "generation_attention":
        rows = x["step"]
    elif tail != "gemm" and "isl" in x and "batch_size" in x:
        rows = x["isl"] * x["batch_size"]
    return np.where(rows <= SMALL, "small", np.where(rows >= LARGE, "large", "middling"))


def _reason_unserved(one: KernelTable, words: Words) -> str:
    """Return why no engine serves these rows so, or "" where one does."""
    facts = {"kind": one.kind.name, "family": one.chip.family if one.chip else "", **words}
    for name, fact in UNLIKE.items():
        if all(str(facts.get(key, "")) == value for key, value in fact.items() if key != "why"):
            return name
    return ""


def bill_seconds(timed: KernelTable) -> Iterator[tuple[Words, Array, Array]]:
    """Yield groups of a table's rows, with their places and what a bill charges for each, less the rows that no bill has."""
    assert timed.chip
    for words, mask in timed.groups():
        named = {**words, "written": words["dtype"], "dtype": dtype_named(words["dtype"]) or words["dtype"]}
        named["stored"] = dtype_named(words["stored"]) or words["stored"]
        engine = catalog.engine(engine_named(words["framework"]) or words["framework"] or ENGINE)
        try:
            made = _kernels(timed, named, {name: sizes[mask] for name, sizes in timed.sizes.items()}, engine)
        except (Refusal, KeyError):
            continue
        charged, launched = _price_lines(made, timed.chip, engine)
        shown = np.broadcast_to(~launched, (int(mask.sum()),))
        if np.any(shown):
            yield named, np.flatnonzero(mask)[shown], np.broadcast_to(charged, shown.shape)[shown]


def _kernels(timed: KernelTable, words: Words, x: Sizes, engine: Engine) -> Sequence[Kernel]:
    """Make kernels as a step makes them, or as the table does where no step function is listed here."""
    make: Make | None = MAKERS.get(timed.kind.tail)
    return make(words, x, engine) if make else timed.kind.make(words, x)


def _price_lines(kernels: Sequence[Kernel], chip: Chip, engine: Engine) -> tuple[Number, Array]:
    """Return the seconds of a step's lines, and which rows show a host's launches, which no step in a graph pays."""
    even = engine.but(popularity=np.inf)
    cluster, alone = catalog.cluster(chip.key), catalog.kernel_constants(even, chip, timed=True)
    terms = PricingTerms(_model(Block(None, None), 1), Plan(), cluster, even, catalog.fabric(even.library, cluster), alone)
    step = replace(terms, constants=catalog.kernel_constants(even, chip))
    host = sum((x.total_s for x in served_lines([k for k in kernels if k.form in EAGER], terms)), start=0.0)
    device = sum((x.total_s for x in served_lines([k for k in kernels if k.form not in EAGER], step)), start=0.0)
    return overlap_launches(device, host, alone), np.asarray(host * SURELY > device)


def _model(block: Block, hidden: int, quant: Quant | None = None) -> Model:
    """Return a model of one layer."""
    return Model("one layer", "", hidden, 1, (block,), (0,), 1, quant=quant)


def _product(words: Words, x: Sizes, engine: Engine) -> Sequence[Kernel]:
    step = KernelStep(_model(Block(None, None), 1, PRODUCTS[words["written"]]), Plan(), Workload(), x["m"], engine)
    made = step.gemm("product", "feed-forward", "gate", 1, x["m"], x["n"], x["k"], "mlp.gate_proj")
    return [plain.with_rotating_weights(made, words, x), *plain.launches(words["kernel_source"], x)]


def _prefill(words: Words, x: Sizes, engine: Engine) -> Sequence[Kernel]:
    """Make prefill steps, in the cache's format only for engines that attend in it."""
    if words["dtype"] == "fp8" and not engine.kernels.prefill_fp8:
        raise Refusal(f"prompts of {engine.key} attend in 16 bits", "engine")
    seqs, none = x["batch_size"], np.zeros(len(x["batch_size"]))
    work = Workload(none, none, seqs, seqs * x["isl"], seqs * x["step"])
    step, attention = _attention_step(words, x, work, seqs * x["isl"], engine)
    return [plain.with_cache_write(one, x, DTYPE_BYTES[words["stored"]]) for one in prefill_attention(step, attention, 1)]


def _decode(words: Words, x: Sizes, engine: Engine) -> Sequence[Kernel]:
    """Make decode steps, those with keys for each query head apart, since no model has both."""
    seqs, single = x["batch_size"], x["num_heads"] == x["num_key_value_heads"]
    made: list[Kernel] = []
    for rows in (single, ~single):
        x_of = {name: np.where(rows, sizes, sizes[np.argmax(rows)]) for name, sizes in x.items()}
        work = Workload(x_of["batch_size"], x_of["batch_size"] * x_of["step"])
        step, attention = _attention_step(words, x_of, work, seqs, engine)
        kernels = [plain.with_warm_cache(one, x_of) for one in decode_attention(step, attention, 1)]
        made += [replace(one, count=np.where(rows, 1, 0)) for one in kernels] if np.any(rows) else []
    return made


def _attention_step(words: Words, x: Sizes, work: Workload, rows: Array, engine: Engine) -> tuple[KernelStep, Attention]:
    """Make a one-layer attention step whose heads are columns, which a step only divides and multiplies."""
    dim, window = int(np.max(x["head_dim"])), int(np.max(x["window_size"]))
    attention = Attention(cast(int, x["num_heads"]), cast(int, x["num_key_value_heads"]), dim, dim, window=window)
    return KernelStep(_model(Block(None, None), 1), Plan(kv_dtype=words["stored"]), work, rows, engine), attention


def _experts(words: Words, x: Sizes, engine: Engine) -> Sequence[Kernel]:
    """Make a layer of experts as the step of a model of that shape does."""
    shapes = list(zip(x["hidden_size"], x["inter_size"], x["num_experts"], strict=True))
    families = np.array([_architectures().get(shape, "") for shape in shapes], dtype=object)
    return [one for name in dict.fromkeys(families) for one in _family_experts(name, families == name, words, x, engine)]


def _family_experts(architecture: str, rows: Array, words: Words, x: Sizes, engine: Engine) -> Iterator[Kernel]:
    """Make the experts of one architecture, loaded as the table's were, with what repetitions keep in the chip's cache."""
    first = {name: int(sizes[np.argmax(rows)]) for name, sizes in x.items()}  # sizes decide no kernel's name or format
    plan = Plan(tp=first["moe_tp_size"] * first["moe_ep_size"], ep=first["moe_ep_size"])
    layer = Experts(first["num_experts"], first["topk"], first["inter_size"])
    model = replace(_model(Block(None, layer), first["hidden_size"], EXPERTS[words["moe_dtype"]]), architecture=architecture)
    step = KernelStep(model, plan, Workload(), first["num_tokens"], engine.but(popularity=np.inf))
    like = list(routed_experts(step, layer, 1))[-1]
    backend = like.form.removeprefix("experts").removeprefix("_")
    for one in routed_kernels(experts.timed_sizes(words, x), like.dtype, like.stored, like.weight_bytes, backend):
        yield replace(one, count=np.where(rows, 1, 0))


@cache
def _architectures() -> dict[tuple[float, float, float], str]:
    """Group the bundled mixtures' architectures by width, expert width and number of experts, which tables tell apart."""
    models = [model for key in catalog.keys("models") if (model := bundled_model(key)) and model.experts]
    sized = ((m, m.experts) for m in models)
    return {(e.latent or m.hidden, e.intermediate, e.num_experts): m.architecture for m, e in sized if e}


MAKERS: Mapping[str, Make] = {
    "gemm": _product,
    "context_attention": _prefill,
    "generation_attention": _decode,
    "moe": _experts,
}
