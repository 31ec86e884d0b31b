"""How long a kernel takes on a chip: its form (``forms``) with the constants of the chip's family, their source and spread.

Kernels in 8 bits are never slower than the same ones in 16 unless somebody measured that they are. What a step multiplies onto its
kernels are named factors, which pricing multiplies and an explanation lists, so that they agree. A factor's name is a field of the
engine (``fp8_rate``, ``small_kernels`` …), a constant of whole steps among the kernels' ones (``step.clock``, ``train.flash2`` …)
or a what-if (``slow_rank``); ``catalog/effects.toml`` says what each of them is.

At the end stands whose seconds a kernel takes: memory's, arithmetic's, and those of each constant that is a time. A form's seconds
can only come from the chip's bandwidth, its peak and constants that are seconds (or rates). Twice as slow in all of them is twice
as long, so Euler's theorem on homogeneous functions splits any form, however it joins its terms, exactly::

    T = sum over carriers x of  x dT/dx

Derivatives are taken along the imaginary axis (a complex step), which rounds nothing off.

Change here which constants price a kernel, and what a step multiplies onto it. Equations are in ``forms.py``.
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import cast

import numpy as np

from commtax.arrays import pick
from commtax.cost.forms import DAMPED, RATES, SECONDS, Parts, Table, equation_of, from_memory
from commtax.cost.kernel import NARROW_CACHE, NARROW_PROMPTS, SINGLE, WIDE_BYTES, WINDOWED, Kernel, KernelContext, PricingTerms
from commtax.cost.layer_forms import CHIP_FORMS, FORMS, ROUTED
from commtax.ledger import NO_NOTE, Item, Line, Stage, pass_of
from commtax.records import dataclass, replace
from commtax.shipped_tables import table
from commtax.spec import Chip, KernelConstants, Number
from commtax.statement import Note, Source

ANY_ARITHMETIC = ("decode", "prefill", "small", "elementwise", *CHIP_FORMS)
"""Forms whose constants hold for any number format of the arithmetic."""
LIKE_FP8 = {"mxfp8": "MXFP8", **dict.fromkeys(("mxfp4-fp8", "int4-fp8"), "4-bit weights and fp8 activations")}
"""Products that fp8's constants price where they have none of their own."""
STAND_INS: Mapping[str, list[str]] = table("cost/forms.toml")["stand_ins"]
"""Number formats whose constants serve one that was not measured, nearest first."""
TIMED = ("calibrated", "transferred")  # where a price comes from whose kernel somebody timed, on this chip or another of its family
NARROW_ROUNDING = 1e-3  # times that differ by less are equal
UNMEASURED_SIGMA = 0.3  # of kernels that nobody measured on a chip
TRANSFERRED_SIGMA = 0.16
"""How far a family's constants lie on its other chips: the root mean square of ln of the share of the peak that large bf16 products
attain there over that of the measured chip, H20 1.20, RTX 4090 1.35, RTX 3090 1.27, RTX A6000 0.93 (one public script), B300 1.05,
GB200 1.00 (rows not fitted), H200 1.01."""

CLOCK_OF_POWER = 0.7
"""The clock under load goes with this power of the watts that a FLOP/s may draw: fitted on torchao's runs of Llama 3 8B on H100s
of 500 W (``benchmarks/fit_fsdp.py``), transferred to other parts. A third would hold where voltage follows the clock; large
products run near the lowest voltage already (1,450 of 1,980 MHz on an H200 at 690 W, benchmarks/h200), where power is nearly
linear in the clock."""
CACHED = ("latent", "absorbed", "sparse", "block", "compressed")
"""What forms of attention begin with whose kernels tell by their arithmetic that a cache is narrow …"""
ATTENDING = ("decode", "prefill")  # … and end with; a selector's keys are narrow whatever the cache is
ATTENTION_PACES = {"decode": "pace_decoding", "prefill": "pace_prompting"}
Factor = tuple[str, float]  # its name and its value
TINY_STEP, ALONE = 1e-30, 1e-30
MEMORY, ARITHMETIC = "memory", "arithmetic"
CARRIERS = {MEMORY: "bytes at the memory's bandwidth", ARITHMETIC: "FLOPs at the arithmetic's peak", **SECONDS, **RATES}
"""What time can come from, and in words."""
NOTHING = 1e-13  # a share that rounding makes of nothing


def seconds(kernel: Kernel, chip: Chip, constants: KernelConstants, rate: float = 1.0) -> Parts:
    """Return the time of one launch on this chip with the constants of its family, and ``rate`` times their arithmetic: 8 bits take
    no longer than 16 unless somebody timed them on this family."""
    wide = _unmeasured_twin(kernel, constants)
    fixed, moving = _one(kernel, chip, constants, rate)
    if wide is None:
        return fixed, moving
    most_fixed, most = _one(wide, chip, constants, rate)
    longer = np.asarray(fixed + moving) > most_fixed + most
    return pick(longer, most_fixed, fixed), pick(longer, most, moving)


def charged_as(kernel: Kernel, chip: Chip, constants: KernelConstants, rate: float) -> Kernel:
    """Return the kernel whose constants price this one: of 16 bits where 8 would take longer and were not timed."""
    wide = _unmeasured_twin(kernel, constants)
    slower = wide is not None and sum(_one(kernel, chip, constants, rate)) > sum(_one(wide, chip, constants, rate))
    return _single_head_reads(wide if wide is not None and slower else kernel, constants)


def _unmeasured_twin(kernel: Kernel, constants: KernelConstants) -> Kernel | None:
    return None if kernel_source(kernel, constants).kind in TIMED else wide_twin(kernel)


def _one(kernel: Kernel, chip: Chip, constants: KernelConstants, rate: float) -> Parts:
    kernel = _single_head_reads(kernel, constants)
    fixed, moving = form_parts(kernel, constants_of(kernel, constants), chip, constants, rate)
    return fixed * (1 - kernel.fused), moving


def _single_head_reads(kernel: Kernel, constants: KernelConstants) -> Kernel:
    """Return attention in a window as a kernel runs it that serves each head alone: it reads a group's keys once for each head."""
    if kernel.stored == WINDOWED and table_of(kernel, constants).endswith(SINGLE):
        return replace(kernel, kv_heads=kernel.heads)
    return kernel


def form_parts(kernel: Kernel, table: Table, chip: Chip, constants: KernelConstants, rate: float) -> Parts:
    """Return the seconds of a kernel's form with these constants on this chip."""
    if kernel.form in CHIP_FORMS:
        return CHIP_FORMS[kernel.form](kernel, table, chip, rate)
    kernel = _warm(kernel, table, chip)
    return FORMS[kernel.form](kernel, table, chip.memory_Bps, peak(kernel, chip, constants) * rate)


def _warm(kernel: Kernel, table: Table, chip: Chip) -> Kernel:
    """Credit the chip's cache, where that was measured (``el``), with what was just made or is read next."""
    fresh_bytes = FRESH.get(kernel.form)
    if "el" not in table or fresh_bytes is None or kernel.grouped or kernel.stage:
        return kernel
    fresh, seen = fresh_bytes(kernel), kernel.shape or KernelContext()
    return replace(kernel, shape=replace(seen, kept=seen.kept + fresh - from_memory(fresh, chip.l2_bytes)))


def _prompts_bytes(kernel: Kernel) -> Number:
    """Return all bytes but those cached of earlier prompts, and those that a repeated measurement writes."""
    queries = kernel.batch * kernel.length * kernel.heads * kernel.head_dim * 2 * WIDE_BYTES
    past = kernel.past / np.maximum(kernel.past + kernel.length, 1.0)
    return kernel.nbytes - np.maximum(0.0, kernel.nbytes - queries) * past + (kernel.shape.written if kernel.shape else 0.0)


FRESH = {"gemm": lambda x: np.maximum(0.0, x.nbytes - x.n * x.k * x.weight_bytes), "prefill": _prompts_bytes}
"""Bytes that the kernels before and behind one leave in the cache, by form."""


def constants_of(kernel: Kernel, constants: KernelConstants) -> Table:
    table = constants.tables[table_of(kernel, constants)]
    if kernel.static_scales and "gemm.fp8-static" not in constants.tables:
        # The measured fp8 tables quantise each activation inside the timed region; a static scale is applied by the norm or the
        # activation before: bf16's launch and attained bandwidth, fp8's arithmetic, nothing beside.
        return {**table, **{name: constants.tables["gemm.bf16"][name] for name in ("t0", "eb", "kl", "kc", "mk")}, "q": 0.0}
    return table


def narrow_note(kernel: Kernel, took: Parts, chip: Chip, constants: KernelConstants, rate: float = 1.0) -> Note:
    """Note, in a bill of one step, that 8 bits took longer than 16, and which table's rows do."""
    taken = took[0] + took[1]
    wide = None if np.ndim(taken) or not taken else wide_twin(kernel)
    if wide is None:
        return NO_NOTE
    times = float(taken / sum(_one(wide, chip, constants, rate)))
    if times <= 1 + NARROW_ROUNDING:
        return NO_NOTE
    name = table_of(kernel, constants)
    form, _, stored = name.partition(".")
    if stored == "fp8-loaded":  # where that was not timed and has another's constants, the table is that one's
        alike = (f"{form}.{other}" for other in STAND_INS[stored])
        name = next((other for other in alike if constants.tables.get(other) == constants.tables[name]), name)
    statement = f"{kernel.what} takes {times:.2f} times as long in fp8 as in 16 bits"
    kind = kernel_source(kernel, constants).kind
    return Note("narrow-slower", f"{statement}: measured so, {name} of {constants.family} kernels ({kind})")


def least_s(kernel: Kernel, chip: Chip, constants: KernelConstants) -> Number:
    """Return what bandwidth and peak allow at the least, where streams may find what was just written in the chip's cache."""
    kernel = _warm(kernel, constants_of(kernel, constants), chip)
    moved = kernel.nbytes - (kernel.shape.kept if isinstance(kernel.shape, KernelContext) else 0.0)
    if kernel.form in CHIP_FORMS:
        moved = np.maximum(getattr(kernel.shape, "cold_bytes", 0.0), moved - chip.l2_bytes)
    return np.maximum(moved / chip.memory_Bps, kernel.flops / peak(kernel, chip, constants))


def peak(kernel: Kernel, chip: Chip, constants: KernelConstants) -> float:
    """Return the datasheet's rate of the arithmetic that a kernel runs in: bf16's for 4-bit products that have no constants."""
    peaks = chip.flops_per_s
    plain = peaks.get("bf16") or peaks["fp16"]
    if kernel.form in ROUTED and constants.tables[table_of(kernel, constants)].get("as_fp8"):
        return peaks.get("fp8") or plain  # an engine quantises activations that the checkpoint leaves as they are
    if kernel.stored == NARROW_PROMPTS and table_of(kernel, constants).endswith(NARROW_CACHE):
        return plain
    if kernel.dtype == "nvfp4":
        return peaks.get("fp4", plain) if table_of(kernel, constants).endswith(".nvfp4") else plain
    if kernel.stored == "mxfp4" and table_of(kernel, constants) == "gemm.mxfp4":
        return peaks.get("fp4", plain)
    return peaks.get(kernel.dtype) or plain


def table_of(kernel: Kernel, constants: KernelConstants) -> str:
    """Return the table that prices a kernel: of its form and arithmetic, bf16's where that was not measured."""
    if kernel.static_scales and "gemm.fp8-static" in constants.tables:
        return "gemm.fp8-static"
    if kernel.form in ROUTED:  # the implementation's, else of the usual one, or of the nearest format; both halves share tables
        form = kernel.form.replace("routing", "experts", 1)
        for kind, one in product((kernel.stored, *STAND_INS.get(kernel.stored, ()), "bf16"), (form, form.partition("_")[0])):
            if (name := f"{one}.{kind}") in constants.tables:
                return name
    exact = f"{kernel.form}.{kernel.stored}"
    if kernel.stored and exact in constants.tables:
        return exact
    if kernel.stored == NARROW_PROMPTS and (wide := f"{kernel.form}.{NARROW_CACHE}") in constants.tables:
        return wide  # an engine that attends in fp8 on other chips
    narrow = kernel.form == "decode" and kernel.weight_bytes == 1
    if kernel.stored == WINDOWED and not narrow and (single := f"decode.{SINGLE}") in constants.tables:
        return single
    if kernel.form == "decode" and not narrow and (sized := f"decode.{kernel.head_dim}") in constants.tables:
        return sized  # heads that a kernel of their own serves
    kind = "fp8" if narrow else "bf16" if kernel.form in ANY_ARITHMETIC else kernel.dtype
    name = f"{kernel.form}.{kind}"
    return name if name in constants.tables else f"{kernel.form}.bf16"


def kernel_source(kernel: Kernel, constants: KernelConstants) -> Source:
    """Return the source of a kernel's price. Narrower numbers at bf16's constants only count fewer bytes, which is assumed."""
    name, family = table_of(kernel, constants), f"were not measured on {constants.family} chips"
    if constants.label.kind in ("calibrated", "transferred") and name not in constants.own:
        if name == "gemm.bf16" and kernel.weight_bytes < 1:
            return Source("assumed", f"assumed: bf16 products on unpacked 4-bit weights {family}", "unpacked weights")
        if kernel.stored == "adapters":
            return Source("assumed", f"assumed: adapters' products, as other small ones, {family}", "adapters")
        if kernel.form == "gemm" and kernel.stored in LIKE_FP8 and name != f"gemm.{kernel.stored}":
            return Source("assumed", f"assumed: products of {LIKE_FP8[kernel.stored]}, as fp8's, {family}", LIKE_FP8[kernel.stored])
        if name == "decode.bf16" and kernel.weight_bytes < 2:
            return Source("assumed", f"assumed: this engine's attention over a narrow KV cache {family}", "narrow cache")
    return constants.own.get(name, constants.label)


def kernel_sigma(kernel: Kernel, constants: KernelConstants) -> float:
    """Return the standard deviation of the logarithm of a kernel's time inside a step."""
    source = kernel_source(kernel, constants)
    sigma = widen_sigma(max(constants.sigma, constants.tables[table_of(kernel, constants)].get("sigma", 0.0)), source)
    return max(sigma, UNMEASURED_SIGMA) if source.kind == "assumed" and sigma else sigma


def widen_sigma(sigma: float, source: Source) -> float:
    """Return a deviation on the chip that was measured as it is on another chip of the family."""
    return math.hypot(sigma, TRANSFERRED_SIGMA) if source.kind == "transferred" else sigma


def power_clock(chip: Chip, table: Table) -> float:
    """Return the clock that a part's watts per FLOP/s allow, over the measured chip's: at most 1, and 1 by default."""
    usual, peak = table.get("tdp_w", 0.0), chip.flops_per_s.get("bf16") or chip.flops_per_s.get("fp16", 0.0)
    if not (chip.tdp_w and usual and peak):
        return 1.0
    return float(min(1.0, (chip.tdp_w / usual * table.get("flops_per_s", peak) / peak) ** CLOCK_OF_POWER))


def wide_twin(k: Kernel) -> Kernel | None:
    """Return the same kernel on weights or a cache of 16 bits, or None where it is of 16 bits, or neither is fp8."""
    first, _, last = k.form.partition("-")
    if k.form == "decode" and k.weight_bytes == 1:
        kind = SINGLE if np.all(k.heads == k.kv_heads) else k.stored
        return replace(k, weight_bytes=WIDE_BYTES, nbytes=WIDE_BYTES * k.nbytes, stored=kind)
    if k.form == "prefill" and k.stored in (NARROW_PROMPTS, NARROW_CACHE):
        # Keys and values are read with a byte more an element; queries and outputs are of 16 bits already.
        more: Number = 2.0 * k.batch * (k.length + k.past) * k.kv_heads * k.head_dim
        return replace(k, dtype="bf16", stored="", nbytes=k.nbytes + more)
    if k.dtype != "fp8":
        return None
    wide = replace(k, dtype="bf16", weight_bytes=WIDE_BYTES)
    # 4-bit weights with fp8 activations have no twin of which they were the narrow one.
    if k.form == "gemm" and k.weight_bytes >= 1:
        return replace(wide, nbytes=WIDE_BYTES * (k.m * k.k + k.n * k.k + k.m * k.n), static_scales=False, stored="")
    if k.form in ROUTED and k.weight_bytes >= 1:
        moved = k.nbytes * WIDE_BYTES / k.weight_bytes if k.form.startswith("experts") else k.nbytes  # routing moves activations
        return replace(wide, nbytes=moved, stored="bf16")
    return replace(wide, nbytes=WIDE_BYTES * k.nbytes) if first in CACHED and last in ATTENDING else None


@dataclass(frozen=True, slots=True)
class KernelFactors:
    """Factors on one kernel's arithmetic rate and on its seconds, with the least that its launch takes."""

    rates: tuple[Factor, ...] = ()
    slow_rank: float = 1.0  # all wait for the slowest rank's
    pace: Factor = ("pace_small", 1.0)  # as runs of this deployment taught it
    launch_s: float = 0.0  # without graphs a kernel takes at least its launch

    @property
    def rate(self) -> float:
        rate: float = math.prod(value for _, value in self.rates)
        return rate


def applied_s(kernel: Kernel, chip: Chip, constants: KernelConstants, a: KernelFactors) -> Parts:
    """Return fixed and moving seconds of one launch inside a step."""
    fixed, moving = seconds(kernel, chip, constants, a.rate)
    if a.launch_s:
        fixed = np.maximum(fixed, a.launch_s - moving)
    if (pace := a.pace[1]) != 1:  # never below what bandwidth and peak allow
        fixed, moving = fixed * pace, np.maximum(moving * pace, np.minimum(moving, least_s(kernel, chip, constants) - fixed * pace))
    return fixed * a.slow_rank, moving * a.slow_rank


def kernel_line(kernel: Kernel, count: Number, times: Parts, sigma: Number, t: PricingTerms, stage: Stage = "") -> Line:
    form, flops = kernel.form, kernel.flops
    how = f"{form}, {pass_of(stage)}" if stage else form
    item = Item(kernel.what, "", how, kernel.nbytes, 1, count, "", None, form, kernel.part, kernel.place, stage)
    rate, source = peak(kernel, t.cluster.chip, t.constants), kernel_source(kernel, t.constants)
    return Line("compute", item, *times, source=source, flops=flops, sigma=sigma, peak_flops_per_s=rate, priced_from=kernel)


def served_lines(kernels: list[Kernel], t: PricingTerms) -> list[Line]:
    """Return the kernels of a served step as lines, once all of them are priced."""
    priced: list[tuple[Kernel, KernelFactors, Parts]] = []
    for kernel in kernels:
        applied = applied_in_serving(kernel, t)
        idle = np.ndim(kernel.count) == 0 and kernel.count == 0  # never launched
        priced.append((kernel, applied, (0.0, 0.0) if idle else applied_s(kernel, t.cluster.chip, t.constants, applied)))
    lines: list[Line] = []
    for kernel, applied, times in priced:
        line = kernel_line(kernel, kernel.count, times, kernel_sigma(kernel, t.constants), t, kernel.stage)
        slower = applied.slow_rank * applied.pace[1]
        why = narrow_note(kernel, (times[0] / slower, times[1] / slower), t.cluster.chip, t.constants, applied.rate)
        lines.append(replace(line, why=why) if why else line)
    return lines


def applied_in_serving(kernel: Kernel, t: PricingTerms) -> KernelFactors:
    """Return what a served step multiplies onto a kernel: the lower clock of a hot chip, the engine's rate in narrow formats."""
    table, pace = t.constants.tables["step.bf16"], pace_of(kernel)
    rates: list[Factor] = [("step.clock", table["clock"]), ("power_clock", power_clock(t.cluster.chip, table))]
    if rate := {"fp8": "fp8_rate", "nvfp4": "fp4_rate"}.get(kernel.dtype):
        rates.append((rate, getattr(t.engine.kernels, rate)))
    return KernelFactors(tuple(rates), t.settings.slow_rank, (pace, getattr(t.engine.paces, pace)))


def pace_of(kernel: Kernel) -> str:
    """Name the field of ``Paces`` that a kernel of a served step goes by."""
    if kernel.form in ROUTED:
        return "pace_experts"
    if kernel.part == "attention" and kernel.place in ATTENTION_PACES:
        return ATTENTION_PACES[kernel.place]
    return "pace_products" if kernel.form == "gemm" else "pace_small"


def equation(form: str) -> str:
    """Return a form's equation, which stands in its function's description and nowhere else.

    >>> equation("small")
    't = t0 + bytes / (eb bandwidth) seconds'
    """
    return equation_of(CHIP_FORMS.get(form) or FORMS[form])


@dataclass(frozen=True, slots=True)
class Term:
    """One carrier's part of a launch's fixed and moving seconds, and what it would take alone."""

    name: str
    fixed_s: float
    moving_s: float
    alone_s: float


def terms(kernel: Kernel, chip: Chip, constants: KernelConstants, rate: float) -> tuple[Term, ...]:
    """Return what a form's seconds are made of before step factors apply, so that they sum to the form's."""
    table = constants_of(kernel, constants)

    def priced(factors: Mapping[str, float]) -> Parts:
        scaled: dict[str, float] = dict(table)
        for name, factor in factors.items():
            for key in DAMPED if name == ARITHMETIC else (name,):
                if key in table:
                    scaled[key] = table[key] / factor if key in RATES else table[key] * factor

        peaks: dict[str, float] = {kind: value / factors.get(ARITHMETIC, 1.0) for kind, value in chip.flops_per_s.items()}
        slow_chip = replace(chip, memory_Bps=chip.memory_Bps / factors.get(MEMORY, 1.0), flops_per_s=peaks)
        return form_parts(kernel, scaled, slow_chip, constants, rate)

    carriers = [name for name in CARRIERS if name in (MEMORY, ARITHMETIC) or table.get(name)]
    total = float(sum(priced({})))
    split = []
    for name in carriers:
        fixed, moving = (complex(x).imag / TINY_STEP for x in priced({name: cast(float, 1 + 1j * TINY_STEP)}))
        if abs(fixed + moving) > NOTHING * total:
            others = {other: ALONE for other in carriers if other != name}
            split.append(Term(name, fixed, moving, float(sum(priced(others)))))
    return tuple(split)
