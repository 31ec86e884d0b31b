"""What an engine's log tells by itself: facts two runs may differ in, figures without a prediction, and what costs time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf
from statistics import median

from commtax.catalog.models import bundled_model
from commtax.catalog.programs import programs
from commtax.files import table
from commtax.runs.evidence.finding import Cause, Claim, Finding
from commtax.runs.evidence.identity import names_of
from commtax.runs.logs.serving_load import CAUSES, queue_causes, served_cause, serving_findings
from commtax.runs.logs.startup import ENDED, FAILURE, READY, STAGE, STALLED, ClaimedMemory, StartupLog, axes_of
from commtax.spec import PARALLEL, SERVING_AXES
from commtax.statement import Note
from commtax.thresholds import counts, levels
from commtax.units import GiB, format_bytes, format_seconds, plural

ENGINES = {**{one.key: one.title for one in programs() if not one.trains}, "tgi": "Text Generation Inference"}
AXES: Mapping[str, str] = {axis: PARALLEL[axis].title for axis in SERVING_AXES}
FULL_LENGTH = "full-length requests at once"
ALL_WEIGHTS = "all ranks' weights"
LEVEL = levels(__name__)
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
    if times < counts("runs.logs.serving_load").few_moments:
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


def causes(log: StartupLog, claim: Claim | None) -> Iterator[Cause]:
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
