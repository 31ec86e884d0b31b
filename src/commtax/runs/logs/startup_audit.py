"""An engine's log against what fits, its sharding checked line by line; and what the log tells by itself.

Without a prediction: facts that two runs may differ in, how many requests ran and waited, how full the cache was, what costs time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

from commtax import catalog
from commtax.catalog.models import bundled_model
from commtax.catalog.programs import programs
from commtax.cost.memory import weights
from commtax.files import table
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

COUNT, LEVEL = thresholds(__name__)

CAUSES = table("runs/logs/log_causes.toml")


def serving_findings(log: StartupLog) -> Iterator[Finding]:
    """Medians over the lines in which anything was done or waited for, with the range of each."""
    busy = [m for m in log.moments if m.running or m.waiting or m.prompt_tokens_per_s]
    told: dict[str, Sequence[float]] = {
        "requests running": [m.running for m in busy if m.running],
        "requests waiting": [m.waiting for m in busy if m.waiting is not None and _prints(log, "waiting", True)],
        "prompt tokens/s": [m.prompt_tokens_per_s for m in busy if m.prompt_tokens_per_s],
        "generated tokens/s": [m.tokens_per_s for m in busy if m.tokens_per_s],
        "tokens in the KV cache": [m.cached_tokens for m in busy if m.cached_tokens],
    }
    for name, values in told.items():
        if values:
            yield Finding(name, None, median(values), reason=range_in_words(values), told=True)
    if hits := [m.prefix_hits for m in busy if m.prefix_hits is not None]:
        item, why = "prompt tokens found in the prefix cache", f"since the start, {_lines(hits)}"
        yield Finding(item, None, hits[-1], "share", reason=why, told=True)
    if shares := [m.cache_share for m in busy if m.cache_share is not None]:
        low = f"{min(shares):.1%} at least, " if min(shares) < max(shares) else ""
        item = Note("cache", "KV cache in use, at most")
        yield Finding(item, None, max(shares), "share", reason=f"{low}{_lines(shares)}", told=True)


def _prints(log: StartupLog, what: str, usual: bool = False) -> bool:
    """Return whether an engine prints something in its log, as the table of its wordings has it."""
    return bool(table(f"runs/logs/{log.engine}_log.toml").get("prints", {}).get(what, usual))


def range_in_words(values: Sequence[float]) -> str:
    """From the least to the most, where they differ, and in how many lines."""
    low, high = min(values), max(values)
    shown = f"{low:,.10g} to {high:,.10g}, " if low < high else ""
    return f"{shown}{_lines(values)}"


def _lines(values: Sequence[float]) -> str:
    return f"in {plural(len(values), 'line')}"


def served_cause(code: str, said: str) -> Cause:
    return Cause(code, said, change=CAUSES["served"][code])


def waits_for_cache(waits: Sequence[Moment], moments: Sequence[Moment]) -> bool:
    """Whether lines in which requests wait for a full cache are no chance: several, or many wait in most of a few."""
    many = [m for m in waits if (m.waiting or 0) >= max(COUNT.chance, LEVEL.many * m.running)]
    return len(waits) >= COUNT.few_moments or 2 * len(many) > len(moments)


def queue_causes(log: StartupLog) -> Iterator[Cause]:
    """Queues behind a full cache and others, and a cache that has no room for a second request."""
    yield from _overload_causes(log)
    moments = [m for m in log.moments if m.waiting is not None and (m.running or m.waiting)]
    queued = [m for m in moments if (m.waiting or 0) >= max(1, m.running)]
    full = [m for m in moments if m.waiting and (m.cache_share or 0.0) >= LEVEL.full_cache]
    if len(queued) >= COUNT.few_moments and 2 * len(queued) > len(moments) and not waits_for_cache(full, moments):
        # As many requests wait as run, or more, and the cache has room: prompts bind, or nobody is let in. A full house is none.
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
            change = "a higher limit of running requests, or more KV memory where the next request needs more than is free"
            yield Cause("queue", f"{words}: none is let in", change=change)
    if (lost := log.figures.get("preempted", 0.0)) >= COUNT.chance:
        said = f"overloaded: {lost:,.0f} times a request lost its place in the KV cache, and was computed again"
        yield served_cause("preempted", said)
    yield from _small_cache(log)


def _overload_causes(log: StartupLog) -> Iterator[Cause]:
    """Requests that wait for a full cache or ever more of them, and steps that are launched one by one."""
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
        said = f"{plural(len(launched), 'decode line')} of {decoded} ran without a CUDA graph"
        yield served_cause("no graph", said)


def _growing_queue(moments: list[Moment]) -> Iterator[Cause]:
    """More requests wait in the last third of the lines than in the first, and as many as run: more come than are answered."""
    told = [m for m in moments if m.waiting is not None]
    third = len(told) // 3
    if third < COUNT.few_moments:
        return
    early, late = (median(m.waiting or 0 for m in part) for part in (told[:third], told[-third:]))
    if late >= LEVEL.grows * max(1.0, early) and late >= median(m.running for m in told[-third:]):
        said = f"overloaded: {early:.0f} requests wait in the first third of the lines, and {late:.0f} in the last"
        yield served_cause("overload", said)


def _range_text(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"


def _small_cache(log: StartupLog) -> Iterator[Cause]:
    """A cache that is small beside the weights and holds hardly more than one request of full length."""
    kv, each = log.available_kv_bytes, max((nbytes for _, nbytes in log.weights_bytes), default=0.0)
    if kv is None or not log.max_concurrency or log.max_concurrency >= LEVEL.full_lengths or not 0 < kv < LEVEL.little * each:
        return
    length = f" of {log.max_model_len:,} tokens" if log.max_model_len else ""
    held = f"{kv / GiB:.2f} GiB beside {each / GiB:.2f} GiB of weights"
    said = f"almost no KV cache: {held} hold {log.max_concurrency:.2f} requests"
    yield served_cause("little cache", f"{said}{length}")


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
    """What the log itself says ran: a catalogued model's key, the sizes of the plan, and the types of weights and cache."""
    model = next((m.key for name in names_of(log.model) if (m := bundled_model(name))), "")
    weights = STARTS["dtypes"].get(log.said("quantization"), "")
    sizes: dict[str, int] = {axis: getattr(log, axis) or axis_size(log, axis) for axis in ("tp", "pp", "dp")}
    cache = "fp8" if has_8bit_cache(log) else ""
    said = {"model": model, **sizes, "weights_dtype": weights, "kv_dtype": cache, "engine": log.engine}
    return {name: value for name, value in said.items() if value}


def has_8bit_cache(log: StartupLog) -> bool:
    return log.said("kv_cache_dtype").lower().startswith(EIGHT_BITS)


def axis_size(log: StartupLog, axis: str) -> int:
    """A size from the highest rank that introduced itself or that a worker is named after; one rank alone tells nothing."""
    numbered = [axes_of(worker).get(axis, -1) for worker, _ in log.weights_bytes]
    highest = max([*numbered, *(getattr(r, axis) for r in log.ranks)], default=-1)
    return highest + 1 if highest > 0 or log.world_size == 1 else 0


def facts(log: StartupLog) -> dict[str, str]:
    """All that two starts may differ in."""
    sizes = {axis: str(size) for axis in AXES if (size := getattr(log, axis) or axis_size(log, axis))}
    words = (log.version, log.said("nccl_version"), log.backend, log.custom_allreduce_disabled)
    own = {name: value for name, value in zip(FACTS, words, strict=True) if value}
    backends = {"all-reduce backends": ", ".join(log.allreduce_backends)} if log.allreduce_backends else {}
    settings = {name: value for name, value in log.settings.items() if name not in (ENDED, FAILURE, READY, STAGE)}
    return {"engine": log.engine, **own, **backends, **sizes, **settings}


def plain_findings(log: StartupLog) -> Iterator[Finding]:
    """Layout, memory and speed as the log has them, with nothing to compare them with."""
    for axis, name in AXES.items():
        if size := getattr(log, axis) or axis_size(log, axis):
            yield Finding(name, None, size)
    for name, count in (("ranks in a world", log.world_size or None), ("ranks on a host", log.figures.get("local_ranks"))):
        if count is not None:
            yield Finding(name, None, count)
    for label, nbytes in weights_by_workers(log):
        yield Finding(Note("weights", f"weights ({label})"), None, nbytes, "bytes")
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
    """What a start took besides weights and cache, graphs beside what is assumed of them, and what its serving lines count."""
    for name, (title, unit) in STARTS["taken"].items():
        if log.figures.get(name, 0.0) > 0:  # of memory that is not the GPU's alone a difference may be less than nothing
            known, why = (graph_bytes, STARTS["words"]["graphs"]) if name == "graph_bytes" and graph_bytes else (None, "")
            yield Finding(title, known, log.figures[name], unit, inf if known else 0.0, why, told=True)
    yield from serving_findings(log)


def failure_findings(log: StartupLog) -> Iterator[Finding]:
    """That it did not start, or did not go on, in its own words."""
    if why := log.settings.get(FAILURE):
        yield Finding("runs that ended in an error" if log.is_ready else "starts that failed", 0, 1, reason=why).judged()


def progress_words(log: StartupLog) -> str:
    """How far it came: it did not start, failed later, started, or only began to as far as the log goes."""
    if log.settings.get(FAILURE):
        return "started, and failed later" if log.is_ready else "did not start"
    if log.moments and not (log.weights_bytes or log.kv_tokens or log.version):
        return "served"
    return UNFINISHED if log.stops else "started"


def stop_notes(log: StartupLog) -> Iterator[Note]:
    """That the start has no end in the log, and where it stops; an excerpt without the last line is no fault, and is told too."""
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
    """Weights by whom: workers that loaded the same share a line."""
    groups: dict[float, list[tuple[str, float]]] = {}
    for worker, nbytes in log.weights_bytes:
        groups.setdefault(round(nbytes / GiB, 2), []).append((worker, nbytes))  # some lines have two digits, others four
    return [(who[0][0] if len(who) == 1 else f"{plural(len(who), 'rank')} alike", who[0][1]) for who in groups.values()]


def typical_load(log: StartupLog) -> tuple[int, float, int] | None:
    """Requests that ran most often, the median of tokens a second while they did, and tokens that each had cached (0: not told)."""
    count = Counter(m.running for m in log.moments if m.running and m.tokens_per_s)
    running, times = max(count.items(), key=lambda pair: (pair[1], pair[0]), default=(0, 0))
    if times < COUNT.few_moments:
        return None
    these = [m for m in log.moments if m.running == running and m.tokens_per_s]
    cached = [m.cached_tokens for m in these if m.cached_tokens]
    return running, median(m.tokens_per_s for m in these), int(median(cached) / running) if cached else 0


def intro(log: StartupLog) -> Note:
    """Who ran what, in one sentence."""
    which = f"{ENGINES.get(log.engine, log.engine)} {log.version}".strip()
    parts = [log.model, log.said("dtype"), log.said("quantization"), (cache := log.said("kv_cache_dtype")) and f"KV cache {cache}"]
    parts += [log.said("attention_backend") and f"attention by {log.said('attention_backend')}"]
    said = ", ".join(part for part in parts if part)
    return Note("stopped" if log.stops else "start", f"{which} {progress_words(log)}{f': {said}' if said else ''}")


def log_causes(log: StartupLog, claim: Claim | None) -> Iterator[Cause]:
    """What costs time, or all of it, by the log's own words; priced where somebody says what ran."""
    if why := log.settings.get(FAILURE):
        yield Cause(FAILURE, f"{ENGINES[log.engine]} {progress_words(log)}: {why}", change=to_change(why))
    if (waited := log.figures.get(STALLED, 0.0)) >= LEVEL.long_wait_s and FAILURE not in log.settings:
        said = f"hung: a process has waited {format_seconds(waited)} for its workers when the log ends"
        yield served_cause("hang", said)
    yield from _overclaim_causes(log)
    alone = "the order of dispatch has NCCL alone" if log.allreduce_backends == NCCL_ALONE else ""
    if why := log.custom_allreduce_disabled or alone:
        change = next((row["change"] for row in CAUSES["custom_allreduce"] if row["part"] in why), "")
        cost = _cost(claim, library="nccl") if claim and claim.tp > 1 else None
        yield _priced_cause("custom all-reduce", f"the engine's own all-reduce is off: {why}", cost, claim, change)
    for name, value in CAUSES["eager"].items():
        on_cpu = log.settings.get("device_config") == CPU or log.backend == GLOO  # where nothing is launched
        if log.settings.get(name) == value and not on_cpu:
            cost = _cost(claim, eager=True)
            said = f"kernels are launched one by one ({name}={value})"
            yield _priced_cause("eager", said, cost, claim, f"start without {name}: decode steps are replayed as CUDA graphs")
    yield from queue_causes(log)


def to_change(why: str) -> str:
    """What to change about an error; "" where nothing is known."""
    return next((row["change"] for row in CAUSES[FAILURE] if row["part"].lower() in why.lower()), "")


def _overclaim_causes(log: StartupLog) -> Iterator[Cause]:
    """Workers of one node that together claim more memory than it has."""
    nodes: dict[int, list[ClaimedMemory]] = {}
    for claim in log.claims:
        nodes.setdefault(claim.node, []).append(claim)
    for node, claims in nodes.items():
        total, whole = sum(c.nbytes for c in claims), min(c.node_bytes for c in claims)
        if len(claims) > 1 and total > whole:
            each = f"{plural(len(claims), 'worker')} on node {node} claim {format_bytes(total)} together, of {format_bytes(whole)}"
            yield served_cause("node memory", f"{each}: the kernel ends one when they fill it")


def _cost(claim: Claim | None, **changes: str | int) -> tuple[float, float] | None:
    """Seconds that a decode step costs more with a change, and those of the step without it; None where nothing can be said."""
    if claim is None:
        return None
    batch, context = claim.batch or 1, claim.context or 1024
    plain = float(claim.bill("decode", batch, context).step_s)
    return float(claim.bill("decode", batch, context, **changes).step_s) - plain, plain


def _priced_cause(code: str, said: str, cost: tuple[float, float] | None, claim: Claim | None, change: str) -> Cause:
    """A cause with the price of a step and of a token, and what changing it would gain."""
    if not cost or not claim or cost[0] <= 0:
        return Cause(code, said, change=change)
    more, plain = cost
    batch = claim.batch or 1
    share = more / (plain + more)
    gain = f"{format_seconds(more)} of each token at batch {batch} ({share:.1%} of a decode step)"
    return Cause(code, said, more, share, change, gain)


LEFT = "KV memory left"
PRINTED_GIB, PRINTED_TIMES = 0.006 * GiB, 0.006  # half of the last digit of memory and of concurrency, in their own units
ENGINE_MEMORY = STARTS["memory"]
WORDS: Mapping[str, str] = STARTS["words"]


def audit_log(log: StartupLog, claim: Claim | None, name: str = "log") -> Section:
    """Layout, weights, KV memory, tokens and concurrency; what costs time is priced where somebody says what ran."""
    if claim is None or log.engine not in ENGINE_MEMORY:  # of an engine that is not modelled a layout that it prints is judged
        layout = tuple(_layout(log, claim)) if claim and log.tp else ()
        findings = (
            *failure_findings(log),
            *layout,
            *(f for f in plain_findings(log) if f.item not in {g.item for g in layout}),
        )
        return _section(log, None, findings, name, _notes(log, None))
    own = claim.question.engine.key.startswith(log.engine)  # the engine that was said, or its kin
    notes = [] if own else [Note("engine", f"judged as {ENGINES[log.engine]}, which wrote the log")]
    claim = claim if not notes else replace(claim, question=claim.question.but(engine=catalog.engine(log.engine)))
    asked, limits = settle(claim.question), claim.question.limits
    # The user's own count first.
    logged = {n: value for n in PARTS["limits"] if (value := getattr(log, n, 0)) and not getattr(limits, n)}
    if log.said("enable_prefix_caching") == "False" and not limits.state_slots:
        logged["state_slots"] = 1  # a request has its own states alone
    kv_dtype = "fp8" if has_8bit_cache(log) and not claim.plan.kv_dtype else claim.plan.kv_dtype
    held = claim.question.but(**logged, kv_dtype=kv_dtype)
    judged, told = holds(held), bool(held.limits.gpu_memory_utilization)
    findings = (
        *failure_findings(log),
        *_layout(log, claim),
        *identity_findings(claim, log.model, degrees={"ep": log.ep}),
        *_weights(log, claim.question),
        *_memory(log, held, judged, told),
        *_allreduce(log, claim),
        *_throughput_findings(typical_load(log), claim),
        *other_findings(log, judged.graph_bytes),
    )
    section = _section(log, claim, findings, name, _notes(log, asked), notes)
    return replace(section, causes=(*section.causes, *_cache_causes(log, findings, judged, told)))


def _section(
    log: StartupLog, claim: Claim | None, findings: Sequence[Finding], name: str, notes: Iterable[Note], before: Iterable[Note] = ()
) -> Section:
    words = *before, intro(log), *stop_notes(log), *notes
    causes = tuple(log_causes(log, claim))
    return Section("log", (name,), tuple(findings), words, causes=causes, facts=facts(log))


def audit_crash(crash: Crash, claim: Claim | None, name: str = "log") -> Section:
    """A run that ended in an error, whatever program it was: the error that came first, where it was raised, what to change."""
    finding = Finding("runs that ended in an error", 0, 1, reason=crash.error).judged()
    facts = {name: value for name, value in (("process", crash.who), ("raised at", crash.where)) if value}
    causes = (Cause("failure", f"the run ended: {crash.said}", change=to_change(crash.said)),)
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
    """Loaded weights of each worker against its stage; workers of one stage that loaded the same share a line."""
    asked, slack = settle(question), PRINTED_GIB + ENGINE_MEMORY[log.engine].get("free_gib", 0.0) * GiB
    if not log.weights_bytes:
        yield Finding("weights per rank", _stage_bytes(asked, 0), None, "bytes", LEVEL.weights_tolerance, reason=WORDS["silent"])
    stages: dict[tuple[int, float], list[str]] = {}
    for worker, nbytes in log.weights_bytes:
        stages.setdefault((axes_of(worker).get("pp", 0), round(nbytes / GiB, 3) * GiB), []).append(worker)
    total = 0.0
    for (stage, nbytes), workers in stages.items():
        predicted = _stage_bytes(asked, min(stage, int(asked.plan.pp) - 1))
        total += predicted * len(workers)
        label = workers[0] if len(workers) == 1 else f"{plural(len(workers), 'rank')} alike"
        tolerance = LEVEL.weights_tolerance + slack / predicted
        item = Note("weights", f"weights ({label})")
        finding = Finding(item, predicted, nbytes, "bytes", tolerance, _likely(nbytes, question), evidence=True).judged()
        near = not (log.model or log.version) and abs(finding.difference or 0.0) <= LEVEL.near_weights
        yield finding.unsure(WORDS["unnamed"]) if near and finding.verdict == DISAGREE else finding
    ranks = int(asked.plan.tp) * int(asked.plan.pp) * int(asked.plan.dp)
    if 1 < len(log.weights_bytes) == ranks:
        one = _stage_bytes(settle(replan(question, tp=1, pp=1, dp=1, ep=1)), 0)  # a copy of the model on one rank
        loaded, whole = sum(nbytes for _, nbytes in log.weights_bytes), one * int(asked.plan.dp)
        beyond, more = format_bytes(abs(loaded - whole)), "more" if loaded >= whole else "less"
        why = f"one copy has {format_bytes(whole)}; ranks together hold {beyond} {more}"
        tolerance = LEVEL.weights_tolerance + slack * ranks / total
        yield Finding(ALL_WEIGHTS, total, loaded, "bytes", tolerance, why, evidence=True).judged()


def _stage_bytes(asked: Question, stage: int) -> float:
    lines = weights(asked.model, asked.plan, asked.engine, stage, int(asked.plan.pp))
    return float(sum(w.nbytes for w in lines))


def _likely(measured: float, question: Question) -> str:
    """The first simple change of the plan under which the weights would be as logged."""
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


def _memory(log: StartupLog, asked: Question, judged: Fit, told: bool) -> Iterator[Finding]:
    """KV tokens that the logged memory must hold (exact), and the memory that should have been left (a model). What is left is a
    difference of large figures, so it is judged on the memory that it is left of."""
    said, unlike = bool(told or log.model or log.tp), "other_processes" if told else "other_share"
    share, limits = (WORDS[words].format(ENGINE_MEMORY[log.engine]["flag"]) for words in (unlike, "other_limits"))
    if taken := log.settings.get("activations"):
        share = f"the engine counted {taken} for activations; else {share}"
    whole, left = judged.question.cluster.chip.visible_bytes, log.available_kv_bytes
    tokens = log.kv_tokens or (log.kv_blocks * judged.block_size if log.kv_blocks else None)
    if left is None:
        why, base = limits if tokens else WORDS["silent"], whole / judged.kv_bytes_per_token
        found = Finding("KV tokens", _tokens(log, judged), tokens, "tokens", LEVEL.left_tolerance, why, base)
        yield _relative_to_count(_excuse_left_memory(found, log, judged, said))
        if judged.needed_kv_bytes > 0:
            each, base = log.max_concurrency, whole / judged.needed_kv_bytes
            found = Finding(FULL_LENGTH, judged.max_concurrency, each, "", LEVEL.left_tolerance, limits, base)
            yield _relative_to_count(_excuse_left_memory(found, log, judged, said))
        return
    node = min((claim.node_bytes for claim in log.claims), default=0.0)  # of which CPU workers take their shares
    if "fixed" not in log.figures and node:
        yield _node_memory_finding(log, judged, node)
    elif "fixed" not in log.figures:
        loaded = max((nbytes for _, nbytes in log.weights_bytes), default=judged.weights_bytes)
        other = abs(loaded / judged.weights_bytes - 1) > LEVEL.weights_tolerance  # judged in its own line, and not again here
        room = judged.kv_bytes + (judged.weights_bytes - loaded if other else 0.0)
        yield _excuse_left_memory(Finding(LEFT, room, left, "bytes", LEVEL.left_tolerance, share, whole), log, judged, said, told)
    if left > 0:  # else it did not fit: there is nothing to count
        yield from _capacity_findings(log, asked, judged, left, tokens)


def _capacity_findings(log: StartupLog, asked: Question, judged: Fit, left: float, tokens: int | None) -> Iterator[Finding]:
    """Tokens, and requests of full length, in the memory that the log has for them."""
    inside = holds(asked.but(kv_cache_memory_bytes=left))
    printed = PRINTED_GIB * (2 if _prints(log, "halves") else 1)  # keys and values are printed apart
    rounding = printed / left + (max(128, judged.block_size) / tokens if tokens else 0)  # and one block
    plan, why = asked.plan, WORDS["other_cache"] if tokens else WORDS["silent"]
    several = int(plan.tp) * int(plan.pp) * int(plan.dp) > 1  # the line of one may be all that an excerpt has
    rounding = max(rounding, LEVEL.cache_tolerance) if several else rounding
    apart = _prints(log, "halves") and judged.state_bytes_per_sequence  # states have a pool of their own, and are not in the size
    wanted = int(left / judged.kv_bytes_per_token) if apart else _tokens(log, inside)
    found = [Finding("KV tokens in that memory", wanted, tokens, "tokens", rounding, why, evidence=True).judged()]
    rounding += PRINTED_TIMES / inside.max_concurrency if inside.max_concurrency else 0.0
    if _prints(log, "full_length"):
        found.append(Finding(FULL_LENGTH, inside.max_concurrency, log.max_concurrency, "", rounding, WORDS["other_cache"]).judged())
    excuse = _excuse(log, asked, wanted, tokens, left) if any(f.verdict == DISAGREE for f in found) else ""
    yield from (f.unsure(excuse) if excuse and f.verdict == DISAGREE else f for f in found)


def _excuse(log: StartupLog, asked: Question, wanted: int, tokens: int | None, left: float) -> str:
    """Why other tokens than were counted are no fault: none were counted, or they are as without windows; "" where they are."""
    if not wanted:
        return WORDS["no_room"]
    if not tokens or not any(asked.model.windows):
        return ""
    mixers = (replace(b.mixer, window=0) if isinstance(b.mixer, Attention) else b.mixer for b in asked.model.blocks)
    blocks = tuple(replace(b, mixer=mixer) for b, mixer in zip(asked.model.blocks, mixers, strict=True))
    full = holds(replace(asked, model=replace(asked.model, blocks=blocks)).but(kv_cache_memory_bytes=left))
    counted = _tokens(log, full)
    return WORDS["all_full"] if counted and abs(tokens / counted - 1) <= LEVEL.cache_tolerance else ""


def _node_memory_finding(log: StartupLog, judged: Fit, node: float) -> Finding:
    """What a CPU worker leaves of its node for the cache: each of them takes its share of all of it, whatever the others do."""
    share = judged.question.limits.gpu_memory_utilization
    left, why = share * node - judged.weights_bytes, f"another {ENGINE_MEMORY[log.engine]['flag']} than {share:g}, or other weights"
    found = Finding(LEFT, left, log.available_kv_bytes, "bytes", LEVEL.node_tolerance, why, node, evidence=True)
    taken = min(claim.nbytes for claim in log.claims) / node
    near = abs(taken - share) < LEVEL.printed_share
    return found.judged() if near else found.undecided(f"its worker takes {taken:.2f} of the node")


def _tokens(log: StartupLog, judged: Fit) -> int:
    """KV tokens as the log counts them: whole blocks, or (newer vLLM) full-length requests times that length. The two differ where
    a length is no multiple of a block, and where windows or states let some layers keep less."""
    logged, length = log.kv_tokens, log.max_model_len
    counted = (log.max_concurrency or 0.0) * length
    if logged and counted and abs(logged - counted) <= PRINTED_TIMES * length + 1:
        return int(judged.max_concurrency * judged.question.limits.max_model_len)
    states = judged.state_bytes_per_sequence and judged.question.engine.states.state_pool == "blocks"
    return int((judged.pool.shared_tokens if states else judged.pool.tokens)(judged.kv_blocks))


def _excuse_left_memory(finding: Finding, log: StartupLog, judged: Fit, said: bool, told: bool = True) -> Finding:
    """Memory that is left is no disagreement where another version may have counted its peak otherwise, or took another share."""
    made_for, difference, finding = judged.question.engine.version, finding.difference, replace(finding, evidence=True).judged()
    most = ENGINE_MEMORY[log.engine].get("other_versions", LEVEL.other_engines)
    if finding.verdict == DISAGREE and not said and (share := _likely_share(log, judged, difference or 0.0)):
        return finding.undecided(f"the log does not say its share of memory: as at {ENGINE_MEMORY[log.engine]['flag']} {share:.2f}")
    if finding.verdict != DISAGREE or difference is None or log.version.startswith(made_for):
        return finding
    given = judged.question.limits.gpu_memory_utilization
    older = ENGINE_MEMORY[log.engine].get("older_share", 1.0) - given if log.version and not told else 0.0
    counted = given * (finding.base or 0.0) - judged.weights_bytes
    uncounted = told and finding.unit == "bytes" and difference > 0 and (finding.measured or 0.0) <= counted
    if not uncounted and abs(difference) > most and (older >= 0 or abs(difference - older) > most):
        return finding
    which = f"{ENGINES[log.engine]} {log.version}" if log.version else "a version that the log does not say"
    return finding.undecided(f"{which} may count otherwise than {made_for}, for which the memory model was made")


def _relative_to_count(finding: Finding) -> Finding:
    """What was judged on all memory, with its difference and tolerance as shares of the count itself."""
    if not finding.predicted or not finding.base:
        return finding
    return replace(finding, tolerance=finding.tolerance * finding.base / finding.predicted, base=None)


def _likely_share(log: StartupLog, judged: Fit, difference: float) -> float:
    """The share of memory that would explain what is left, where nobody says it; 0 where none does."""
    share = judged.question.limits.gpu_memory_utilization + difference
    own = ENGINE_MEMORY[log.engine]
    return min(1.0, share) if "of_all" in own and LEVEL.least_share <= share <= 1 + own["other_versions"] else 0.0


def _cache_causes(log: StartupLog, findings: Iterable[Finding], judged: Fit, told: bool) -> Iterator[Cause]:
    """Less memory left for the cache than fits, and how to have it: a larger share frees none that another process holds."""
    share, flag = judged.question.limits.gpu_memory_utilization, ENGINE_MEMORY[log.engine]["flag"]
    graphs = log.figures.get("graph_bytes", 0.0) / judged.question.cluster.chip.visible_bytes
    smaller = not told and share <= safe_share(judged.question.engine.memory.utilization_of, graphs)
    change = "find what else holds memory of these GPUs (nvidia-smi lists it), and end it"
    change += f", or give {flag} {share:g} where the server had less" if smaller else ""
    for found in findings:
        missing = (found.predicted or 0.0) - (found.measured or 0.0)
        if found.item == LEFT and found.verdict == DISAGREE and found.measured and missing > 0:
            tokens = round(missing / found.measured * (log.kv_tokens or 0))
            room = f": room for {tokens:,} tokens fewer ({missing / (found.predicted or 1.0):.0%})" if tokens else ""
            said = f"{format_bytes(missing)} per GPU less for the KV cache than fits{room}"
            yield Cause("KV memory", said, change=change, gain=f"{tokens:,} more tokens in the cache" if tokens else "")


def _allreduce(log: StartupLog, claim: Claim) -> Iterator[Finding]:
    """What the step costs when NCCL does the work of the custom all-reduce that the log says is off."""
    if not log.custom_allreduce_disabled or claim.tp == 1:
        return
    batch, context = claim.batch or 1, claim.context or 1024
    custom = float(claim.bill(batch=batch, context=context).step_s)
    fallback = float(claim.bill(batch=batch, context=context, library="nccl").step_s)
    cost, off = fallback - custom, Note("custom all-reduce", "custom all-reduce is off")
    price = f"NCCL's is priced {format_seconds(cost)} longer per step ({cost / custom:+.1%}) at batch {batch}"
    verdict = DISAGREE if cost > LEVEL.dispatch_tolerance * custom else AGREE
    found = Finding(off, None, None, reason=f"{log.custom_allreduce_disabled}; {price}", verdict=verdict)  # nobody measured it
    yield found.undecided(f"{price}; {claim.distrust}") if claim.distrust else found


def _throughput_findings(usual: tuple[int, float, int] | None, claim: Claim) -> Iterator[Finding]:
    """Tokens a second while requests were served, against decode steps of as many; prompts between them make it less."""
    if not usual:
        return
    running, rate, cached = usual
    step = float(claim.bill(batch=running, context=claim.context or cached or 1024).step_s)
    item = Note("served", f"a decode step, {plural(running, 'request')} running")
    yield claim.seconds(item, step, running / rate, "prompts between the steps, speculation, or a slower engine")


def _notes(log: StartupLog, asked: Question | None) -> Iterator[Note]:
    """What to know before a start is compared."""
    quantization = log.said("quantization")
    if asked and log.version and not log.version.startswith(asked.engine.version):
        words = f"{ENGINES[log.engine]} {log.version}; the memory model was made for {asked.engine.version}"
        yield Note("version", f"the log is of {words}")
    if log.allreduce_backends:
        yield Note("dispatch", f"all-reduce backends in dispatch order: {', '.join(log.allreduce_backends)}")
    if log.backend or log.said("nccl_version"):
        yield Note("backend", f"collectives over {log.backend or 'nccl'} {log.said('nccl_version')}".strip())
    if asked and quantization and asked.model.quant is None and not asked.plan.weights_dtype:
        advice = f"the log says quantization={quantization}: give --dtype, or a model folder with that config"
        yield Note("quantization", advice)
