"""A start-up log against what fits: the engine's own account of its sharding, checked line by line."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from commtax import catalog
from commtax.cost.memory import weights
from commtax.judgement.engine_limits import safe_share
from commtax.question import PARTS, Question
from commtax.runs.evidence.finding import AGREE, DISAGREE, Cause, Claim, Finding, Section
from commtax.runs.evidence.identity import identity_findings
from commtax.runs.logs import startup_facts
from commtax.runs.logs.crashes import Crash
from commtax.runs.logs.startup import StartupLog, axes_of
from commtax.runs.logs.startup_facts import ENGINES, FULL_LENGTH
from commtax.spec import Attention
from commtax.statement import Note
from commtax.thresholds import levels
from commtax.units import GiB, format_bytes, format_seconds, plural
from commtax.verbs.fitting import Fit, holds
from commtax.verbs.settling import replan, settle

LEVEL = levels(__name__)
LEFT = "KV memory left"
PRINTED_GIB, PRINTED_TIMES = 0.006 * GiB, 0.006  # half of the last digit of memory and of concurrency, in their own units
ENGINE_MEMORY = startup_facts.STARTS["memory"]
WORDS: Mapping[str, str] = startup_facts.STARTS["words"]


def audit_log(log: StartupLog, claim: Claim | None, name: str = "log") -> Section:
    """Layout, weights, KV memory, tokens and concurrency; what costs time is priced where somebody says what ran."""
    if claim is None or log.engine not in ENGINE_MEMORY:  # of an engine that is not modelled a layout that it prints is judged
        layout = tuple(_layout(log, claim)) if claim and log.tp else ()
        findings = (
            *startup_facts.failure_findings(log),
            *layout,
            *(f for f in startup_facts.plain_findings(log) if f.item not in {g.item for g in layout}),
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
    kv_dtype = "fp8" if startup_facts.has_8bit_cache(log) and not claim.plan.kv_dtype else claim.plan.kv_dtype
    held = claim.question.but(**logged, kv_dtype=kv_dtype)
    judged, told = holds(held), bool(held.limits.gpu_memory_utilization)
    findings = (
        *startup_facts.failure_findings(log),
        *_layout(log, claim),
        *identity_findings(claim, log.model, degrees={"ep": log.ep}),
        *_weights(log, claim.question),
        *_memory(log, held, judged, told),
        *_allreduce(log, claim),
        *_throughput_findings(startup_facts.typical_load(log), claim),
        *startup_facts.other_findings(log, judged.graph_bytes),
    )
    section = _section(log, claim, findings, name, _notes(log, asked), notes)
    return replace(section, causes=(*section.causes, *_cache_causes(log, findings, judged, told)))


def _section(
    log: StartupLog, claim: Claim | None, findings: Sequence[Finding], name: str, notes: Iterable[Note], before: Iterable[Note] = ()
) -> Section:
    words = *before, startup_facts.intro(log), *startup_facts.stop_notes(log), *notes
    causes = tuple(startup_facts.causes(log, claim))
    return Section("log", (name,), tuple(findings), words, causes=causes, facts=startup_facts.facts(log))


def audit_crash(crash: Crash, claim: Claim | None, name: str = "log") -> Section:
    """A run that ended in an error, whatever program it was: the error that came first, where it was raised, what to change."""
    finding = Finding("runs that ended in an error", 0, 1, reason=crash.error).judged()
    facts = {name: value for name, value in (("process", crash.who), ("raised at", crash.where)) if value}
    causes = (Cause("failure", f"the run ended: {crash.said}", change=startup_facts.to_change(crash.said)),)
    notes = (Note("claim", "the run ended before anything of the claim could be judged"),) if claim else ()
    return Section("crash", (name,), (finding,), notes, causes=causes, facts=facts)


def _layout(log: StartupLog, claim: Claim) -> Iterator[Finding]:
    for axis in ("tp", "pp", "dp"):
        name, wanted = startup_facts.AXES[axis], int(getattr(claim.plan, axis))
        measured = getattr(log, axis) or startup_facts.axis_size(log, axis)
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
        yield Finding(startup_facts.ALL_WEIGHTS, total, loaded, "bytes", tolerance, why, evidence=True).judged()


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
    printed = PRINTED_GIB * (2 if log.engine == "sglang" else 1)  # keys and values are printed apart
    rounding = printed / left + (max(128, judged.block_size) / tokens if tokens else 0)  # and one block
    plan, why = asked.plan, WORDS["other_cache"] if tokens else WORDS["silent"]
    several = int(plan.tp) * int(plan.pp) * int(plan.dp) > 1  # the line of one may be all that an excerpt has
    rounding = max(rounding, LEVEL.cache_tolerance) if several else rounding
    apart = log.engine == "sglang" and judged.state_bytes_per_sequence  # states have a pool of their own, and are not in the size
    wanted = int(left / judged.kv_bytes_per_token) if apart else _tokens(log, inside)
    found = [Finding("KV tokens in that memory", wanted, tokens, "tokens", rounding, why, evidence=True).judged()]
    rounding += PRINTED_TIMES / inside.max_concurrency if inside.max_concurrency else 0.0
    if log.engine == "vllm":  # the others do not count them
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
