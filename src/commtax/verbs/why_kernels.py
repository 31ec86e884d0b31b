"""A kernel's line explained: sizes, floor, the form that prices it, effects, and whose its seconds are."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass

from commtax.catalog.effects import engine_number, mechanisms
from commtax.catalog.loader import table as catalogue_table
from commtax.cost import kernels
from commtax.cost.forms import equation
from commtax.cost.kernel import Kernel, PricingTerms
from commtax.cost.seconds_split import CARRIERS, terms
from commtax.cost.training import Kernels
from commtax.ledger import Line
from commtax.question import Question
from commtax.spec import KernelHabits, TrainingHabits
from commtax.verbs.billing import StepBill
from commtax.verbs.settling import terms_of
from commtax.verbs.why_parts import Effect, Explanation, Floor, PricedBy, TimePart, engine_effect, factor_effects

SIZED = {"gemm": ("m", "n", "k"), "attention": ("batch", "heads", "kv_heads", "head_dim", "length", "past")}
"""Sizes of a kernel that its own record holds, of products and of attention."""
UNFITTED = {**{f.name: f.default for f in fields(KernelHabits)}, **{f.name: f.default for f in fields(TrainingHabits)}}
"""What an engine's numbers are where nothing was fitted."""

WHEN: Mapping[str, Callable[[Question], bool]] = {
    "": lambda _: True,
    "eager": lambda q: q.what_if.eager,
    "compiled": lambda q: not q.what_if.eager,
    "grouped": lambda q: not q.engine.kernels.fused_experts,
    "biased": lambda q: q.model.experts is not None and q.model.experts.bias and not q.engine.kernels.fused_experts,
}
"""When an effect on sizes counts, by its name in ``effects.toml``."""


def explained_kernel(b: StepBill, x: Line) -> Explanation:
    q, k = b.question, x.priced_from
    assert isinstance(k, Kernel)
    t = terms_of(q)
    applied = Kernels(t).applied(k) if q.trains else kernels.applied_in_serving(k, t)
    charged = kernels.charged_as(k, t.cluster.chip, t.constants, applied.rate)
    chip, rate = t.cluster.chip, kernels.peak(k, t.cluster.chip, t.constants)
    pace = 1.0  # of a step with prompts, where runs taught it
    if t.engine.paces.pace_prompt_steps != 1:
        pace = float(x.each_s / sum(kernels.applied_s(k, chip, t.constants, applied)))
    moved, computed = float(k.nbytes) / chip.memory_Bps, float(k.flops) / rate
    least = float(kernels.least_s(k, chip, t.constants))
    names = SIZED["gemm"] if float(k.m) else SIZED["attention"] if float(k.batch) else ()
    sizes: dict[str, float | str] = {name: float(getattr(k, name)) for name in names}
    if is_dataclass(k.shape):
        sizes |= {f.name: float(getattr(k.shape, f.name)) for f in fields(k.shape)}
    sizes = {name: value for name, value in sizes.items() if value}
    source = kernels.kernel_source(k, t.constants)
    constants = {name: float(value) for name, value in kernels.constants_of(charged, t.constants).items() if name != "sigma"}
    table = kernels.table_of(charged, t.constants)
    home = tuple(catalogue_table("kernels", t.constants.family).get("measured_on", ()))
    instead = f"; in the place of {k.stored}, which has no table" if k.stored and not table.endswith(f".{k.stored}") else ""
    if charged is not k:
        instead = "; nobody timed 8 bits here, which take no longer than these 16"
    fused = ((kernels.fused_by(k), 1 - float(k.fused)),) if k.fused else ()
    rates = applied.rates if float(k.flops) else ()  # what computes nothing has no arithmetic to slow down
    slower = ("slow_rank", applied.slow_rank), applied.pace, ("pace_prompt_steps", pace)
    return Explanation(
        parts=tuple(_parts(k, charged, t, applied, pace)),
        shape=sizes | {"arithmetic": k.dtype, "weight_bytes": k.weight_bytes} | ({"stored": k.stored} if k.stored else {}),
        nbytes=float(k.nbytes),
        flops=float(k.flops),
        floor=Floor(moved, computed, least, "bytes" if moved >= computed else "FLOPs", chip.memory_Bps, rate),
        priced_by=PricedBy(k.form, equation(k.form), table, constants, source.kind, f"{source}{instead}", home),
        effects=(*factor_effects(q, (*rates, *fused, *slower)), *_size_effects(k, q)),
        source=x.source,
        doubts=tuple(_doubts(k, t, q.trains)),
    )


def _parts(k: Kernel, charged: Kernel, t: PricingTerms, a: kernels.KernelFactors, pace: float) -> Iterator[TimePart]:
    """Each carrier's seconds inside the step, of the kernel whose form is charged, and what floors add to them."""
    chip, left, slower = t.cluster.chip, 1 - float(k.fused), a.slow_rank * a.pace[1] * pace
    fixed = moving = 0.0
    for term in terms(charged, chip, t.constants, a.rate):
        own = term.fixed_s * left * slower, term.moving_s * slower
        fixed, moving = fixed + own[0], moving + own[1]
        yield TimePart(term.name, CARRIERS[term.name], sum(own), term.alone_s * slower)
    if (lacking := a.launch_s * slower - fixed - moving) > 0:
        yield TimePart("launch_s", "without graphs a kernel takes at least its launch", lacking)
    elif a.pace[1] < 1 and (lacking := pace * float(sum(kernels.applied_s(k, chip, t.constants, a))) - fixed - moving) > 0:
        yield TimePart("floor", "no kernel beats bandwidth and peak", lacking)


def _size_effects(k: Kernel, q: Question) -> Iterator[Effect]:
    """Numbers of the engine that decided this kernel's sizes."""
    for name, known in mechanisms().items():
        kernels = (k.form in known.forms or k.part in known.parts) and k.part not in known.but_parts and not k.casts
        if (
            kernels
            and known.changes == "sizes"
            and engine_number(q.engine, name) not in (None, UNFITTED.get(name))
            and WHEN[known.when](q)
        ):
            yield engine_effect(q, name)
    if k.part in mechanisms()["imbalance"].parts and q.what_if.imbalance:
        yield from factor_effects(q, (("imbalance", q.what_if.imbalance),))


def _doubts(k: Kernel, t: PricingTerms, trains: bool) -> Iterator[str]:
    """Why a kernel's range is as wide as it is."""
    constants, source = t.constants, t.constants.label if trains else kernels.kernel_source(k, t.constants)
    whole = constants.tables["train.bf16"]["sigma"] if trains else constants.sigma
    yield f"{whole:g}: kernels of whole {'training ' if trains else ''}steps on {constants.family} chips against measured ones"
    own = 0.0 if trains else constants.tables[kernels.table_of(k, constants)].get("sigma", 0.0)
    if own > whole:
        yield f"{own:g}: rows of the table {kernels.table_of(k, constants)} that were not fitted"
    if source.kind == "transferred":
        yield f"{kernels.TRANSFERRED_SIGMA:g} beside it: {source}"
    if source.kind == "assumed" and not trains:
        yield f"{kernels.UNMEASURED_SIGMA:g} at the least: {source}"
