"""What carries caches in a question, and whether it can here."""

import numpy as np

from commtax.catalog.motion import carrier, started_with, tier
from commtax.catalog.programs import program_of
from commtax.question import Question
from commtax.spec import Cluster, Number
from commtax.spec.hardware import CacheCarrier
from commtax.statement import OTHER_CHIPS, OTHER_ENGINES, Refusal


def carrier_of(asked: Question) -> CacheCarrier:
    """Return what carries caches from prompt workers to those that decode: as asked, else what the engine is started with."""
    return carrier(asked.techniques.kv_transfer or started_with(program_of(asked.engine).key))


def outside_Bps(cluster: Cluster, gpus: Number) -> Number:
    """Of a GPU that leaves its host, while so many of the cluster do."""
    nics, each = cluster.nics_per_host, cluster.gpus_per_host
    return cluster.inter.bandwidth_Bps * np.minimum(max(1.0, nics / each), nics / np.minimum(each, gpus))


def check_motion(q: Question) -> None:
    """A carrier that the engine has on these chips, and a tier that there is."""
    if q.techniques.kv_tier:
        tier(q.techniques.kv_tier)
    if not q.techniques.kv_transfer:
        return
    name, engine = f"kv-transfer={q.techniques.kv_transfer}", program_of(q.engine)
    known = carrier_of(q)
    if engine.key not in known.connectors:
        raise Refusal(f"{q.engine.name} does not have it", "technique", kind=OTHER_ENGINES, subject=name)
    if known.vendors and any(place.chip.vendor not in known.vendors for place in q.places):
        raise Refusal(f"runs only on chips of {', '.join(known.vendors).upper()}", "technique", kind=OTHER_CHIPS, subject=name)


def check_moving(q: Question) -> None:
    """Where nothing moves, nothing carries it."""
    if q.techniques.kv_transfer and not q.requests.disaggregated:
        rule = "KV caches are sent only in disaggregated serving (simulate or plan --disaggregated)"
        raise Refusal(f"kv-transfer={q.techniques.kv_transfer}: {rule}", "technique")


def check_sides(asked: Question, ahead_tp: Number) -> None:
    """Workers of both kinds whose ranks hold the same heads, where their carrier cuts none out."""
    known = carrier_of(asked)
    if not known.cuts_heads and np.any(np.asarray(ahead_tp != asked.plan.tp)):
        rule = f"{known.connectors[program_of(asked.engine).key]} needs the same tp on both sides"
        raise Refusal(f"kv-transfer={known.key}: {rule}, not {ahead_tp} and {asked.plan.tp}", "technique")
