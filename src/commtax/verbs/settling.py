"""Questions settled: the keywords of each verb resolved once, rules checked, and the hardware and software looked up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from commtax import catalog, spec
from commtax.arrays import cache_answers
from commtax.catalog import transfer
from commtax.catalog.loader import suggest
from commtax.catalog.transfer import Setting
from commtax.cost.caches import with_states
from commtax.cost.kernel import PricingTerms
from commtax.cost.memory import check_stored, on_chip
from commtax.cost.placement import used_of_domain
from commtax.cost.schedules import usual_chunks
from commtax.options import Option
from commtax.options import options as known_options
from commtax.question import PARTS, PHASES, Question
from commtax.records import dataclass, recast, replace
from commtax.rules import legality, questions, values
from commtax.rules.values import check_number
from commtax.statement import Note, Refusal
from commtax.verbs.keywords import Profiles

ACTIVATIONS = ("bf16", "fp16", "fp32")
WEIGHED = frozenset(PARTS["what_if"])
"""What a technique may say otherwise than an option: ways that are weighed against the one that is set."""
AUTO_EP = -1  # ``ep=AUTO_EP`` asks for the engine's own size, tp x dp


def ask(model: str | spec.Model, cluster: str | spec.Cluster, **options: object) -> Settled:
    """Resolve the names of a question. Refuse an illegal one with the rule and the nearest legal values.

    A ``profile``'s chip and host times are laid over the cluster's and the engine's; its engine, at its version, and type are
    used unless others are given. What is None is left to the engine.
    """
    return settle(resolve_question(model, cluster, options))


def resolve_question(
    model: str | spec.Model, cluster: str | spec.Cluster, options: Mapping[str, object], phase: str = ""
) -> Question:
    """Resolve the names of a question as it was put, checking only numbers."""
    fields = dict(_field(name, value) for name, value in options.items() if value is not None)
    phase = phase or str(fields.pop("phase", "decode"))
    if phase not in PHASES:
        raise Refusal.of(f"one of {', '.join(PHASES)}{suggest(phase, PHASES)}", tuple(PHASES), phase=phase)
    profile = _loaded_profile(fields.pop("profile", None))
    named, weights = fields.pop("engine", ""), str(fields.pop("weights_dtype", ""))
    if profile:
        able = profile.engine and phase in catalog.engine(profile.engine).phases
        unsaid = not named or profile.engine.startswith(f"{named}@")  # at the version that ran, where nobody says another
        named, weights = profile.engine if able and unsaid else named, weights or values.dtype(profile.dtype)
    sizes, replicas = {axis: fields.pop(axis, 1) for axis in spec.SIZES}, fields.pop("replicas", 1)
    if PHASES[phase].trains and np.any(np.asarray(replicas) > 1):
        raise Refusal.of("those are servers; a training job has data-parallel ranks (dp)", replicas=replicas)
    architecture = catalog.model(model) if isinstance(model, str) else model
    place = catalog.cluster(cluster) if isinstance(cluster, str) else cluster
    engine = _engine(cast(str | spec.Engine, named), phase)
    plan = spec.Plan(**sizes, replicas=replicas, weights_dtype=weights, kv_dtype="")  # type: ignore[arg-type]
    plan = replace(plan, zero=engine.trains.zero, sequence_parallel=engine.trains.sequence_parallel)
    if (ahead := fields.get("prefill_cluster")) is not None:
        if profile:
            raise Refusal.of("tells of one machine, and prefill_cluster makes them two", profile=profile.name)
        fields["prefill_cluster"] = catalog.cluster(ahead) if isinstance(ahead, str) else ahead
    q = Question(architecture, place, engine, plan, phase, context=PHASES[phase].length, profile=profile)
    if text := str(fields.pop("technique", "")):
        from commtax.catalog.techniques import changes_of  # not for those who ask for none

        on = changes_of(text)
        for name in on.keys() & fields.keys() - WEIGHED:
            if fields[name] not in (on[name], "", 0, 1, None, False):  # which nobody said
                raise Refusal(f"{name}={fields[name]}: the technique '{text[:60]}' says {on[name]}; leave one of them out", name)
        fields |= on
    q = q.but(**fields)
    _check_techniques(q, put=True)
    return q.but(batch=q.plan.microbatches * q.micro_batch, microbatches=1) if q.trains and "microbatches" in fields else q


def _check_techniques(q: Question, put: bool = False) -> None:
    """Check techniques that move caches, and of a question as it was ``put``, whether any cache moves at all."""
    if q.techniques.kv_transfer or q.techniques.kv_tier:
        from commtax.rules.techniques import check_motion, check_moving  # not for those who move none

        (check_moving if put else check_motion)(q)


def _field(name: str, value: object) -> tuple[str, object]:
    option = known_options().get(name) or Option(name)
    checked = values.check_option(value, option) if option.bounded and option.part != "goal" else value
    return option.key, check_number(checked, name) if option.type == "Numbers" else checked


def _loaded_profile(profiles: object) -> spec.Profile | None:
    if profiles is None or isinstance(profiles, spec.Profile):
        return profiles
    from commtax.catalog.profile import load_profile  # not for those who have none

    return load_profile(cast("Profiles", profiles))


def _engine(engine: str | spec.Engine, phase: str) -> spec.Engine:
    engine = catalog.engine(engine or PHASES[phase].engine) if isinstance(engine, str) else engine
    if phase not in engine.phases:
        able = [key for key in catalog.keys("engines") if phase in catalog.engine(key).phases]
        raise Refusal(f"engine '{engine.key}' has no {phase} phase; one of {', '.join(able)} has", "engine")
    return engine


def _with_techniques(q: Question) -> Question:
    """Return the question with the tokens that drafts yield. Refuse overlaps and drafters that are not available here."""
    if q.techniques is spec.NO_TECHNIQUES and not q.speculative:
        return q
    from commtax.rules import drafts, techniques  # not for those who ask for none

    techniques.check_overlap(q)
    drafts.check_drafts(q)
    return drafts.with_accepted_tokens(q)


@dataclass(frozen=True, slots=True)
class Settled(Question):
    """A question as it is run. ``settle`` alone makes one, at the door, and verbs take nothing else and ask no rule again."""

    def but(self, **changes: object) -> Settled:
        """Return the question with changes, settled anew unless no rule depends on them."""
        changed = self.vary(**changes)
        return changed if UNRULED.issuperset(changes) else settle(changed)

    def vary(self, **changes: object) -> Settled:
        """Return the question with changes that no rule depends on here: it is not settled anew."""
        return cast(Settled, Question.but(self, **changes))

    def plain(self) -> Question:
        """Return the question unsettled, to change it further: what is made of it has to be settled."""
        return recast(self, Question)


UNRULED = frozenset(("requests", "offered", "goal", *PARTS["requests"], *PARTS["offered"], *PARTS["goal"]))
"""What no rule asks about: loads and goals."""


@cache_answers
def changed(q: Settled, *changes: tuple[str, object]) -> Settled:
    """Return ``Settled.but`` for what an answer requests in several of its parts."""
    return q.but(**dict(changes))


def settle(put: Question) -> Settled:
    """Settle a question: lay a machine's constants over it, fill in what the engine decides, and check the rules."""
    q = put
    questions.check_step(q)
    _check_techniques(q)
    q = q.but(spread=questions.spread_within_limit(q))
    cluster, engine, profile = q.cluster, q.engine, q.profile
    if profile:
        from commtax.catalog import profile as overlay  # not for those who have none

        cluster, engine = overlay.measured_cluster(profile, cluster), overlay.measured_engine(profile, engine, cluster.chip)
    engine = on_chip(engine, cluster.chip)
    if q.model.experts and not q.trains:
        engine = engine.serving_mixtures()
    if profile and profile.lessons and not q.trains:
        engine = overlay.learnt_engine(profile, engine, cluster.chip, q.model, q.plan)
    if q.techniques.async_scheduling:
        from commtax.rules.techniques import with_schedule  # not for those who ask for none

        engine = with_schedule(q.techniques, engine)
    if q.limits.state_slots:
        engine = engine.but(state_slots=int(q.limits.state_slots))
    check_stored(q.model)
    # However it is stored, a model is trained in bf16, or in fp8 where that is asked for.
    model = replace(q.model, quant=None) if q.trains and q.model.quant else q.model
    if q.limits.recurrent_dtype:
        model = with_states(model, q.limits.recurrent_dtype)
    q = replace(q, model=model, cluster=cluster, engine=engine, plan=_plan(q, engine))
    questions.check_kinds(q)
    q, plan = _with_techniques(q), q.plan
    if any(np.ndim(getattr(plan, name)) for name in spec.COUNTED):
        questions.check_run(q)
        q = replace(q, notes=(), codes=legality.codes(model, cluster, plan, engine))
    else:
        legality.check(model, cluster, plan, engine)
        questions.check_run(q)
        remarks = (*legality.notes(model, cluster, plan, engine), *_remarks(q), *questions.chosen_chunks(q, put.plan.chunks))
        profile_notes = overlay.remarks(profile, cluster, engine, q.model.key, int(plan.tp)) if profile else ()
        q = replace(q, notes=(*remarks, *profile_notes), codes=0)
    return recast(q, Settled)


def replan(put: Question, **changes: object) -> Question:
    """Return the question with another plan: options of spread experts stay with plans that spread them."""
    q = put.but(**changes)
    if q.techniques is not spec.NO_TECHNIQUES:
        from commtax.rules.techniques import without_idle_overlap  # not for those who ask for none

        q = without_idle_overlap(q)
    if q.model.experts is None or not (q.plan.redundant_experts or q.what_if.imbalance or q.techniques.balanced):
        return q
    widest = float(np.max(_spread(q.plan), initial=1))
    if widest == 1:
        return q.but(redundant_experts=0, imbalance=0.0, balanced=False)
    return q.but(imbalance=min(q.what_if.imbalance, widest))


def _spread(plan: spec.Plan) -> spec.Number:
    return plan.tp * plan.dp if np.all(np.asarray(plan.ep) == AUTO_EP) else plan.ep


def _plan(q: Question, engine: spec.Engine) -> spec.Plan:
    """Return the plan with what follows from the rest: engines compute in the requested type, else in the checkpoint's 16 bits."""
    plan, usual = q.plan, q.model.dtype if q.model.dtype in ("bf16", "fp16") else "bf16"
    activations = plan.weights_dtype if plan.weights_dtype in ACTIVATIONS else usual
    kept = engine.states.compressed_kv_dtype if any(a.compressed for a in q.model.attentions) else ""  # where nobody asks
    return replace(
        plan,
        ep=_spread(plan),
        order=engine.order,
        activations_dtype=activations,
        kv_dtype=plan.kv_dtype or kept or checkpoint_kv(q.model, engine) or activations,
        state_dtype=engine.states.state_dtype or activations,
        microbatches=microbatches(q.batch, q.micro_batch) if q.trains else plan.microbatches,
        chunks=usual_chunks(plan, q.model.num_layers) if q.trains else plan.chunks,
        grads_dtype=engine.trains.grads_dtype,
    )


def checkpoint_kv(model: spec.Model, engine: spec.Engine) -> str:
    """Return the KV cache's type that an engine takes by itself: that of a checkpoint's scales, "" where there are none."""
    return model.quant.kv_dtype if model.quant and engine.memory.kv_of_checkpoint else ""


def microbatches(batch: spec.Number, micro_batch: spec.Number) -> spec.Number:
    """Return the microbatches of one replica's share of the step."""
    if np.any(np.asarray(batch) % np.asarray(micro_batch) != 0):
        raise Refusal(f"batch={batch} per replica does not divide by micro_batch={micro_batch}", "batch")
    return batch // micro_batch


def fabric_of(q: Question) -> spec.Fabric:
    """Return the collectives that run: as requested, else the engine's own, or a machine's own where its profile has some."""
    if q.profile:
        from commtax.catalog import profile as overlay

        return overlay.paths(q.profile, q.what_if.library or overlay.usual_library(q.profile, q.engine), q.cluster)
    engine, usual = q.engine, catalog.engine(q.engine.key) if q.engine.key in catalog.keys("engines") else q.engine
    other = engine.library == engine.key and engine.version != usual.version  # both are one release, and it is not the usual one
    library = f"{engine.library}@{engine.version}" if other else engine.library
    return catalog.fabric(q.what_if.library or library, q.cluster, behind=engine.library)


def terms_of(q: Question) -> PricingTerms:
    """Return what a question's steps are priced from. Kernel constants are a machine's own where it has some."""
    chip = q.cluster.chip
    if q.profile:
        from commtax.catalog.profile import constants

        kernels = constants(q.profile, q.engine, chip)
    else:
        kernels = catalog.kernel_constants(q.engine, chip)
    if q.techniques.native_latents:
        kernels = catalog.with_shared_latents(kernels, chip)
    drafter, copied_tokens, spread = None, cast(spec.Number, 0.0), (math.inf, False)
    if q.engine.host.pooled and not q.trains and not q.engine.host.host_label:
        # The deviation of decode steps in published runs of this engine or its kin, and whether those had chip and format.
        setting = Setting.of(q.engine, chip, q.model, q.plan.weights_dtype)
        spread = transfer.sigma(setting, "tpot", q.model.experts is not None), transfer.is_measured(setting)
    if q.speculative:
        from commtax.rules.drafts import drafter_of  # not for those who draft nothing

        drafter = drafter_of(q)
    if copies_cache(q):
        from commtax.verbs.kv_caches import cache_tokens  # not for those whose kernels read a cache as it is

        copied_tokens = cache_tokens(q)
    optional = (*spread, drafter, copied_tokens)
    return PricingTerms(q.model, q.plan, q.cluster, q.engine, fabric_of(q), kernels, q.what_if, q.techniques, *optional)


def copies_cache(q: Question) -> bool:
    """Return whether each layer copies a cache of fp8 latents, all of it, before it decodes."""
    narrow = q.plan.kv_dtype == "fp8" and q.cluster.chip.family in q.engine.kernels.widened_latents
    latents = any(a.latent and not a.indexer for a in q.model.attentions)
    return narrow and latents and not q.techniques.native_latents and not q.trains


def _remarks(q: Question) -> Iterator[Note]:
    """Yield further notes on a plan: an uncalibrated version, an unusual host, weights the chip cannot multiply."""
    cluster, plan = q.cluster, q.plan
    yield from q.model.notes
    if q.engine.note:
        yield Note("engine", q.engine.note)
    if cluster.remark:
        yield Note("cluster", cluster.remark)
    if q.what_if.imbalance and not q.trains:
        yield Note("imbalance", f"busiest expert rank {q.what_if.imbalance:g}x the mean, as set (--imbalance)")
    used = int(used_of_domain(plan, cluster, q.engine))
    if plan.num_gpus > cluster.domain > used:
        where = "host" if cluster.domain == cluster.gpus_per_host else "NVLink domain"
        laid = f"ranks are laid on {used} of the {cluster.domain} GPUs of each {where}"
        yield Note("laid-out", f"{laid}, so that no group straddles two")
    if plan.kv_dtype == "fp8" and checkpoint_kv(q.model, q.engine) == "fp8":
        yield Note("checkpoint-kv", f"KV cache in fp8: {q.model.key} brings scales for it (--kv-dtype bf16 keeps it in 16 bits)")
    stored = q.model.quant.formats[::-1] if q.model.quant else ()
    for wanted in [plan.weights_dtype] if plan.weights_dtype else dict.fromkeys(quant.dtype for quant in stored):
        native = spec.ARITHMETIC.get(wanted, wanted)
        if wanted in spec.DTYPE_BYTES and spec.DTYPE_BYTES[wanted] < 2 and native not in cluster.chip.flops_per_s:
            yield Note("arithmetic", f"{cluster.chip.key} has no {wanted} arithmetic: such weights save memory and bandwidth only")
    loaded = plan.weights_dtype == "fp8" and q.engine.kernels.quantises and q.model.quant is None
    if loaded and "fp8" in cluster.chip.flops_per_s and not q.trains:
        made = f"fp8: {q.engine.name} makes it of 16-bit weights as it loads them, and finds scales of activations in every step"
        yield Note("scales", f"{made}; a checkpoint that brings them (…-FP8) takes shorter steps")


def link_notes(q: Question) -> list[Note]:
    """Return the note that collectives are assumed, where a plan has some and none were measured."""
    note = fabric_of(q).note if np.any(q.plan.num_gpus > 1) else ""
    return [Note("assumed-links", note)] if note else []


def context_notes(q: Question, context: spec.Number) -> list[Note]:
    """Return the note on a length that the model was not made for."""
    longer = np.ndim(context) == 0 and context > q.model.max_len
    text = f"{context:,} tokens are more than the {q.model.max_len:,} positions of {q.model.key}" if longer else ""
    return [Note("context", text)] if longer else []


def describe_gpus(plan: spec.Plan) -> str:
    """Describe the GPUs of a plan: ``16 GPUs = 2 stages x TP 8``."""
    return f"{int(plan.all_gpus)} GPU{'s' * (plan.all_gpus > 1)} = {describe_layout(plan)}"


def describe_layout(plan: spec.Plan, over: str = "") -> str:
    """Describe a plan's layout. Replicas are servers, DP is an engine's own, and ``over`` is what carries tokens to experts."""
    return describe_sizes(plan) + describe_experts([plan], over)


def describe_sizes(plan: spec.Plan) -> str:
    """Describe a layout without its experts."""
    several = ((plan.replicas, "{} replicas"), (plan.dp, "DP {}"), (plan.pp, "{} stages"))
    parts = [text.format(int(n)) for n, text in several if n > 1]
    parts += [f"{axis.upper()} {int(n)}" for axis in ("cp", "tp") if (n := getattr(plan, axis)) > 1 or axis == "tp"]
    return " x ".join(parts) + (f", caches over {int(plan.dcp)}" if plan.dcp > 1 else "")


def describe_experts(plans: Sequence[spec.Plan], over: str = "") -> str:
    """Describe the ranks that share experts, copies of these, what carries tokens to them. Plans of pools differ in ranks alone."""
    ranks = " and ".join(dict.fromkeys(str(int(plan.ep)) for plan in plans))
    copies = f" with {int(plans[0].redundant)} redundant ones" if plans[0].redundant else ""
    return f", experts over {ranks}{copies}" + (f" ({over})" if over else "") if plans[0].ep > 1 else ""
