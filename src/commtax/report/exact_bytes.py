"""What is exact, for a terminal and as a document: the bytes that a rank holds (``fit``) and sends (``bill --exact``)."""

from collections.abc import Iterable, Iterator

from commtax.catalog.programs import program_of
from commtax.judgement.engine_limits import LENGTH, SEQS
from commtax.report import tables
from commtax.report.documents import LEFT_OUT, Record, document, facts, record
from commtax.report.drawing import Console
from commtax.report.manners import Manner, bars, question_title
from commtax.units import GiB, format_bytes, plural
from commtax.verbs.billing import Traffic
from commtax.verbs.explained_step import HELD
from commtax.verbs.fit_advice import changed_limits, lack_words, limit_costs, room_words, without_adapters
from commtax.verbs.fitting import Fit
from commtax.verbs.settling import describe_gpus
from commtax.verbs.train_fitting import TrainFit
from commtax.words import flags

# What engines count in the share of memory that they are given, if not all
SHARED = {"static": ", for weights and caches", "free": " that weights and activations leave"}
PLAIN_LINES = (  # what is told where an engine's log says nothing of memory
    "weights {weights_gib:.2f} GiB, KV cache {kv_gib:.2f} GiB: {kv_tokens:,} tokens{spread}",
    "room for {concurrency:.2f} requests of {max_model_len:,} tokens{ranks}",
)


def show_traffic(console: Console, sent: Traffic) -> None:
    """Show the sum, then every collective of the step: what, how large, how often, over which link."""
    rows = []
    for line in sent.lines:
        item, link = line.item, f"{line.link} (crosses hosts)" if line.crosses_hosts else line.link
        sizes = (format_bytes(item.nbytes), f"{item.ranks:g}", f"{item.count:,.0f}", format_bytes(item.sent_bytes_per_rank))
        rows.append((item.axis, item.what, item.op, *sizes, link, item.note))
    q, total, stages = sent.question, format_bytes(sent.sent_bytes_per_rank), int(sent.question.plan.pp)
    times = f"{sum(line.item.count for line in sent.lines):,.0f} operations"
    whole = f"One step: {times}; each rank sends at least {total}."
    if stages > 1:  # ranks of different stages issue different lines
        fullest = "Each line shows a rank of the fullest stage that issues it (embedding: the first, head and loss: the last)."
        path = f"One microbatch through all {stages} stages: {times}, {total} sent by the ranks along its path."
        whole = fullest if q.trains else path
    tables.say(console, whole if rows else tables.NOTHING_SENT, tables.ANSWER)
    batch = f"global batch of {plural(q.batch * q.plan.dp, 'sequence')} of {q.context:,.0f} tokens"
    kinds = f"{plural(q.plan.microbatches, 'microbatch')} per replica, ZeRO {q.plan.zero}, recompute {q.plan.recompute}"
    tables.say_question(console, q, f"train: {batch}, {kinds}" if q.trains else tables.served_step(q))
    if rows:
        columns = ("axis", "what", "collective", ">tensor", ">ranks", ">times", ">sent per rank", "link", "note")
        tables.show_table(console, *tables.drop_empty_columns(columns, rows), ("note", "ranks", "link", "tensor"))
    tables.notes(console, sent.notes)


def traffic_document(sent: Traffic) -> Record:
    return document("exact", sent.question, sent=sent, items=[record("exact-line", line=line) for line in sent.lines])


def show_fit(console: Console, judged: Fit | TrainFit) -> None:
    """Show whether a plan fits, what it lacks and what would help, then the bytes that a rank holds."""
    tables.say(console, fit_words(judged), "bold green" if judged.fits else "bold red")
    if not judged.trains and (plain := without_adapters(judged)):  # what LoRA adapters take, and what that costs in KV tokens
        plan, fewer = judged.question.plan, plain.kv_tokens - judged.kv_tokens
        takes = f"{plural(plan.max_loras, 'LoRA adapter')} of rank {plan.lora_rank} take{'s' * (plan.max_loras == 1)}"
        share = f" (-{fewer / plain.kv_tokens:.1%})" if plain.kv_tokens else ""
        size = format_bytes(judged.weights_bytes - plain.weights_bytes)
        tables.say(console, f"{takes} {size} per GPU: {fewer:,} fewer KV tokens{share}")
    if not judged.fits:
        tables.say(console, f"{lack_sentence(judged)}.", style="red")
        would = "fit" if judged.trains or not judged.holds_one else "start"
        for i, advice in enumerate(judged.advice):
            tables.say(console, f"  It would {'also ' * (i > 0)}{would} with {advice}.")
        if not judged.trains and not judged.advice:
            tables.say(console, "  Nothing that was tried fits: use more GPUs or a smaller model.")
    remarks = _show_serving(console, judged) if not judged.trains else ()
    if judged.trains:
        q, plan = judged.question, judged.question.plan
        kinds = f"{plan.schedule}, ZeRO {plan.zero}, recompute {plan.recompute}"
        sharded = f"sequence parallel {'on' if plan.sequence_parallel else 'off'}"
        size = f"microbatch {q.micro_batch} x {q.context:,.0f} tokens, {plan.microbatches} per step"
        tables.say(console, f"{size}, {kinds}, {sharded}", "dim")
        parts = (*_trained_parts(judged), ("total", float(judged.memory.total), ""))
        _show_parts(console, f"{format_bytes(judged.budget_bytes)} usable, stage 1 of {plan.pp}", judged, parts)
    tables.notes(console, (*judged.question.notes, *remarks))


def fit_words(judged: Fit | TrainFit) -> str:
    q = judged.question
    fails = "does not fit" if judged.trains or not judged.holds_one else "does not start"
    model = f"{tables.model_words(q.model)}{' training' * judged.trains} {'fits' if judged.fits else fails}"
    closest = "the smallest plan that fits is " if judged.fits else "the closest plan is "
    chosen = "" if judged.trains or not judged.chosen else closest
    return f"{model} on {tables.cluster_words(q)}{':' if judged.fits else ';'} {chosen}{describe_gpus(q.plan)}"


def lack_sentence(judged: Fit | TrainFit) -> str:
    lack = f"each GPU is {format_bytes(judged.shortfall_bytes)} short" if judged.trains else lack_words(judged)
    return lack[0].upper() + lack[1:]


def resident_parts(judged: Fit | TrainFit) -> Iterable[tuple[str, float, str]]:
    """Return what a rank holds, each part with a note."""
    return _trained_parts(judged) if judged.trains else _served_parts(judged)


def _show_parts(console: Console, title: str, judged: Fit | TrainFit, parts: Iterable[tuple[str, float, str]]) -> None:
    chip = judged.question.cluster.chip
    rows = [(name, format_bytes(nbytes), f"{nbytes / chip.visible_bytes:.1%}", note) for name, nbytes, note in parts]
    columns = tables.drop_empty_columns(("on each GPU", ">bytes", ">share", "note"), rows)
    tables.show_table(console, *columns, ("note",), f"{chip.name}: {title}")


def _show_serving(console: Console, judged: Fit) -> tuple[str, ...]:
    """Show the lines as the engine logs them, and what a rank holds, first where that is the reason, and return the notes left."""
    plan = judged.question.plan
    stage = f", stage {judged.stage + 1} of {int(plan.pp)} (the tightest)" if plan.pp > 1 else ""
    title = f"{format_bytes(judged.question.cluster.chip.visible_bytes)} visible{stage}"
    if judged.fits:
        _say_logged(console, judged)
        if judged.roomier:
            tables.say(console, f"Memory binds: {room_words(judged.roomier, judged)} ({limit_costs(judged.roomier, judged)}).")
    _show_parts(console, title, judged, _served_parts(judged))
    if not judged.fits:
        _say_logged(console, judged)
    s, engine = judged.question.limits, judged.question.engine
    limits = f"max_num_batched_tokens {s.max_num_batched_tokens}, max_num_seqs {s.max_num_seqs}"
    used = f"{s.gpu_memory_utilization:.3g} of the memory of each GPU{SHARED.get(engine.memory.utilization_of, '')}"
    graphs = ", graphs assumed" if judged.graph_bytes else ""
    limit_words = f"{engine.key}@{engine.version}: {used}, {limits}; weights and KV are exact{graphs}, and the rest is calibrated"
    return (*_warnings(judged), limit_words)


def _say_logged(console: Console, judged: Fit) -> None:
    limits, engine = judged.question.limits, judged.question.engine
    low, high = judged.kv_tokens_range
    facts = {name: getattr(limits, name) for name in (LENGTH, SEQS, "max_num_batched_tokens")}
    facts |= {"weights_gib": judged.weights_bytes / GiB, "kv_gib": judged.kv_bytes / GiB, "tokens": judged.kv_tokens}
    ranks = int(judged.question.plan.dp)
    ranks_words = f"; per data-parallel rank, all {ranks} hold {ranks * judged.kv_tokens:,.0f} tokens" if ranks > 1 else ""
    facts |= {"concurrency": judged.max_concurrency, "ranks": ranks_words}
    facts["spread"] = f" ({low:,.0f} to {high:,.0f})" if low < high else ""
    if engine.memory.start_lines:
        tables.say(console, f"{program_of(engine).title} would log:")
    for line in engine.memory.start_lines or PLAIN_LINES:
        tables.say(console, line.format_map(facts))
    blocks = f"{judged.kv_blocks:,} blocks of {plural(judged.block_size, 'token')}; " if judged.block_size > 1 else ""
    tables.say(console, f"{blocks}{format_bytes(judged.kv_bytes_per_token)} of KV per token per rank")
    if judged.state_bytes_per_sequence:
        pool, states = judged.pool, format_bytes(judged.state_bytes_per_sequence_per_rank)
        if judged.state_pool_bytes:
            room = float(pool.places(pool.tokens(judged.kv_blocks)))
            size = format_bytes(max(0.0, judged.state_pool_bytes))
            place = f"a pool of {size} has {pool.slots} for each of {room:,.0f} requests"
        else:
            place = f"they take the room of {float(pool.state_tokens):,.0f} tokens of KV"
        longest = f"the longest request has {judged.longest_request:,} tokens"
        tables.say(console, f"States: {states} per sequence per rank, whatever its length; {place}; {longest}")


def _served_parts(judged: Fit) -> Iterator[tuple[str, float, str]]:
    for line in judged.weights:
        copied = float(line.replicated_bytes)
        yield f"weights: {line.part}", float(line.nbytes), f"{format_bytes(copied)} replicated" if copied > 0.5 else ""
    yield "activations (peak)", judged.activation_bytes, "in the profiling run"
    yield "communicators and workspaces", judged.other_bytes, ""
    shared = "KV cache and states" if judged.state_bytes_per_sequence and not judged.state_pool_bytes else "KV cache"
    note = "as given" if judged.question.limits.kv_cache_memory_bytes else "what is left of the budget"
    yield shared, max(0.0, judged.kv_bytes), note
    if judged.state_pool_bytes:
        yield "states", max(0.0, judged.state_pool_bytes), f"{judged.question.engine.states.state_share:g} of the KV cache"
    if judged.graph_bytes:
        yield "CUDA graphs", judged.graph_bytes, "outside the budget, assumed"


def _warnings(judged: Fit) -> Iterator[str]:
    chip, longest, model = judged.question.cluster.chip, judged.question.limits.max_model_len, judged.question.model
    if judged.budget_bytes + judged.graph_bytes > chip.visible_bytes:
        graphs = f"CUDA graphs ({format_bytes(judged.graph_bytes)})"
        yield f"{graphs} are not part of the budget and do not fit: lower the utilisation"
    if longest > model.max_len:
        yield f"{longest:,} tokens are more than the {model.max_len:,} positions of {model.key}"
    raised = judged.question.limits.block_size * int(judged.question.plan.dcp)
    if judged.block_size > raised:
        yield f"blocks are raised from {raised} to {judged.block_size:,} tokens: they share a pool with states and windows"
    if len(model.windows) > 1:
        yield "layers with and without a window share the blocks in equal groups: a token costs as if all stored it, a request less"


def _trained_parts(judged: TrainFit) -> Iterator[tuple[str, float, str]]:
    remarks = {
        "parameters": "bf16",
        "gradients": judged.question.plan.grads_dtype,
        "optimizer": "Adam: fp32 master, two moments",
        "activations": f"of the microbatches in flight; {judged.question.engine.trains.attention} attention",
        "logits": "bf16 and fp32",
    }
    return ((name, float(getattr(judged.memory, name)), note) for name, note in remarks.items())


def fit_document(judged: Fit | TrainFit) -> Record:
    """Return what ``fit --json`` prints, of either phase. Of a model without states it has no word on them."""
    if judged.trains:
        return document("fit-train", judged.question, fit=judged, parts=facts(judged.memory, *HELD))
    low, high = judged.kv_tokens_range
    parts: Record = {"kv_tokens_low": low, "kv_tokens_high": high}
    parts["weights"] = [record("fit-weights", line=line) for line in judged.weights]
    states = judged if judged.state_bytes_per_sequence else LEFT_OUT
    roomier = roomier_record(judged.roomier, judged) if judged.roomier else None
    return document("fit", judged.question, fit=judged, states=states, roomier=roomier, **parts)


def roomier_record(roomier: Fit, judged: Fit) -> Record:
    """Return what other engine limits make room for: the flags to add, what they cost, what caches hold then."""
    return record("fit-roomier", then=roomier, add=flags(changed_limits(roomier, judged)), costs=limit_costs(roomier, judged))


FITS = Manner[Fit | TrainFit](
    show_fit,
    fit_document,
    lambda judged: [
        {"part": name, "nbytes": size, "share": size / judged.question.cluster.chip.visible_bytes, "note": note}
        for name, size, note in resident_parts(judged)
    ],
    bars(
        lambda judged: [(name, size) for name, size, _ in resident_parts(judged)],
        "bytes",
        lambda judged: f"{question_title(judged.question)}: held per rank",
    ),
)
MANNERS = {
    "Fit": FITS,
    "TrainFit": FITS,
    "Traffic": Manner[Traffic](
        show_traffic,
        traffic_document,
        lambda sent: [record("exact-line", line=line) for line in sent.lines],
        bars(
            lambda sent: [(f"{x.item.axis} {x.item.what} {x.item.op}", float(x.item.sent_bytes_per_rank)) for x in sent.lines],
            "bytes",
            lambda sent: f"{question_title(sent.question)}: sent per rank and step",
        ),
    ),
}
