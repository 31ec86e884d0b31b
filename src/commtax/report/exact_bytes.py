"""What is exact, for a terminal and as a document: the bytes that a rank holds (``fit``) and sends (``bill --exact``)."""

from collections.abc import Iterable, Iterator

from commtax.report.documents import LEFT_OUT, Record, document, facts, record
from commtax.report.drawing import Console
from commtax.report.tables import NOTHING_SENT, cluster_words, headline, notes, say, served_step, show_table
from commtax.units import GiB, format_bytes, plural
from commtax.verbs.billing import Traffic
from commtax.verbs.explained_step import HELD
from commtax.verbs.fitting import Fit
from commtax.verbs.settling import describe_gpus
from commtax.verbs.train_fitting import TrainFit


def show_traffic(console: Console, sent: Traffic) -> None:
    """Every collective of the step: what, how large, how often, over which link."""
    headline(console, sent.question)
    say(console, _trained_step(sent) if sent.question.trains else served_step(sent.question))
    rows = []
    for line in sent.lines:
        item = line.item
        link = f"{line.link} (crosses hosts)" if line.crosses_hosts else line.link
        sizes = (format_bytes(item.nbytes), f"{item.ranks:g}", f"{item.count:,.0f}", format_bytes(item.sent_bytes_per_rank))
        rows.append((item.axis, item.what, item.op, *sizes, link, item.note))
    if rows:
        columns = ("axis", "what", "collective", ">tensor", ">ranks", ">times", ">sent per rank", "link", "note")
        show_table(console, columns, rows)
    say(console, _sum_line(sent) if rows else NOTHING_SENT)
    notes(console, sent.notes)


def _sum_line(sent: Traffic) -> str:
    """What the lines add up to, and for whom: ranks of different stages issue different lines."""
    times = f"{sum(line.item.count for line in sent.lines):,.0f}"
    total, stages = format_bytes(sent.sent_bytes_per_rank), int(sent.question.plan.pp)
    if sent.question.trains and stages > 1:
        return "Each line shows a rank of the fullest stage that issues it (embedding: the first, head and loss: the last)."
    if stages > 1:
        return f"One microbatch through all {stages} stages: {times} operations, {total} sent by the ranks along its path."
    return f"One step: {times} operations; each rank sends at least {total}."


def _trained_step(sent: Traffic) -> str:
    q, plan = sent.question, sent.question.plan
    batch = f"global batch of {plural(q.batch * plan.dp, 'sequence')} of {q.context:,.0f} tokens"
    return f"train: {batch}, {plural(plan.microbatches, 'microbatch')} per replica, ZeRO {plan.zero}, recompute {plan.recompute}"


def traffic_document(sent: Traffic) -> Record:
    """``bill --exact --json``."""
    return document("exact", sent.question, sent=sent, items=[record("exact-line", line=line) for line in sent.lines])


def show_fit(console: Console, judged: Fit | TrainFit) -> None:
    """The verdict, what a rank holds, and what else the phase tells."""
    asked = judged.question
    model = f"{asked.model.key}{' training' * judged.trains} {'fits' if judged.fits else 'does not fit'}"
    chosen = ("smallest TP that fits: " if judged.fits else "nearest: ") if not judged.trains and judged.chosen else ""
    say(
        console,
        f"{model} on {cluster_words(asked)}: {chosen}{describe_gpus(asked.plan)}",
        "bold green" if judged.fits else "bold red",
    )
    remarks = _show_training(console, judged) if judged.trains else _show_serving(console, judged)
    if not judged.fits:
        _show_lack(console, judged)
    notes(console, (*asked.notes, *remarks))


def _show_lack(console: Console, judged: Fit | TrainFit) -> None:
    """What is missing, and what would fit."""
    asked = judged.question
    request = "" if asked.trains else f" for one request of {asked.limits.max_model_len:,.0f} tokens"
    say(console, f"Each rank lacks {format_bytes(judged.shortfall_bytes)}{request}.", style="red")
    for advice in judged.advice:
        say(console, f"  this would fit: {advice}")
    if not asked.trains and not judged.advice:
        say(console, "  nothing that was tried fits: use more GPUs or a smaller model")


def _show_held(console: Console, title: str, judged: Fit | TrainFit, held: Iterable[tuple[str, float, str]]) -> None:
    chip = judged.question.cluster.chip
    rows = [(name, format_bytes(nbytes), f"{nbytes / chip.visible_bytes:.1%}", note) for name, nbytes, note in held]
    show_table(console, ("each rank holds", ">bytes", ">share", "note"), rows, f"{chip.name}: {title}")


def _show_serving(console: Console, judged: Fit) -> tuple[str, ...]:
    """What a rank holds, and the lines as vLLM logs them; what is left to remark."""
    plan, limits = judged.question.plan, judged.question.limits
    stage = f", stage {judged.stage + 1} of {int(plan.pp)} (the tightest)" if plan.pp > 1 else ""
    _show_held(console, f"{format_bytes(judged.question.cluster.chip.visible_bytes)} visible{stage}", judged, _served_parts(judged))
    say(console, f"Model loading took {judged.weights_bytes / GiB:.4f} GiB")
    say(console, f"Available KV cache memory: {judged.kv_bytes / GiB:.2f} GiB")
    low, high = judged.kv_tokens_range
    spread = f" ({low:,.0f} to {high:,.0f})" if low < high else ""
    most = f"Maximum concurrency for {limits.max_model_len:,.0f} tokens per request: {judged.max_concurrency:.2f}x"
    say(console, f"GPU KV cache size: {judged.kv_tokens:,.0f} tokens{spread}, {most}")
    per_token = format_bytes(judged.kv_bytes_per_token)
    say(console, f"# GPU blocks: {judged.kv_blocks} of {judged.block_size} tokens; {per_token} of KV per token and rank")
    if judged.state_bytes_per_sequence:
        _show_states(console, judged)
    return (*_warnings(judged), _limits(judged))


def _show_states(console: Console, judged: Fit) -> None:
    """What a sequence keeps whatever its length, where it lies, and what is left for its tokens."""
    pool, states = judged.pool, format_bytes(judged.state_bytes_per_sequence_per_rank)
    if judged.state_pool_bytes:
        room = float(pool.places(pool.tokens(judged.kv_blocks)))
        size = format_bytes(max(0.0, judged.state_pool_bytes))
        place = f"a pool of {size} has {pool.slots} for each of {room:,.0f} requests"
    else:
        place = f"they take the room of {float(pool.state_tokens):,.0f} tokens of KV"
    longest = f"the longest request has {judged.longest_request:,} tokens"
    say(console, f"States: {states} per sequence and rank, whatever its length; {place}; {longest}")


def _served_parts(judged: Fit) -> Iterator[tuple[str, float, str]]:
    for line in judged.weights:
        copied = float(line.replicated_bytes)
        yield f"weights: {line.part}", float(line.nbytes), f"{format_bytes(copied)} replicated" if copied > 0.5 else ""
    yield "activations (peak)", judged.activation_bytes, "of the profile run"
    yield "communicators and workspaces", judged.other_bytes, ""
    given = judged.question.limits.kv_cache_memory_bytes
    shared = "KV cache and states" if judged.state_bytes_per_sequence and not judged.state_pool_bytes else "KV cache"
    yield shared, max(0.0, judged.kv_bytes), "as given" if given else "what the budget leaves"
    if judged.state_pool_bytes:
        yield "states", max(0.0, judged.state_pool_bytes), f"{judged.question.engine.states.state_share:g} of the KV cache"
    if judged.graph_bytes:
        yield "CUDA graphs", judged.graph_bytes, "on top of the budget"


def _warnings(judged: Fit) -> Iterator[str]:
    """What a fit should know about itself."""
    chip, longest, model = judged.question.cluster.chip, judged.question.limits.max_model_len, judged.question.model
    if judged.budget_bytes + judged.graph_bytes > chip.visible_bytes:
        graphs = f"CUDA graphs ({format_bytes(judged.graph_bytes)})"
        yield f"{graphs} come on top of the budget and do not fit: lower the utilisation"
    if longest > model.max_len:
        yield f"{longest:,} tokens are more than the {model.max_len:,} positions of {model.key}"
    raised = judged.question.limits.block_size * int(judged.question.plan.dcp)
    if judged.block_size > raised:
        yield f"blocks are raised from {raised} to {judged.block_size:,} tokens: they share a pool with states and windows"
    if len(model.windows) > 1:
        yield "layers with and without a window share the blocks in equal groups: a token costs as if all stored it, a request less"


def _limits(judged: Fit) -> str:
    s, engine = judged.question.limits, judged.question.engine
    limits = f"max_num_batched_tokens {s.max_num_batched_tokens}, max_num_seqs {s.max_num_seqs}"
    used = f"utilisation {s.gpu_memory_utilization:g} of {engine.memory.utilization_of} memory"
    return f"{engine.key}@{engine.version}: {used}, {limits}; weights and KV exact, the rest calibrated"


def _show_training(console: Console, judged: TrainFit) -> tuple[str, ...]:
    """What a rank holds; nothing is left to remark."""
    q, plan = judged.question, judged.question.plan
    kinds = f"{plan.schedule}, ZeRO {plan.zero}, recompute {plan.recompute}"
    sharded = f"sequence parallel {'on' if plan.sequence_parallel else 'off'}"
    length = f"{q.context:,.0f} tokens"
    say(console, f"microbatch {q.micro_batch} x {length}, {plan.microbatches} per step, {kinds}, {sharded}")
    remarks = {
        "parameters": "bf16",
        "gradients": plan.grads_dtype,
        "optimizer": "Adam: fp32 master, two moments",
        "activations": f"of the microbatches in flight; {q.engine.trains.attention} attention",
        "logits": "bf16 and fp32",
        "total": "",
    }
    held = [(name, float(getattr(judged.memory, name)), note) for name, note in remarks.items()]
    _show_held(console, f"{format_bytes(judged.budget_bytes)} usable, stage 1 of {plan.pp}", judged, held)
    return ()


def fit_document(judged: Fit | TrainFit) -> Record:
    """``fit --json``, of either phase; a model without states has no word on them."""
    if judged.trains:
        return document("fit-train", judged.question, fit=judged, parts=facts(judged.memory, *HELD))
    low, high = judged.kv_tokens_range
    return document(
        "fit",
        judged.question,
        fit=judged,
        states=judged if judged.state_bytes_per_sequence else LEFT_OUT,
        weights=[record("fit-weights", line=line) for line in judged.weights],
        kv_tokens_low=low,
        kv_tokens_high=high,
    )
