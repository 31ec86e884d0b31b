"""An engine's log against what fits, its sharding checked line by line; and what the log shows without a claim.

Without a prediction: facts that two runs may differ in, how many requests ran and waited, how full the cache was, what costs time.
Logs of llama.cpp are read here too: how fast prompts were read and tokens written, and the memory that buffers take.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

from commtax import catalog
from commtax.catalog.models import bundled_model
from commtax.catalog.programs import programs
from commtax.cost.memory import weights
from commtax.files import MiB, table
from commtax.judgement.engine_limits import safe_share
from commtax.question import PARTS, Question
from commtax.runs.evidence.finding import AGREE, DISAGREE, Cause, Claim, Finding, Section
from commtax.runs.evidence.identity import identity_findings, names_of
from commtax.runs.logs.crashes import Crash
from commtax.runs.logs.engine_logs import ENDED, FAILURE, READY, STAGE, STALLED, ClaimedMemory, Moment, StartupLog, axes_of
from commtax.spec import PARALLEL, SERVING_AXES, Attention
from commtax.statement import Note
from commtax.thresholds import thresholds
from commtax.units import GiB, format_bytes, format_seconds, plural
from commtax.verbs.fitting import Fit, holds
from commtax.verbs.settling import replan, settle
from commtax.wordings import patterns, split_lines

COUNT, LEVEL = thresholds(__name__)
SAYS = patterns(__name__)

CAUSES = table("runs/logs/log_causes.toml")


def serving_findings(log: StartupLog) -> Iterator[Finding]:
    """Yield medians over the lines in which anything was done or waited for, with the range of each."""
    busy = [m for m in log.moments if m.running or m.waiting or m.prompt_tokens_per_s]
    values_by_title: dict[str, Sequence[float]] = {
        "requests running": [m.running for m in busy if m.running],
        "requests waiting": [m.waiting for m in busy if m.waiting is not None and log.prints("waiting", True)],
        "prompt tokens/s": [m.prompt_tokens_per_s for m in busy if m.prompt_tokens_per_s],
        "generated tokens/s": [m.tokens_per_s for m in busy if m.tokens_per_s],
        "tokens in the KV cache": [m.cached_tokens for m in busy if m.cached_tokens],
    }
    for name, values in values_by_title.items():
        if values:
            yield Finding(name, None, median(values), reason=range_in_words(values), remark=True)
    if hits := [m.prefix_hits for m in busy if m.prefix_hits is not None]:
        item, why = "prompt tokens found in the prefix cache", f"since the start, {_lines(hits)}"
        yield Finding(item, None, hits[-1], "share", reason=why, remark=True)
    if shares := [m.cache_share for m in busy if m.cache_share is not None]:
        low = f"{min(shares):.1%} at least, " if min(shares) < max(shares) else ""
        item = Note("cache", "KV cache in use, at most")
        yield Finding(item, None, max(shares), "share", reason=f"{low}{_lines(shares)}", remark=True)


def range_in_words(values: Sequence[float]) -> str:
    """Describe the range of values where they differ, and the number of lines."""
    low, high = min(values), max(values)
    shown = f"{low:,.10g} to {high:,.10g}, " if low < high else ""
    return f"{shown}{_lines(values)}"


def _lines(values: Sequence[float]) -> str:
    return f"in {plural(len(values), 'line')}"


def served_cause(code: str, text: str) -> Cause:
    return Cause(code, text, change=CAUSES["served"][code])


def waits_for_cache(waits: Sequence[Moment], moments: Sequence[Moment]) -> bool:
    """Return whether waiting for a full cache is no accident: it takes several lines, or many requests in most of a few."""
    many = [m for m in waits if (m.waiting or 0) >= max(COUNT.chance, LEVEL.many * m.running)]
    return len(waits) >= COUNT.few_moments or 2 * len(many) > len(moments)


def queue_causes(log: StartupLog) -> Iterator[Cause]:
    """Yield queues behind a full cache and others, and a cache that has no room for a second request."""
    yield from _overload_causes(log)
    moments = [m for m in log.moments if m.waiting is not None and (m.running or m.waiting)]
    queued = [m for m in moments if (m.waiting or 0) >= max(1, m.running)]
    full = [m for m in moments if m.waiting and (m.cache_share or 0.0) >= LEVEL.full_cache]
    if len(queued) >= COUNT.few_moments and 2 * len(queued) > len(moments) and not waits_for_cache(full, moments):
        # As many requests wait as run, or more, and the cache has room: prompts bind, or none is admitted. A full house is none.
        waiting, running = [m.waiting or 0 for m in queued], [m.running for m in queued]
        shares = [m.cache_share for m in queued if m.cache_share is not None]
        cache = f", with the KV cache {max(shares):.0%} full at most" if shares else ""
        words = f"requests queue: {_range_text(waiting)} wait while {_range_text(running)} run{'s' * (max(running) == 1)}{cache}"
        prompts = median(m.prompt_tokens_per_s for m in queued)
        if prompts > median(m.tokens_per_s for m in queued):
            yield served_cause("queue", f"{words}: their prompts are computed at {prompts:,.0f} tokens/s, and bind")
        elif waiting[-1] >= (1 - LEVEL.many) * waiting[0] and any(m.let_in for m in queued):
            fewer = "no fewer" if waiting[-1] >= waiting[0] else "hardly fewer"
            words = f"overloaded: {_range_text(waiting)} wait while {_range_text(running)} run, and {fewer} at the end"
            yield served_cause("overload", words)
        elif waiting[-1] >= waiting[0] and not any(m.prompt_tokens_per_s for m in queued):
            yield Cause("queue", f"{words}: none is let in", change=CAUSES["served"]["queue blocked"])
    if (lost := log.figures.get("preempted", 0.0)) >= COUNT.chance:
        text = f"overloaded: {lost:,.0f} times a request lost its place in the KV cache, and was computed again"
        yield served_cause("preempted", text)
    kv, each = log.available_kv_bytes, max((nbytes for _, nbytes in log.weights_bytes), default=0.0)
    if kv is not None and 0 < kv < LEVEL.little * each and 0 < (log.max_concurrency or 0.0) < LEVEL.full_lengths:
        length = f" of {log.max_model_len:,} tokens" if log.max_model_len else ""
        room = f"{kv / GiB:.2f} GiB beside {each / GiB:.2f} GiB of weights"
        yield served_cause("little cache", f"almost no KV cache: {room} hold {log.max_concurrency:.2f} requests{length}")


def _overload_causes(log: StartupLog) -> Iterator[Cause]:
    """Yield requests that wait for a full cache, queues that grow, and steps that are launched one by one."""
    moments = [m for m in log.moments if m.running]
    waits = [m for m in moments if m.waiting and (m.cache_share or 0.0) >= LEVEL.full_cache]
    if waits_for_cache(waits, moments):
        most, full = max(m.waiting or 0 for m in waits), f"{plural(len(waits), 'line')} of {len(moments)}"
        queue = f"up to {most:,} requests wait" if most > 1 else "1 request waits"
        yield served_cause("cache full", f"overloaded: the KV cache is full in {full}, and {queue}")
    yield from _growing_queue(moments)
    launched = [m for m in moments if m.graph is False and m.running > COUNT.always_captured]
    decoded = sum(m.graph is not None or m.tokens_per_s > 0 for m in moments)
    if len(launched) >= COUNT.few_moments and len(launched) * 2 > decoded:
        text = f"{plural(len(launched), 'decode line')} of {decoded} ran without a CUDA graph"
        yield served_cause("no graph", text)


def _growing_queue(moments: list[Moment]) -> Iterator[Cause]:
    """Yield an overload where the queue grows from the first third of the lines to the last, to as many as run."""
    counted = [m for m in moments if m.waiting is not None]
    third = len(counted) // 3
    if third < COUNT.few_moments:
        return
    early, late = (median(m.waiting or 0 for m in part) for part in (counted[:third], counted[-third:]))
    if late >= LEVEL.grows * max(1.0, early) and late >= median(m.running for m in counted[-third:]):
        text = f"overloaded: {early:.0f} requests wait in the first third of the lines, and {late:.0f} in the last"
        yield served_cause("overload", text)


def _range_text(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"


ENGINES = {one.key: one.title for one in programs() if not one.trains}
ENGINES["tgi"] = table("runs/logs/tgi_log.toml")["title"]
AXES: Mapping[str, str] = {axis: PARALLEL[axis].title for axis in SERVING_AXES}
FULL_LENGTH = "full-length requests at once"
ALL_WEIGHTS = "all ranks' weights"
UNFINISHED, PARTIAL = "did not finish starting in this log", "partial"
CPU, GLOO = "cpu", "gloo"  # a device, and what its ranks sum over
NCCL_ALONE = ("PYNCCL",)  # what vLLM's order of dispatch has where no kernel of its own may run
EIGHT_BITS = ("fp8", "float8", "int8", "uint8")  # types of a cache
FACTS = ("version", "nccl_version", "backend", "custom_allreduce_disabled")
STARTS = table("runs/logs/starts.toml")


def logged_options(log: StartupLog) -> dict[str, str | int]:
    """Return what ran according to the log: a catalogued model's key, the plan's sizes, and the types of weights and cache."""
    model = next((m.key for name in names_of(log.model) if (m := bundled_model(name))), "")
    weights = STARTS["dtypes"].get(log.setting("quantization"), "")
    sizes: dict[str, int] = {axis: getattr(log, axis) or axis_size(log, axis) for axis in ("tp", "pp", "dp")}
    cache = "fp8" if has_8bit_cache(log) else ""
    options = {"model": model, **sizes, "weights_dtype": weights, "kv_dtype": cache, "engine": log.engine}
    return {name: value for name, value in options.items() if value}


def has_8bit_cache(log: StartupLog) -> bool:
    return log.setting("kv_cache_dtype").lower().startswith(EIGHT_BITS)


def axis_size(log: StartupLog, axis: str) -> int:
    """Return the size of an axis from the highest rank in the log. One rank alone shows nothing."""
    numbered = [axes_of(worker).get(axis, -1) for worker, _ in log.weights_bytes]
    highest = max([*numbered, *(getattr(r, axis) for r in log.ranks)], default=-1)
    return highest + 1 if highest > 0 or log.world_size == 1 else 0


def facts(log: StartupLog) -> dict[str, str]:
    """Return all that two starts may differ in."""
    sizes = {axis: str(size) for axis in AXES if (size := getattr(log, axis) or axis_size(log, axis))}
    words = (log.version, log.setting("nccl_version"), log.backend, log.custom_allreduce_disabled)
    stated = {name: value for name, value in zip(FACTS, words, strict=True) if value}
    backends = {"all-reduce backends": ", ".join(log.allreduce_backends)} if log.allreduce_backends else {}
    settings = {name: value for name, value in log.settings.items() if name not in (ENDED, FAILURE, READY, STAGE)}
    return {"engine": log.engine, **stated, **backends, **sizes, **settings}


def plain_findings(log: StartupLog) -> Iterator[Finding]:
    """Yield layout, memory and speed from the log, with nothing to compare them with."""
    yield from (Finding(name, None, size) for axis, name in AXES.items() if (size := getattr(log, axis) or axis_size(log, axis)))
    for name, count in (("ranks in a world", log.world_size or None), ("ranks on a host", log.figures.get("local_ranks"))):
        if count is not None:
            yield Finding(name, None, count)
    yield from (Finding(Note("weights", f"weights ({label})"), None, nbytes, "bytes") for label, nbytes in weights_by_workers(log))
    if len(log.weights_bytes) > 1:
        yield Finding(ALL_WEIGHTS, None, sum(nbytes for _, nbytes in log.weights_bytes), "bytes")
    if log.available_kv_bytes is not None:
        yield Finding("KV memory per rank", None, log.available_kv_bytes, "bytes")
    tokens = log.kv_tokens or (log.kv_blocks or 0) * log.block_size
    each = (log.available_kv_bytes or 0.0) / tokens if tokens else 0.0
    rows = (("KV blocks", log.kv_blocks, ""), ("KV tokens", tokens, "tokens"), ("KV bytes per token per rank", each, "bytes"))
    for title, value, unit in (*rows, (FULL_LENGTH, log.max_concurrency, "")):
        if value:
            yield Finding(title, None, value, unit)
    if usual := typical_load(log):
        yield Finding(Note("served", f"tokens a second, {plural(usual[0], 'request')} running"), None, usual[1])
    yield from other_findings(log)


def other_findings(log: StartupLog, graph_bytes: float = 0.0) -> Iterator[Finding]:
    """Yield what a start took besides weights and cache, graphs beside their assumed size, and what serving lines count."""
    for name, (title, unit) in STARTS["taken"].items():
        if log.figures.get(name, 0.0) > 0:  # of memory that is not the GPU's alone a difference may be less than nothing
            assumed, why = (graph_bytes, STARTS["words"]["graphs"]) if name == "graph_bytes" and graph_bytes else (None, "")
            yield Finding(title, assumed, log.figures[name], unit, inf if assumed else 0.0, why, remark=True)
    yield from serving_findings(log)


def failure_findings(log: StartupLog) -> Iterator[Finding]:
    """Report that the server did not start, or did not go on, in the log's words."""
    if why := log.settings.get(FAILURE):
        yield Finding("runs that ended in an error" if log.is_ready else "starts that failed", 0, 1, reason=why).judged()


def progress_words(log: StartupLog) -> str:
    """Describe how far the server came: it failed to start, failed later, started, or had begun when the log ends."""
    if log.settings.get(FAILURE):
        return "started, and failed later" if log.is_ready else "did not start"
    if log.moments and not (log.weights_bytes or log.kv_tokens or log.version):
        return "served"
    return UNFINISHED if log.stops else "started"


def stop_notes(log: StartupLog) -> Iterator[Note]:
    """Note where a start stops without an end in the log. An excerpt that lacks its last line is no fault."""
    last = f" after '{stage}'" if (stage := log.settings.get(STAGE)) else ""
    if log.stops and ENDED in log.settings:
        why = "its process was ended there, and does not say why (dmesg tells what was killed)"
        yield Note(PARTIAL, f"the start stops{last}: {why}")
    elif log.stops and log.is_settled:
        yield Note(PARTIAL, f"no line says that the server was ready: the text stops{last}, or leaves it out")
    elif log.stops:
        yield Note(PARTIAL, f"the log stops{last}: the text is cut there, or the start hung or was ended from outside")
    if log.stops and 0 < len(log.ranks) < log.world_size:
        yield Note("came", f"{len(log.ranks)} of {log.world_size} ranks introduce themselves in this text")


def weights_by_workers(log: StartupLog) -> list[tuple[str, float]]:
    """Return weights with their workers' names, one row for workers that loaded the same."""
    groups: dict[float, list[tuple[str, float]]] = {}
    for worker, nbytes in log.weights_bytes:
        groups.setdefault(round(nbytes / GiB, 2), []).append((worker, nbytes))  # some lines have two digits, others four
    return [(who[0][0] if len(who) == 1 else f"{plural(len(who), 'rank')} alike", who[0][1]) for who in groups.values()]


def typical_load(log: StartupLog) -> tuple[int, float, int] | None:
    """Return the usual number of running requests, its median tokens a second, and tokens cached by each (0: unknown)."""
    count = Counter(m.running for m in log.moments if m.running and m.tokens_per_s)
    running, times = max(count.items(), key=lambda pair: (pair[1], pair[0]), default=(0, 0))
    if times < COUNT.few_moments:
        return None
    these = [m for m in log.moments if m.running == running and m.tokens_per_s]
    cached = [m.cached_tokens for m in these if m.cached_tokens]
    return running, median(m.tokens_per_s for m in these), int(median(cached) / running) if cached else 0


def intro(log: StartupLog) -> Note:
    """Note in one sentence who ran what."""
    which = f"{ENGINES.get(log.engine, log.engine)} {log.version}".strip()
    cache = log.setting("kv_cache_dtype")
    parts = [log.model, log.setting("dtype"), log.setting("quantization"), cache and f"KV cache {cache}"]
    parts += [log.setting("attention_backend") and f"attention by {log.setting('attention_backend')}"]
    words = ", ".join(part for part in parts if part)
    return Note("stopped" if log.stops else "start", f"{which} {progress_words(log)}{f': {words}' if words else ''}")


def log_causes(log: StartupLog, claim: Claim | None) -> Iterator[Cause]:
    """Yield what costs time according to the log, with prices where a claim states what ran."""
    if why := log.settings.get(FAILURE):
        yield Cause(FAILURE, f"{ENGINES[log.engine]} {progress_words(log)}: {why}", change=to_change(why))
    if (waited := log.figures.get(STALLED, 0.0)) >= LEVEL.long_wait_s and FAILURE not in log.settings:
        text = f"hung: a process has waited {format_seconds(waited)} for its workers when the log ends"
        yield served_cause("hang", text)
    nodes: dict[int, list[ClaimedMemory]] = {}
    for claimed in log.claims:
        nodes.setdefault(claimed.node, []).append(claimed)
    for node, claims in nodes.items():
        total, whole = sum(c.nbytes for c in claims), min(c.node_bytes for c in claims)
        if len(claims) > 1 and total > whole:
            each = f"{plural(len(claims), 'worker')} on node {node} claim {format_bytes(total)} together, of {format_bytes(whole)}"
            yield served_cause("node memory", f"{each}: the kernel ends one when they fill it")
    alone = "the order of dispatch has NCCL alone" if log.allreduce_backends == NCCL_ALONE else ""
    if why := log.custom_allreduce_disabled or alone:
        change = next((row["change"] for row in CAUSES["custom_allreduce"] if row["part"] in why), "")
        cost = _cost(claim, library="nccl") if claim and claim.tp > 1 else None
        yield _priced_cause("custom all-reduce", f"the engine's own all-reduce is off: {why}", cost, claim, change)
    for name, value in CAUSES["eager"].items():
        on_cpu = log.settings.get("device_config") == CPU or log.backend == GLOO  # where nothing is launched
        if log.settings.get(name) == value and not on_cpu:
            cost = _cost(claim, eager=True)
            text = f"kernels are launched one by one ({name}={value})"
            yield _priced_cause("eager", text, cost, claim, f"start without {name}: decode steps are replayed as CUDA graphs")
    yield from queue_causes(log)


def to_change(why: str) -> str:
    """Return what to change about an error, or "" where no advice exists."""
    return next((row["change"] for row in CAUSES[FAILURE] if row["part"].lower() in why.lower()), "")


def _cost(claim: Claim | None, **changes: str | int) -> tuple[float, float] | None:
    """Return the seconds that a change adds to a decode step, and those of the step without it, or None without a claim."""
    if claim is None:
        return None
    batch, context = claim.batch or 1, claim.context or 1024
    plain = float(claim.bill("decode", batch, context).step_s)
    return float(claim.bill("decode", batch, context, **changes).step_s) - plain, plain


def _priced_cause(code: str, text: str, cost: tuple[float, float] | None, claim: Claim | None, change: str) -> Cause:
    """Return a cause with its price per step, and what removing it would gain."""
    if not cost or not claim or cost[0] <= 0:
        return Cause(code, text, change=change)
    more, plain = cost
    batch = claim.batch or 1
    share = more / (plain + more)
    gain = f"{format_seconds(more)} of each token at batch {batch} ({share:.1%} of a decode step)"
    return Cause(code, text, more, share, change, gain)


LEFT = "KV memory left"
PRINTED_GIB, PRINTED_TIMES = 0.006 * GiB, 0.006  # half of the last digit of memory and of concurrency, in their own units
ENGINE_MEMORY = STARTS["memory"]
WORDS: Mapping[str, str] = STARTS["words"]


def audit_log(log: StartupLog, claim: Claim | None, name: str = "log") -> Section:
    """Audit layout, weights, KV memory, tokens and concurrency, and price what costs time where a claim states what ran."""
    if claim is None or log.engine not in ENGINE_MEMORY:  # of an engine that is not modelled a layout that it prints is judged
        layout = tuple(_layout(log, claim)) if claim and log.tp else ()
        judged_items = {f.item for f in layout}
        plain = (f for f in plain_findings(log) if f.item not in judged_items)
        return _section(log, None, (*failure_findings(log), *layout, *plain), name, _notes(log, None))
    same_engine = claim.question.engine.key.startswith(log.engine)  # the claimed engine, or one derived from it
    notes = [] if same_engine else [Note("engine", f"judged as {ENGINES[log.engine]}, which wrote the log")]
    claim = claim if not notes else replace(claim, question=claim.question.but(engine=catalog.engine(log.engine)))
    question, limits = settle(claim.question), claim.question.limits
    # The user's count comes first.
    logged = {n: value for n in PARTS["limits"] if (value := getattr(log, n, 0)) and not getattr(limits, n)}
    if log.setting("enable_prefix_caching") == "False" and not limits.state_slots:
        logged["state_slots"] = 1  # a request has its own states alone
    kv_dtype = "fp8" if has_8bit_cache(log) and not claim.plan.kv_dtype else claim.plan.kv_dtype
    as_logged = claim.question.but(**logged, kv_dtype=kv_dtype)
    judged, share_stated = holds(as_logged), bool(as_logged.limits.gpu_memory_utilization)
    findings = (
        *failure_findings(log),
        *_layout(log, claim),
        *identity_findings(claim, log.model, degrees={"ep": log.ep}),
        *_weights(log, claim.question),
        *_memory(log, as_logged, judged, share_stated),
        *_allreduce(log, claim),
        *_throughput_findings(typical_load(log), claim),
        *other_findings(log, judged.graph_bytes),
    )
    section = _section(log, claim, findings, name, _notes(log, question), notes)
    return replace(section, causes=(*section.causes, *_cache_causes(log, findings, judged, share_stated)))


def _section(
    log: StartupLog, claim: Claim | None, findings: Sequence[Finding], name: str, notes: Iterable[Note], before: Iterable[Note] = ()
) -> Section:
    words = *before, intro(log), *stop_notes(log), *notes
    causes = tuple(log_causes(log, claim))
    return Section("log", (name,), tuple(findings), words, causes=causes, facts=facts(log))


def audit_crash(crash: Crash, claim: Claim | None, name: str = "log") -> Section:
    """Audit a run that ended in an error: the error that came first, where it was raised, and what to change."""
    finding = Finding("runs that ended in an error", 0, 1, reason=crash.error).judged()
    facts = {name: value for name, value in (("process", crash.who), ("raised at", crash.where)) if value}
    causes = (Cause("failure", f"the run ended: {crash.sentence}", change=to_change(crash.sentence)),)
    notes = (Note("claim", "the run ended before anything of the claim could be judged"),) if claim else ()
    return Section("crash", (name,), (finding,), notes, causes=causes, facts=facts)


def _layout(log: StartupLog, claim: Claim) -> Iterator[Finding]:
    for axis in ("tp", "pp", "dp"):
        name, wanted = AXES[axis], int(getattr(claim.plan, axis))
        measured = getattr(log, axis) or axis_size(log, axis)
        if axis == "tp" or wanted > 1 or measured > 1:
            reason = f"the engine was started with {axis} {measured}" if measured else WORDS["silent"]
            yield Finding(name, wanted, measured or None, reason=reason).judged()
    if world := log.world_size:
        one = claim.tp * int(claim.plan.pp)
        wanted = world if world == one * int(claim.plan.dp) else one
        yield Finding("ranks in a world", wanted, world, reason="more or fewer processes than the plan has").judged()


def _weights(log: StartupLog, question: Question) -> Iterator[Finding]:
    """Compare the loaded weights of each worker with its stage, workers of one stage with equal weights in one line."""
    settled, slack = settle(question), PRINTED_GIB + ENGINE_MEMORY[log.engine].get("free_gib", 0.0) * GiB
    if not log.weights_bytes:
        yield Finding("weights per rank", _stage_bytes(settled, 0), None, "bytes", LEVEL.weights_tolerance, reason=WORDS["silent"])
    stages: dict[tuple[int, float], list[str]] = {}
    for worker, nbytes in log.weights_bytes:
        stages.setdefault((axes_of(worker).get("pp", 0), round(nbytes / GiB, 3) * GiB), []).append(worker)
    total = 0.0
    for (stage, nbytes), workers in stages.items():
        predicted = _stage_bytes(settled, min(stage, int(settled.plan.pp) - 1))
        total += predicted * len(workers)
        label = workers[0] if len(workers) == 1 else f"{plural(len(workers), 'rank')} alike"
        tolerance = LEVEL.weights_tolerance + slack / predicted
        item = Note("weights", f"weights ({label})")
        finding = Finding(item, predicted, nbytes, "bytes", tolerance, _likely(nbytes, question), evidence=True).judged()
        near = not (log.model or log.version) and abs(finding.difference or 0.0) <= LEVEL.near_weights
        yield finding.unsure(WORDS["unnamed"]) if near and finding.verdict == DISAGREE else finding
    ranks = int(settled.plan.tp) * int(settled.plan.pp) * int(settled.plan.dp)
    if 1 < len(log.weights_bytes) == ranks:
        one = _stage_bytes(settle(replan(question, tp=1, pp=1, dp=1, ep=1)), 0)  # a copy of the model on one rank
        loaded, whole = sum(nbytes for _, nbytes in log.weights_bytes), one * int(settled.plan.dp)
        beyond, more = format_bytes(abs(loaded - whole)), "more" if loaded >= whole else "less"
        why = f"one copy has {format_bytes(whole)}; ranks together hold {beyond} {more}"
        tolerance = LEVEL.weights_tolerance + slack * ranks / total
        yield Finding(ALL_WEIGHTS, total, loaded, "bytes", tolerance, why, evidence=True).judged()


def _stage_bytes(question: Question, stage: int) -> float:
    lines = weights(question.model, question.plan, question.engine, stage, int(question.plan.pp))
    return float(sum(w.nbytes for w in lines))


def _likely(measured: float, question: Question) -> str:
    """Return the first simple change of the plan under which the weights would be as logged."""
    tries = [(f"tp {t}", question.but(tp=t)) for t in (1, 2, 4, 8, 16) if t != question.plan.tp]
    tries += [(f"dtype {d}", question.but(weights_dtype=d)) for d in ("fp8", "int4", "bf16", "fp32")]
    for words, tried in tries:
        try:
            nbytes = _stage_bytes(settle(tried), 0)
        except ValueError:
            continue
        if abs(measured / nbytes - 1) <= LEVEL.weights_tolerance:
            return f"as at {words}"
    return "another model, quantisation or split than was said"


def _memory(log: StartupLog, question: Question, judged: Fit, share_stated: bool) -> Iterator[Finding]:
    """Compare KV tokens with the memory that the log has for them (exact), and that memory with a model of what is left."""
    plan_stated, unlike = bool(share_stated or log.model or log.tp), "other_processes" if share_stated else "other_share"
    share, limits = (WORDS[words].format(ENGINE_MEMORY[log.engine]["flag"]) for words in (unlike, "other_limits"))
    if taken := log.settings.get("activations"):
        share = f"the engine counted {taken} for activations; else {share}"
    whole, left = judged.question.cluster.chip.visible_bytes, log.available_kv_bytes
    tokens = log.kv_tokens or (log.kv_blocks * judged.block_size if log.kv_blocks else None)
    if left is None:
        why, base = limits if tokens else WORDS["silent"], whole / judged.kv_bytes_per_token
        finding = Finding("KV tokens", _tokens(log, judged), tokens, "tokens", LEVEL.left_tolerance, why, base)
        yield _relative_to_count(_excuse_left_memory(finding, log, judged, plan_stated))
        if judged.needed_kv_bytes > 0:
            each, base = log.max_concurrency, whole / judged.needed_kv_bytes
            finding = Finding(FULL_LENGTH, judged.max_concurrency, each, "", LEVEL.left_tolerance, limits, base)
            yield _relative_to_count(_excuse_left_memory(finding, log, judged, plan_stated))
        return
    node = min((claim.node_bytes for claim in log.claims), default=0.0)  # of which CPU workers take their shares
    if "fixed" not in log.figures and node:
        yield _node_memory_finding(log, judged, node)
    elif "fixed" not in log.figures:
        loaded = max((nbytes for _, nbytes in log.weights_bytes), default=judged.weights_bytes)
        other = abs(loaded / judged.weights_bytes - 1) > LEVEL.weights_tolerance  # judged in its own line, and not again here
        room = judged.kv_bytes + (judged.weights_bytes - loaded if other else 0.0)
        finding = Finding(LEFT, room, left, "bytes", LEVEL.left_tolerance, share, whole)
        yield _excuse_left_memory(finding, log, judged, plan_stated, share_stated)
    if left > 0:  # else it did not fit: there is nothing to count
        yield from _capacity_findings(log, question, judged, left, tokens)


def _capacity_findings(log: StartupLog, question: Question, judged: Fit, left: float, tokens: int | None) -> Iterator[Finding]:
    """Compare tokens and full-length requests with the memory that the log has for them."""
    inside = holds(question.but(kv_cache_memory_bytes=left))
    printed = PRINTED_GIB * (2 if log.prints("halves") else 1)  # keys and values are printed apart
    rounding = printed / left + (max(128, judged.block_size) / tokens if tokens else 0)  # and one block
    plan, why = question.plan, WORDS["other_cache"] if tokens else WORDS["silent"]
    several = int(plan.tp) * int(plan.pp) * int(plan.dp) > 1  # the line of one may be all that an excerpt has
    rounding = max(rounding, LEVEL.cache_tolerance) if several else rounding
    apart = log.prints("halves") and judged.state_bytes_per_sequence  # states have a pool of their own, and are not in the size
    wanted = int(left / judged.kv_bytes_per_token) if apart else _tokens(log, inside)
    findings = [Finding("KV tokens in that memory", wanted, tokens, "tokens", rounding, why, evidence=True).judged()]
    rounding += PRINTED_TIMES / inside.max_concurrency if inside.max_concurrency else 0.0
    if log.prints("full_length"):
        lengths = inside.max_concurrency, log.max_concurrency
        findings.append(Finding(FULL_LENGTH, *lengths, "", rounding, WORDS["other_cache"]).judged())
    excuse = _excuse(log, question, wanted, tokens, left) if any(f.verdict == DISAGREE for f in findings) else ""
    yield from (f.unsure(excuse) if excuse and f.verdict == DISAGREE else f for f in findings)


def _excuse(log: StartupLog, question: Question, wanted: int, tokens: int | None, left: float) -> str:
    """Explain why a different token count is no fault: none were counted, or windows are ignored. "" where it is one."""
    if not wanted:
        return WORDS["no_room"]
    if not tokens or not any(question.model.windows):
        return ""
    mixers = (replace(b.mixer, window=0) if isinstance(b.mixer, Attention) else b.mixer for b in question.model.blocks)
    blocks = tuple(replace(b, mixer=mixer) for b, mixer in zip(question.model.blocks, mixers, strict=True))
    full = holds(replace(question, model=replace(question.model, blocks=blocks)).but(kv_cache_memory_bytes=left))
    counted = _tokens(log, full)
    return WORDS["all_full"] if counted and abs(tokens / counted - 1) <= LEVEL.cache_tolerance else ""


def _node_memory_finding(log: StartupLog, judged: Fit, node: float) -> Finding:
    """Compare what a CPU worker leaves of its node for the cache, since each takes its share of the whole node."""
    share = judged.question.limits.gpu_memory_utilization
    left, why = share * node - judged.weights_bytes, f"another {ENGINE_MEMORY[log.engine]['flag']} than {share:g}, or other weights"
    finding = Finding(LEFT, left, log.available_kv_bytes, "bytes", LEVEL.node_tolerance, why, node, evidence=True)
    taken = min(claim.nbytes for claim in log.claims) / node
    near = abs(taken - share) < LEVEL.printed_share
    return finding.judged() if near else finding.undecided(f"its worker takes {taken:.2f} of the node")


def _tokens(log: StartupLog, judged: Fit) -> int:
    """Return KV tokens as the log counts them: whole blocks, or (newer vLLM) full-length requests times that length."""
    logged, length = log.kv_tokens, log.max_model_len
    counted = (log.max_concurrency or 0.0) * length
    if logged and counted and abs(logged - counted) <= PRINTED_TIMES * length + 1:
        return int(judged.max_concurrency * judged.question.limits.max_model_len)
    states = judged.state_bytes_per_sequence and judged.question.engine.states.state_pool == "blocks"
    return int((judged.pool.shared_tokens if states else judged.pool.tokens)(judged.kv_blocks))


def _excuse_left_memory(finding: Finding, log: StartupLog, judged: Fit, plan_stated: bool, share_stated: bool = True) -> Finding:
    """Excuse a difference in memory left where another version may have counted its peak otherwise, or took another share."""
    made_for, difference, finding = judged.question.engine.version, finding.difference, replace(finding, evidence=True).judged()
    most = ENGINE_MEMORY[log.engine].get("other_versions", LEVEL.other_engines)
    share = judged.question.limits.gpu_memory_utilization
    likely = share + (difference or 0.0)
    possible = "of_all" in ENGINE_MEMORY[log.engine] and LEVEL.least_share <= likely <= 1 + most
    if finding.verdict == DISAGREE and not plan_stated and possible:
        flag = ENGINE_MEMORY[log.engine]["flag"]
        return finding.undecided(f"the log does not say its share of memory: as at {flag} {min(1.0, likely):.2f}")
    if finding.verdict != DISAGREE or difference is None or log.version.startswith(made_for):
        return finding
    older = ENGINE_MEMORY[log.engine].get("older_share", 1.0) - share if log.version and not share_stated else 0.0
    counted = share * (finding.base or 0.0) - judged.weights_bytes
    uncounted = share_stated and finding.unit == "bytes" and difference > 0 and (finding.measured or 0.0) <= counted
    if not uncounted and abs(difference) > most and (older >= 0 or abs(difference - older) > most):
        return finding
    which = f"{ENGINES[log.engine]} {log.version}" if log.version else "a version that the log does not say"
    return finding.undecided(f"{which} may count otherwise than {made_for}, for which the memory model was made")


def _relative_to_count(finding: Finding) -> Finding:
    """Rescale a finding judged on all memory, so that difference and tolerance are shares of the count."""
    if not finding.predicted or not finding.base:
        return finding
    return replace(finding, tolerance=finding.tolerance * finding.base / finding.predicted, base=None)


def _cache_causes(log: StartupLog, findings: Iterable[Finding], judged: Fit, share_stated: bool) -> Iterator[Cause]:
    """Report less cache memory than fits, and how to get it. A larger share frees none that another process holds."""
    share, flag = judged.question.limits.gpu_memory_utilization, ENGINE_MEMORY[log.engine]["flag"]
    graphs = log.figures.get("graph_bytes", 0.0) / judged.question.cluster.chip.visible_bytes
    smaller = not share_stated and share <= safe_share(judged.question.engine.memory.utilization_of, graphs)
    change = "find what else holds memory of these GPUs (nvidia-smi lists it), and end it"
    change += f", or give {flag} {share:g} where the server had less" if smaller else ""
    for finding in findings:
        missing = (finding.predicted or 0.0) - (finding.measured or 0.0)
        if finding.item == LEFT and finding.verdict == DISAGREE and finding.measured and missing > 0:
            tokens = round(missing / finding.measured * (log.kv_tokens or 0))
            room = f": room for {tokens:,} tokens fewer ({missing / (finding.predicted or 1.0):.0%})" if tokens else ""
            text = f"{format_bytes(missing)} per GPU less for the KV cache than fits{room}"
            yield Cause("KV memory", text, change=change, gain=f"{tokens:,} more tokens in the cache" if tokens else "")


def _allreduce(log: StartupLog, claim: Claim) -> Iterator[Finding]:
    """Price a step whose custom all-reduce is off, so that NCCL does its work."""
    if not log.custom_allreduce_disabled or claim.tp == 1:
        return
    batch, context = claim.batch or 1, claim.context or 1024
    custom = float(claim.bill(batch=batch, context=context).step_s)
    fallback = float(claim.bill(batch=batch, context=context, library="nccl").step_s)
    cost, off = fallback - custom, Note("custom all-reduce", "custom all-reduce is off")
    price = f"NCCL's is priced {format_seconds(cost)} longer per step ({cost / custom:+.1%}) at batch {batch}"
    verdict = DISAGREE if cost > LEVEL.dispatch_tolerance * custom else AGREE
    finding = Finding(off, None, None, reason=f"{log.custom_allreduce_disabled}; {price}", verdict=verdict)  # not measured
    yield finding.undecided(f"{price}; {claim.distrust}") if claim.distrust else finding


def _throughput_findings(usual: tuple[int, float, int] | None, claim: Claim) -> Iterator[Finding]:
    """Compare tokens a second while serving with decode steps of as many requests. Prompts between them slow it."""
    if not usual:
        return
    running, rate, cached = usual
    step = float(claim.bill(batch=running, context=claim.context or cached or 1024).step_s)
    item = Note("served", f"a decode step, {plural(running, 'request')} running")
    yield claim.seconds(item, step, running / rate, "prompts between the steps, speculation, or a slower engine")


def _notes(log: StartupLog, question: Question | None) -> Iterator[Note]:
    quantization = log.setting("quantization")
    if question and log.version and not log.version.startswith(question.engine.version):
        words = f"{ENGINES[log.engine]} {log.version}; the memory model was made for {question.engine.version}"
        yield Note("version", f"the log is of {words}")
    if log.allreduce_backends:
        yield Note("dispatch", f"all-reduce backends in dispatch order: {', '.join(log.allreduce_backends)}")
    if log.backend or log.setting("nccl_version"):
        yield Note("backend", f"collectives over {log.backend or 'nccl'} {log.setting('nccl_version')}".strip())
    if question and quantization and question.model.quant is None and not question.plan.weights_dtype:
        advice = f"the log says quantization={quantization}: give --dtype, or a model folder with that config"
        yield Note("quantization", advice)


BUFFERS = {"model": "memory of the weights", "KV": "memory of the KV cache", "compute": "memory of computations"}
_TIMING_SIGNS = (" tokens per second", " t/s", " buffer size = ")


@dataclass(slots=True)
class Timings:
    """Rates in tokens a second, one for each answer or line, and MiB by buffer and device."""

    reads: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    buffers: dict[str, dict[str, float]] = field(default_factory=dict)


def looks_like_timings(text: str) -> bool:
    """Return whether a text holds llama.cpp's timings or buffers with a figure in them."""
    return any(sign in text for sign in _TIMING_SIGNS) and bool(SAYS.own.search(text)) and parse_timings(text) != Timings()


def parse_timings(text: str) -> Timings:
    """Read all rates and buffers.

    >>> parse_timings("slot print_timing: id  0 | task 0 | n_decoded =    100, tg =  49.32 t/s").writes
    [49.32]
    """
    timings = Timings()
    for full in split_lines(text):
        line = full[: COUNT.most_line]
        if not any(sign in line for sign in _TIMING_SIGNS) or len(timings.reads) + len(timings.writes) >= COUNT.most_rows:
            continue
        if match := SAYS.timed.search(line):
            (timings.reads if match[1].startswith("prompt") else timings.writes).append(float(match[3]))
        elif match := SAYS.writes.search(line):
            timings.writes.append(float(match[1]))
        elif match := SAYS.reads.search(line):
            timings.reads.append(float(match[1]))
        elif match := SAYS.buffer.search(line):
            timings.buffers.setdefault(match[2], {})[match[1]] = float(match[3])
    return timings


def audit_timings(timings: Timings, claim: Claim | None, name: str = "log") -> Section:
    """Report medians of the rates, and buffers over all devices. llama.cpp's kernels and formats are not modelled."""
    notes = [Note("start", "llama.cpp served" if timings.writes else "llama.cpp, which wrote no token in this text")]
    if claim:
        notes.append(Note("claim", "llama.cpp's kernels and formats are not modelled: nothing of the claim is judged"))
    rates = (("prompt tokens/s", timings.reads), ("generated tokens/s", timings.writes))
    findings = [Finding(title, None, median(x), reason=range_in_words(x), remark=True) for title, x in rates if x]
    for kind, devices in timings.buffers.items():
        where = f"on {', '.join(devices)}"[:200]
        findings.append(Finding(BUFFERS[kind], None, sum(devices.values()) * MiB, "bytes", reason=where, remark=True))
    return Section("log", (name,), tuple(findings), tuple(notes), facts={"engine": "llama.cpp"})
