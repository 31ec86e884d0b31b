"""The priced step, by name: ``commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8)``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commtax import catalog
from commtax.api.fitting import Fit, judge_length
from commtax.api.sending import check_backend, check_workload, context_notes, flight_notes, in_flight, workload
from commtax.api.setup import Setup, constants_of, fabric_of, library_of, positive, setup
from commtax.cost.inference import inference_bill
from commtax.cost.pricing import Pricer, Terms, comm_line
from commtax.cost.provenance import sourced
from commtax.cost.traffic import padded_rows
from commtax.ledger import Bill
from commtax.question import WhatIf
from commtax.spec import Cluster, Model, Number, Profile
from commtax.statement import Note, Refusal

CHANGES = ("eager", "ep_backend", "overlap", "slow_rank", "latency_scale", "bandwidth_scale", "library")
"""What-ifs of a served step."""


@dataclass(frozen=True, slots=True)
class StepBill(Bill):
    """A bill with the question it answers."""

    setup: Setup
    phase: str
    batch: Number
    context: Number
    microbatch: Number  # sequences that pass the stages together: batch / pp
    rows: Number
    speculative: int
    settings: WhatIf
    sources: tuple[str, ...]
    notes: tuple[Note, ...] = ()

    @property
    def legal(self) -> Any:
        """For arrays: which elements are legal plans (``setup.codes`` names the rule that the others break)."""
        return self.setup.codes == 0


def bill(
    model: str | Model,
    cluster: str | Cluster,
    *,
    phase: str = "decode",
    batch: Number = 1,
    context: Number = 1024,
    speculative: int = 0,
    eager: bool = False,
    ep_backend: str = "",
    overlap: float = 0.0,
    slow_rank: float = 1.0,
    library: str = "",
    latency_scale: float = 1.0,
    bandwidth_scale: float = 1.0,
    profile: str | Profile | None = None,
    **plan: Any,
) -> StepBill:
    """Price one prefill, decode or mixed step. Sizes, batch and context may be arrays, and then every figure is one.

    With ``pp`` stages the batch is split into ``pp`` microbatches that are in flight together: ``step_s`` is one
    microbatch through all stages, and tokens of all of them come out in that time. ``profile`` is a machine's own
    constants (a file of ``commtax calibrate``): its engine and type are used unless others are given.
    """
    batch, context = _check(phase, batch, context, overlap, slow_rank)
    check_workload(phase, speculative, eager)
    asked = setup(model, cluster, phase=phase, profile=profile, **plan)
    check_backend(ep_backend, asked)
    fabric, constants = fabric_of(asked, library), constants_of(asked)
    usual = library_of(asked, library) if asked.profile else library
    settings = WhatIf(eager, ep_backend, overlap, slow_rank, latency_scale, bandwidth_scale, usual)
    together = in_flight(phase, batch, asked.plan.pp)
    work = workload(phase, together, context, speculative)
    tokens = (batch if phase in ("decode", "prefill") else work.decode_seqs + work.prefill_seqs) * asked.plan.dp
    tokens = tokens * asked.plan.replicas
    terms = Terms(asked.model, asked.plan, asked.cluster, asked.engine, fabric, constants, settings)
    plain = inference_bill(terms, work, tokens)
    rows = padded_rows(work.rows, work, asked.engine, asked.plan.tp, eager)
    sources = tuple(dict.fromkeys(f"{x.kind}: {x.source}" for x in plain.lines if x.source))
    notes = (
        *asked.notes,
        *flight_notes(phase, batch, asked.plan.pp),
        *_padding(asked, work.rows, rows),
        *context_notes(context, asked),
        *_step_notes(asked, phase, work.rows, speculative),
        *((Note("assumed-links", fabric.note),) if fabric.note else ()),
        *_untaken(plain, asked),
    )
    return StepBill(plain.lines, plain.tokens, asked, phase, batch, context, together, rows, speculative, settings, sources, notes)


def _check(phase: str, batch: Number, context: Number, overlap: float, slow_rank: float) -> tuple[Number, Number]:
    batch = positive(batch, "batch")
    context = positive(context, "context", least=0 if phase == "decode" else 1)
    if phase == "train":
        raise Refusal("phase 'train': train_bill prices training steps; bill is for decode, prefill and mixed", "phase")
    if not 0 <= overlap <= 1:
        raise Refusal(f"overlap={overlap}: a fraction from 0 to 1 is needed", "overlap")
    if not 1 <= slow_rank < 1e6:
        raise Refusal(f"slow_rank={slow_rank}: the slowest rank takes at least 1 times as long as the others", "slow_rank")
    return batch, context


def _step_notes(asked: Setup, phase: str, rows: Number, speculative: int) -> list[Note]:
    """What one priced step leaves out: chunks of a long prompt, drafts that are accepted."""
    found = []
    most = asked.engine.serves.max_batched_tokens
    if phase in ("prefill", "mixed") and np.ndim(rows) == 0 and rows > most and asked.engine.sends.graph_sizes:
        chunks = int(np.ceil(rows / most))
        cut = f"{asked.engine.key} would run these {rows:,.0f} tokens in {chunks} chunks of {most:,}; one step is priced"
        found.append(Note("chunks", cut))
    if speculative:
        more = f"up to {speculative + 1} times as many if every draft is accepted"
        found.append(Note("drafts", f"tokens/s count one token a sequence: {more}"))
    return found


def _untaken(plain: Bill, asked: Setup) -> list[Note]:
    """A profile whose collectives are not the ones that run: said, not left to be guessed."""
    own, comm = asked.profile, [x for x in plain.items if x.kind == "comm"]
    if not own or not own.libraries or not comm or any(x.source.basis == sourced(own.label).basis for x in comm):
        return []
    with_it = f"--library {next(iter(own.libraries))} prices with it"
    return [Note("profile-untaken", f"none of these collectives takes a path of profile {own.name}: {with_it}")]


def _padding(asked: Setup, rows: Number, padded: Number) -> list[Note]:
    if np.ndim(padded) == 0 and padded != rows:
        graph = f"{asked.engine.key} runs {rows:,.0f} rows in a CUDA graph of {padded:,.0f}"
        return [Note("padding", f"{graph}: the padding is computed and sent too")]
    return []


def held(priced: StepBill) -> Fit:
    """What a rank of the scalar plan holds, judged for requests of its own length."""
    asked = priced.setup
    # Activations are judged as the engine runs them: of one replica, whatever else the step was told.
    plain = replace(asked, plan=replace(asked.plan, cp=1, sequence_parallel=asked.engine.trains.sequence_parallel))
    return judge_length(plain, max(1, min(asked.model.max_len, int(priced.context) + 1)))


def fits(priced: StepBill) -> bool:
    """Whether the scalar plan holds its own batch: KV for ``batch`` sequences of ``context`` tokens."""
    judged = held(priced)
    return judged.fits and judged.kv_tokens >= int(priced.batch) * (int(priced.context) + 1)


def again(priced: StepBill, **changes: Any) -> StepBill:
    """The same question with something changed: a what-if."""
    asked, plan, s = priced.setup, priced.setup.plan, priced.settings
    words: dict[str, Any] = {
        "phase": priced.phase,
        "batch": priced.batch,
        "context": priced.context,
        "speculative": priced.speculative,
        "engine": asked.engine,
        "dtype": plan.weights_dtype,
        "kv_dtype": plan.kv_dtype,
        "sequence_parallel": plan.sequence_parallel,
        **{axis: getattr(plan, axis) for axis in ("tp", "pp", "dp", "ep", "cp", "replicas")},
        "profile": asked.profile,
        **{name: getattr(s, name) for name in CHANGES},
    }
    place = changes.pop("cluster", asked.cluster)
    return bill(asked.model, place, **{**words, **changes})


def with_collectives(priced: StepBill, **changes: Any) -> StepBill:
    """``again`` for what changes collectives alone (library, latency, bandwidth): kernels and host are as they were.

    Without graphs the host waits for collectives too, and everything is priced again.
    """
    asked, settings = priced.setup, replace(priced.settings, **changes)
    if settings.eager or asked.profile:
        return again(priced, **changes)
    fabric = fabric_of(asked, settings.library)
    pricer = Pricer(Terms(asked.model, asked.plan, asked.cluster, asked.engine, fabric, constants_of(asked), settings))
    lines = tuple(comm_line(x.item, pricer, settings) if x.kind == "comm" else x for x in priced.lines)
    return replace(priced, lines=lines, settings=settings)


def with_link(cluster: Cluster, name: str) -> Cluster:
    """The same hosts on another link: inside where the link is an inside one, else between single-GPU hosts."""
    link = catalog.link(name)
    if link.scope == "intra":
        return catalog.with_inside(cluster, link)
    if cluster.num_hosts == 1:
        cluster = replace(cluster, num_hosts=cluster.num_gpus, gpus_per_host=1, nvlink_domain=1, bridge=None)
    return catalog.with_between(cluster, link)
