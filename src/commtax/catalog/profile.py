"""What was measured on one machine, laid over the catalogue: chip, kernels, collectives, network and host."""

import math
from dataclasses import replace

from commtax.catalog import physics
from commtax.catalog.fabric import fabric, library, with_pairs
from commtax.catalog.kernel_constants import kernel_constants
from commtax.catalog.posterior import deployment_of, posterior_of
from commtax.catalog.profile_files import NO_FACTS, check_paths, run_topics, runs_of, tells_chip
from commtax.catalog.profile_files import load as load
from commtax.catalog.profile_files import load_profile as load_profile
from commtax.catalog.profile_files import parse as parse
from commtax.records import with_fields
from commtax.spec import Chip, Cluster, Engine, Model, Plan, Profile
from commtax.spec.constants import Fabric, KernelConstants, Spread
from commtax.statement import Note, Refusal, Source
from commtax.units import plural

_UNMEASURED = Spread("across", 0.6, "sizes that nobody measured")
_SPREAD = 0.25  # half-width of the range around a machine's own fit that does not say its own


def measured_chip(profile: Profile) -> str:
    """Return the chip that it was measured on, as it says or as all of its runs do, or "" where that is not one."""
    chips = {lesson.deployment.chip for lesson in profile.lessons}
    return profile.chip.get("key", "") or (chips.pop() if len(chips) == 1 else "")


def other_chip(profile: Profile, chip: Chip) -> str:
    """Return the chip that it was measured on, where that is another one."""
    key = profile.chip.get("key", chip.key)
    return key if key != chip.key else ""


def measured_cluster(profile: Profile, cluster: Cluster) -> Cluster:
    """Return the cluster with its chip as it was measured, where another chip's facts are refused and the rest is used, aloud."""
    facts, chip, measured_on = profile.chip, cluster.chip, other_chip(profile, cluster.chip)
    parts = {"intra": profile.libraries, "inter": profile.network}
    used = profile.lessons or profile.tables or any(part and same_link(profile, which, cluster) for which, part in parts.items())
    if measured_on and (tells_chip(profile) or not used):
        raise Refusal(f"profile '{profile.name}': it was measured on {measured_on}, and the cluster has {chip.key}", "profile")
    if measured_on:
        return cluster
    physics.check_chip(facts, chip)
    measured: dict[str, object] = {**facts, "num_sms": int(facts.get("num_sms", chip.num_sms))}
    measured["flops_per_s"] = {**chip.flops_per_s, **facts.get("flops_per_s", {})}
    if "memory_bytes" in facts:
        measured.setdefault("visible_bytes", facts["memory_bytes"])
    return replace(cluster, chip=with_fields(chip, measured))


def measured_engine(profile: Profile, engine: Engine, chip: Chip) -> Engine:
    """Return the engine with the host's times as measured, where that engine was measured on this chip."""
    if not profile.host or not tells_of(profile, engine) or other_chip(profile, chip):
        return engine
    return engine.but(**profile.host, calibrated=True, host_label=profile.label)


def learnt_engine(profile: Profile, engine: Engine, chip: Chip, model: Model, plan: Plan) -> Engine:
    """Return the engine with its constants moved by what this deployment's runs taught, after undoing earlier moves."""
    changes = posterior_of(profile).changes(deployment_of(engine, chip, model, plan))
    before, logs = dict(engine.paces.learnt), {name: change.log for name, change in changes.items()}
    if logs == before:
        return engine
    usual = {name: getattr(engine.paces if name.startswith("pace_") else engine.host, name) for name in logs}
    values = {name: value * math.exp(logs[name] - before.get(name, 0.0)) for name, value in usual.items()}
    return engine.but(**values, learnt=tuple(logs.items()), calibrated=True, host_label=profile.label)


def tells_of(profile: Profile, engine: Engine) -> bool:
    """Return whether the host's times are this engine's."""
    return not profile.engine or profile.engine.partition("@")[0] == engine.key


def constants(profile: Profile, engine: Engine, chip: Chip) -> KernelConstants:
    """Return the family's kernel constants with the measured ones in their place."""
    usual, measured_on = kernel_constants(engine, chip), other_chip(profile, chip)
    other = {"decode.single"} if "decode.bf16" in profile.tables else set()  # attention as measured here, whatever the heads
    tables = {**{name: c for name, c in usual.tables.items() if name not in other}, **profile.tables}
    label = Source("transferred", f"transferred: {profile.name}, measured on {measured_on}") if measured_on else profile.label
    return replace(usual, tables=tables, own={**usual.own, **dict.fromkeys(profile.tables, label)})


def same_link(profile: Profile, which: str, cluster: Cluster) -> bool:
    """Check whether its collectives were measured on this link of the cluster, which a profile of the same chip need not name."""
    link = cluster.intra if which == "intra" else cluster.inter
    return profile.links.get(which, "" if other_chip(profile, cluster.chip) else link.key) == link.key


def usual_library(profile: Profile, engine: Engine) -> str:
    """Return the library that the engine calls, or the profile's first where that has none of the engine's."""
    shared = set(profile.libraries) & {one.key for one in library(engine.library).chain}
    return engine.library if shared or not profile.libraries else next(iter(profile.libraries))


def paths(profile: Profile, library: str, cluster: Cluster) -> Fabric:
    """Return the library's paths as measured here, where operations and links that were not measured keep the catalogue's."""
    if cluster.bridge:
        return with_pairs(paths(profile, library, cluster.without_pairs), paths(profile, library, cluster.as_pairs))
    here = profile.libraries if same_link(profile, "intra", cluster) else {}
    if here:
        check_paths(profile, cluster.intra)
    owned = ((name, (replace(p, source=profile.label, own=True, spread=p.spread or _SPREAD) for p in here[name])) for name in here)
    made = fabric(library, cluster, {name: tuple(some) for name, some in owned})
    if not profile.network or not same_link(profile, "inter", cluster) or made.flat:
        return made
    network = dict(profile.network)
    small = [replace(_UNMEASURED, max_bytes=network.pop("least_bytes"))] if "least_bytes" in network else []
    ranks = (int(network.pop("least_ranks", 0)), int(network.pop("most_ranks", 0)))
    measured: dict[str, object] = {"ranks": ranks if all(ranks) else made.network.ranks, "label": profile.label}
    measured |= {"spread": _SPREAD, "curves": profile.curves, **network}
    others = tuple(s for s in made.spreads if s.where != "across")
    return replace(made, network=with_fields(made.network, measured), spreads=(*small, *others))


def remarks(profile: Profile, cluster: Cluster, engine: Engine, model: str = "", tp: int = 0) -> list[Note]:
    """Return notes on what a profile measured, and what of it applies here less surely or not at all."""
    wanted = {"engine": engine.key, "chip": cluster.chip.key, "model": model, "tp": str(tp or "")}
    unseen = [topic.unseen for topic in run_topics(profile.lessons, wanted) if not topic.is_seen]
    outside = [f"its runs did not see {', '.join(unseen)}: the ranges of what they taught are widened"] if unseen else []
    texts = [f"profile {profile.name}: {', '.join(parts_of(profile))}"]
    measured_on, chip = other_chip(profile, cluster.chip), cluster.chip.key  # what of it is not used here, or less surely
    for part, which, what in ((profile.libraries, "intra", "collectives were"), (profile.network, "inter", "network was")):
        if part and not same_link(profile, which, cluster):
            link = cluster.intra if which == "intra" else cluster.inter
            texts.append(f"its {what} measured on {profile.links.get(which, measured_on)}: {link.key} keeps the catalogue's")
    if profile.tables and measured_on:
        texts.append(f"its kernels were measured on {measured_on}: on {chip} their ranges are widened")
    if profile.host and not tells_of(profile, engine):
        texts.append(f"its host times are {profile.engine}'s: {engine.key} keeps the catalogue's")
    elif profile.host and measured_on:
        texts.append(f"its host times were measured on {measured_on}: {chip} keeps the catalogue's")
    return [Note("profile", text) for text in (*texts, *outside)]


def parts_of(profile: Profile) -> list[str]:
    ops = [f"{name} {op}" for name, paths in profile.libraries.items() for op in dict.fromkeys(p.op for p in paths)]
    kernels = [f"kernels {name}" for name in profile.tables]
    times = [key for key in profile.host if not key.startswith("sigma")]
    rates = [key for key in profile.chip if key not in NO_FACTS]
    runs = [plural(len(runs_of(profile.lessons)), "run")] if profile.lessons else []
    return [*ops, *(["network"] if profile.network else []), *kernels, *times, *rates, *runs] or ["nothing"]
