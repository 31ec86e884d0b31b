"""What a served step runs beside what: halves of a batch in turn, exchanges beside a batch's own experts, products in tiles.

Nothing is gained for free. Two halves read every weight twice and pay every fixed time twice: their lines are priced as two
smaller steps. Of an exchange only what is in flight hides: kernels that send and receive take their time of the chip
(``Fabric.busy_s``), and those that stay keep multiprocessors from what runs beside them (``Fabric.kept_sms``). What hides is at
most the window that covers it.

How halves take turns is read off the engines' schedules (``catalog/engines``): D and C are the dispatch and combine of a half, S
its shared expert, P its projections of queries and keys, A all of its attention, K what of that follows P, with the router, E its
experts:

    in turn     D1 beside A0, D0 beside E1, C1 beside S1 and E0, C0 beside S0 and A1
    staggered   D beside S and the other's P, C beside the other's K

Last come all-reduces that a kernel runs together with the residual add and the norm behind them, where an engine lets it. One
launch less for each, and the sum is not written and read again; in turn the kernel has a price of its own, and its one-shot form
pushes the whole tensor to every other rank. Which tensors it takes are the engine's limits, not what would be cheaper.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

import numpy as np

from commtax.arrays import holds_anywhere, pick
from commtax.cost.collectives import applies
from commtax.cost.kernel import Kernel, PricingTerms
from commtax.cost.kernels import served_lines
from commtax.cost.placement import expert_ranks, span
from commtax.cost.traffic import backend_called
from commtax.ledger import Bill, Item, Line, Part, Place, Window, Windows
from commtax.records import replace
from commtax.shipped_tables import table
from commtax.spec import DTYPE_BYTES, Chip, Condition, Engine, Experts, Fabric, Number, Workload

HALVED = ("decode_seqs", "cached_tokens", "prefill_seqs", "prefill_tokens", "past_tokens")
ONCE: tuple[Part, ...] = ("head", "embedding", "tower", "stages", "")  # what runs once for both halves: all that is no layer
AFTER: tuple[Place, ...] = ("value", "output projection")  # projections behind attention; all others are before it
OWN_SEQUENCE: tuple[Place, ...] = ("reduced", "output")
"""Where sums over tensor-parallel ranks stand, which sequence parallelism splits in two."""
TILE = 128  # rows and columns of a product that one multiprocessor finishes together
TABLE = table("cost/overlap.toml")
TURNS: Mapping[str, Mapping[str, list[Window]]] = TABLE["turns"]
"""What exchanges of halves run beside, one after the other: of two windows each serves one half's."""
OUTPUTS = (("attention", "reduced"), ("feed-forward", "output"))  # part and place of sums that a norm follows


def exchange_of(t: PricingTerms) -> Fabric | None:
    """Return the dedicated kernels that carry tokens to experts, or None where the library's collectives do."""
    return t.fabric.exchanges.get(t.settings.ep_backend.replace("_", "-"))


def is_halved(t: PricingTerms, work: Workload) -> Condition:
    """Check whether a step runs as two halves: from the engine's threshold on, where there is an exchange to hide."""
    wanted, engine = t.techniques, t.engine.overlaps
    if not wanted.two_batches or exchange_of(t) is None:
        return False
    prompts = np.asarray(work.prefill_tokens) > 0
    least = wanted.two_batches_from or pick(prompts, engine.prompt_halves_rows, engine.halves_rows)
    has = pick(prompts, bool(engine.prompt_halves), bool(engine.halves))
    many = np.asarray(work.rows) >= np.maximum(2, least)
    halved: Condition = np.asarray(expert_ranks(t.plan, t.engine).over_replicas) & has & many
    return halved if np.ndim(halved) else bool(halved)


def half_of(work: Workload) -> Workload:
    return replace(work, **{name: getattr(work, name) / 2 for name in HALVED})


def keeps_sequences(t: PricingTerms, work: Workload) -> Condition:
    """Check whether sequence parallelism leaves this step's sequences whole, since its pass takes only steps of many tokens."""
    least = t.techniques.sequence_tokens
    if not t.plan.sequence_parallel or not least:
        return False
    part = t.engine.overlaps.sequence_bytes.get(t.cluster.chip.family, 0.0)  # from which an engine splits sequences by itself
    few: Condition = np.asarray(work.rows) < (np.floor(part * t.plan.tp / _row_bytes(t)) if least < 0 else least)
    return few if np.ndim(few) else bool(few)


def either(condition: Condition, yes: Sequence[Line], no: Sequence[Line]) -> list[Line]:
    """Join the lines of steps where a condition holds with those of the others, where what a step does not run has count 0."""
    if not np.ndim(condition):
        return [*(yes if condition else no)]
    where = np.asarray(condition)
    return [*(_often(x, where) for x in yes), *(_often(x, ~where) for x in no)]


def _often(line: Line, times: Number) -> Line:
    return replace(line, item=replace(line.item, count=line.item.count * times))


def both_halves(half: Sequence[Line], whole: Sequence[Line], t: PricingTerms, work: Workload) -> list[Line]:
    """List the layers of either half, once what is no layer, and exchanges with what they run beside."""
    prompts, schedules = np.asarray(work.prefill_tokens) > 0, t.engine.overlaps
    if np.all(prompts) or not np.any(prompts) or schedules.halves == schedules.prompt_halves:
        return _in_turns(half, whole, schedules.prompt_halves if np.any(prompts) else schedules.halves)
    return either(prompts, _in_turns(half, whole, schedules.prompt_halves), _in_turns(half, whole, schedules.halves))


def _in_turns(half: Iterable[Line], whole: Iterable[Line], schedule: str) -> list[Line]:
    turns: Mapping[str, list[Window]] = TURNS.get(schedule, {})
    lines = [line for line in whole if line.item.part in ONCE and line.kind != "host"]
    for line in half:
        if line.kind == "host" or line.item.part in ONCE:
            continue
        windows = turns.get(line.item.place) if _is_exchange(line) else None
        if windows is None:
            lines.append(_often(line, 2))
        else:
            lines += [_beside(_often(line, 2 / len(windows)), window) for window in windows]
    return lines


def _is_exchange(line: Line) -> bool:
    return line.kind == "comm" and line.item.part == "experts" and line.item.axis == "ep"


def _beside(line: Line, window: Window) -> Line:
    return replace(line, item=replace(line.item, overlaps_with=window))


def beside_same_batch(lines: list[Line], t: PricingTerms, rows: Number) -> list[Line]:
    """Place exchanges of one batch beside its own shared expert, or its own down-projections (single-batch overlap)."""
    if exchange_of(t) is None or not holds_anywhere(expert_ranks(t.plan, t.engine).over_replicas):
        return beside_routed(lines, t, rows) if t.techniques.shared_stream else lines
    windows: dict[str, Window] = {}
    if t.techniques.shared_stream and t.engine.overlaps.shared_beside:
        windows[t.engine.overlaps.shared_beside] = "own shared"
    if t.techniques.single_batch:
        early = t.cluster.chip.family in backend_called(t.settings.ep_backend).early_on
        windows = {"dispatch": "own shared", "combine": "own down"} if early else {"combine": "own down and shared"}
    return [_beside(x, windows[x.item.place]) if _is_exchange(x) and x.item.place in windows else x for x in lines]


def beside_routed(lines: list[Line], t: PricingTerms, rows: Number) -> list[Line]:
    """Run a shared expert beside routed ones: both take as long as the longer, and at least as their bytes and FLOPs together."""
    routed, shared = _kernels_of(lines, "experts", "routing"), _kernels_of(lines, "shared expert")
    memory = t.cluster.chip.memory_Bps
    together = np.maximum(np.maximum(routed.step_s, shared.step_s), routed.least_s(memory) + shared.least_s(memory))
    left: Number = np.minimum(1.0, (together - routed.step_s) / np.maximum(shared.step_s, 1e-12))
    most = t.engine.overlaps.shared_rows
    left = pick(np.asarray(rows) > most, 1.0, left) if most else left
    hides = [x.kind == "compute" and x.item.part == "shared expert" for x in lines]
    return [replace(x, fixed_s=x.fixed_s * left, moving_s=x.moving_s * left) if y else x for x, y in zip(lines, hides, strict=True)]


def _kernels_of(lines: Iterable[Line], *parts: Part) -> Bill:
    return Bill(tuple(x for x in lines if x.kind == "compute" and x.item.part in parts), 1)


def in_tiles(lines: list[Line], t: PricingTerms) -> list[Line]:
    """Place each sum and gather of tensor parallelism beside the one product that it follows or precedes: split sequences in as
    many pieces as there are ranks, whole ones in tiles that are summed inside the kernel."""
    split = t.plan.sequence_parallel
    if not split:
        return [_beside_product(x, split) for x in lines]
    cut = [_cut(x, t) if x.item.form == "gemm" and x.item.place in PRODUCT_AT else _beside_product(x, split) for x in lines]
    # What all ranks sent for a rank's own rows is read once, and the sum written, behind the last piece
    # (torch.distributed._symmetric_memory, fused_matmul_reduce_scatter: ``stacked_partials.sum``).
    pieces = (x.item for x in lines if _is_in_sequence(x) and x.item.op == "reduce-scatter")
    each = 1 + 1 / (t.plan.tp * 1.0)
    sums = [Kernel("pieces added up", "small", x.count, 0.0, x.nbytes * each, part=x.part, place=x.place) for x in pieces]
    return [*cut, *served_lines(sums, t)]


def _beside_product(line: Line, split: bool) -> Line:
    """Place attention's sum behind the output projection and before gates, a feed-forward's behind down and before queries."""
    item = line.item
    if not _is_in_sequence(line):
        return line
    of_attention = item.part == "attention"
    if item.op == "all-gather":
        return _beside(line, "gate product behind" if of_attention else "QKV projection behind")
    if split:
        return _beside(line, "output projection before" if of_attention else "down product before")
    return _beside(line, "tiles of output projection" if of_attention else "tiles of down product")


def _is_in_sequence(line: Line) -> bool:
    item = line.item
    return line.kind == "comm" and item.axis == "tp" and item.place in OWN_SEQUENCE and item.part != "experts"


def _cut(line: Line, t: PricingTerms) -> Line:
    """Cut a product into as many pieces as ranks, each of which reads all weights."""
    kernel = line.priced_from
    assert isinstance(kernel, Kernel)
    pieces, weights = t.plan.tp, kernel.n * kernel.k * kernel.weight_bytes
    nbytes = weights + np.maximum(0.0, kernel.nbytes - weights) / pieces
    piece = replace(kernel, count=kernel.count * pieces, m=kernel.m / pieces, flops=kernel.flops / pieces, nbytes=nbytes)
    (cut,) = served_lines([piece], t)
    return cut


def exposed(lines: Sequence[Line], t: PricingTerms) -> tuple[Line, ...]:
    """Return the lines with what of them hides in the windows that techniques gave them."""
    wanted = {x.item.overlaps_with for x in lines if x.kind == "comm"}.intersection(WINDOWS)
    if not wanted:
        return tuple(lines)
    chip, exchange = t.cluster.chip, exchange_of(t)
    sides = _sides(lines, t)
    free: dict[Window, Number] = {name: sum(share * sides[side] for side, share in WINDOWS[name].items()) for name in wanted}
    kept = kept_sms(exchange, t) / chip.num_sms if chip.num_sms else 0.0
    beside_exchanges, beside_sums = Windows(free, 1 - kept), Windows(free, 1.0)
    done: list[Line] = []
    for x in lines:
        if x.kind != "comm" or x.item.overlaps_with not in wanted:
            done.append(x)
        elif _is_exchange(x):
            done.append(beside_exchanges.hide(x, in_flight(x, exchange)))
        else:
            done.append(beside_sums.hide(x, _after_first(t) if t.plan.sequence_parallel else 1.0))
    return tuple(done)


def kept_sms(exchange: Fabric | None, t: PricingTerms) -> float:
    """Return the multiprocessors that exchanges keep from what runs beside them."""
    by_engine = t.engine.overlaps.combine_sms.get(t.cluster.chip.family, 0.0) if t.techniques.single_batch else 0.0
    return max(by_engine, exchange.kept_sms if exchange else 0)


def in_flight(line: Line, exchange: Fabric | None) -> Number:
    """Return the share of an exchange during which its kernels are not on the chip, or stay beside others."""
    if exchange is None or exchange.kept_sms:
        return 1.0
    if not exchange.busy_s:  # nobody says that its kernels leave the chip: nothing runs beside them
        return 0.0 * line.each_s
    return np.maximum(0.0, 1 - (exchange.busy_s + line.item.nbytes / exchange.busy_Bps) / np.maximum(line.each_s, 1e-12))


def _after_first(t: PricingTerms) -> Number:
    """Return the share of as many pieces as ranks that can overlap: not the first to come, or the last to leave."""
    return 1 - 1 / (t.plan.tp * 1.0)


def _sides(lines: Sequence[Line], t: PricingTerms) -> Mapping[str, Number]:
    """Sum the seconds of layers' kernels by what they belong to, in layers that have experts."""
    model = t.model
    mixtures = sum(isinstance(model.blocks[i].ffn, Experts) for i in model.layers) / max(1, model.num_layers)
    down = 1 / (1 + (2 if model.experts and model.experts.gated else 1))
    sides: dict[str, Number] = dict.fromkeys((*SIDES, "down", *PRODUCTS, *(f"tiles of {name}" for name in PRODUCTS)), 0.0)
    for x in lines:
        if x.kind != "compute":
            continue
        part = "projections after" if x.item.part == "projections" and x.item.place in AFTER else x.item.part
        for side, share in TABLE["sides"].get(part, {}).items():
            sides[side] = sides[side] + x.total_s * share * (mixtures if side in ("projections", "core") else 1.0)
        if x.item.part == "experts":
            sides["down"] = sides["down"] + x.total_s * (down if x.item.form != "gemm" else x.item.place == "down")
        if (name := PRODUCT_AT.get(x.item.place)) and x.item.form == "gemm":
            sides[name] = sides[name] + x.total_s * _after_first(t)
            # Sums of a product's tiles run beside the tiles behind them: of one wave of tiles, none do.
            kernel = x.priced_from
            assert isinstance(kernel, Kernel)
            tiles = np.ceil(kernel.m / TILE) * np.ceil(kernel.n / TILE)
            after_first_wave = 1 - 1 / np.maximum(1.0, tiles / max(1, t.cluster.chip.num_sms))
            sides[f"tiles of {name}"] = sides[f"tiles of {name}"] + x.total_s * after_first_wave
    return sides


SIDES = ("projections", "core", "experts", "shared")
PRODUCT_AT: Mapping[str, str] = TABLE["products"]
"""Products of a layer before or behind which sequences are gathered and sums made."""
PRODUCTS = tuple(dict.fromkeys(PRODUCT_AT.values()))


WINDOWS: Mapping[Window, Mapping[str, float]] = TABLE["windows"]
"""What a line may run beside: shares of sides' seconds."""


FUSED_OP = "all-reduce-norm"  # what the kernel's paths are called
FUSED_FORM = "fused-norm"  # the form of an all-reduce that runs in such a kernel
AUTO = "auto"


def fused_fabric(fabric: Fabric | None, algorithm: str) -> Fabric | None:
    """Return the kernel's paths: those of one algorithm, whatever its size, or all, as the kernel's own rule selects (``AUTO``)."""
    if fabric is None or algorithm == AUTO:
        return fabric
    paths = tuple(replace(p, max_bytes=()) for p in fabric.paths[FUSED_OP] if p.algorithm == algorithm)
    return replace(fabric, paths={FUSED_OP: paths}, network_paths={FUSED_OP: paths}) if paths else None


def most_fused_bytes(engine: Engine, chip: Chip, ranks: Number) -> Number:
    """Return the largest tensor that an engine gives to the kernel on a chip, by group size, or without limits any."""
    rows = [entry.split() for entry in engine.sends.fused_reduce_most]
    if not rows:
        return np.inf
    who = chip.key if any(name == chip.key for name, *_ in rows) else chip.family
    limits = [(int(world), float(most)) for name, world, most in rows if name == who]
    if not limits:
        return 0.0
    return np.select([np.asarray(ranks) == world for world, _ in limits], [most for _, most in limits], 0.0)


def most_fused_tokens(t: PricingTerms) -> Number:
    """Return the most tokens of a step whose sums an engine gives to the kernel, by its byte and row limits, or inf."""
    return np.minimum(most_fused_bytes(t.engine, t.cluster.chip, t.plan.tp) / _row_bytes(t), t.engine.sends.fused_reduce_rows)


def runs_fused(item: Item, t: PricingTerms) -> Condition:
    """Check whether a layer's output all-reduce runs in the kernel: it has a path for the group, and the engine takes it there."""
    fabric = fused_fabric(t.fabric.fused, t.techniques.fused_reduce)
    if fabric is None:
        return np.asarray(item.count) < 0
    rows = item.nbytes / _row_bytes(t)
    taken: Condition = np.logical_not(span(item.axis, t.plan, t.cluster, t.engine).crosses)
    taken = taken & (np.asarray(item.ranks) > 1) & (np.asarray(rows) <= t.engine.sends.fused_reduce_rows)
    taken = taken & (np.asarray(item.nbytes) <= most_fused_bytes(t.engine, t.cluster.chip, item.ranks))
    return taken & reduce(np.logical_or, (applies(path, item.nbytes, item.ranks) for path in fabric.paths[FUSED_OP]))


def _row_bytes(t: PricingTerms) -> float:
    return t.model.hidden * DTYPE_BYTES[t.plan.activations_dtype]


def fuse(items: list[Item], kernels: list[Kernel], t: PricingTerms) -> tuple[list[Item], list[Kernel]]:
    """Run sums and norms of a step together where the engine does so, which saves each sum one norm's launch."""
    if not t.techniques.fused_reduce:
        return items, kernels
    split = [list(_split(item, t)) for item in items]
    fused = sum((item.count for parts in split for item in parts if item.form == FUSED_FORM), start=0.0)
    norms = sum((k.count for k in kernels if k.part == "norms"), start=0.0)
    left = 1 - np.minimum(1.0, fused / np.maximum(1.0, norms))
    fewer = [replace(k, count=k.count * left) if k.part == "norms" else k for k in kernels]
    return [item for parts in split for item in parts], fewer


def _split(item: Item, t: PricingTerms) -> Iterator[Item]:
    """Yield an item as it is, and what of it runs in the kernel."""
    if not (item.op == "all-reduce" and item.axis == "tp" and (item.part, item.place) in OUTPUTS):
        yield item
        return
    where = runs_fused(item, t)
    yield replace(item, count=pick(where, 0, item.count))
    fused = replace(item, count=pick(where, item.count, 0), form=FUSED_FORM, note="with residual and norm, in one kernel")
    if np.any(where) and not np.all(where):  # the kernel has no time for groups that it does not run for: none of those are counted
        sizes = (item.ranks, item.nbytes)
        ranks, nbytes = (np.broadcast_arrays(size, where)[0][np.broadcast_arrays(where, size)[0]] for size in sizes)
        fused = replace(fused, ranks=pick(where, item.ranks, ranks[0]), nbytes=pick(where, item.nbytes, nbytes[0]))
    yield fused
