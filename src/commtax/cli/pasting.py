"""``--from`` and ``--topo``: what people have already, turned into options before a command runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from commtax import catalog
from commtax.catalog.hosts import catalogued_hosts
from commtax.catalog.loader import normal
from commtax.catalog.models import bundled_model, origin, variant
from commtax.cli.options import CommandOptions, VerbSubject
from commtax.files import ELSEWHERE, expand_home, read_text
from commtax.options import options as known_options
from commtax.spec import SIZES, Cluster, Plan
from commtax.statement import Note, Refusal
from commtax.verbs.settling import AUTO_EP

if TYPE_CHECKING:
    from commtax.launch.flags import Launch, Servers
    from commtax.launch.topology import PlacedCluster

LOOKED_AT = "looked-at"  # the code of the remark on which server of several kinds an answer is about


def fill_from_command(text: str, model: str, options: CommandOptions, remarks: list[str], about: VerbSubject) -> tuple[Launch, str]:
    """Fill options that nobody gave from a command, or the file that holds it, and return it with the model's name."""
    from commtax.launch.launch_options import model_of, options_of, read_pasted, unsearched_options
    from commtax.launch.read_techniques import unread_remarks

    launch = read_pasted(text, model)
    pasted = CommandOptions(options_of(launch, about.several))
    model = _agree_on_model(model, launch, remarks) if model else model_of(launch, remarks)
    _shares(launch, model, pasted, remarks, about, options.phase)
    if options.plans:  # the command's plan stands beside those that are compared
        axes = {axis: pasted.pop(axis) for axis in SIZES if axis in pasted} | {"r": pasted.pop("replicas", 1)}
        plan = "".join(f"{axis}{'' if n == AUTO_EP else n}" for axis, n in axes.items() if n != 1) or "tp1"
        if plan not in options.plans.split(","):
            options.plans = f"{plan},{options.plans}"
            remarks.append(f"{plan} is the command's own plan")
    unsearched = unsearched_options() if about is VerbSubject.SEARCH else ()
    taken, unused = _fill(pasted, launch, options, about, unsearched)
    expand_cluster(launch, options, remarks)
    servers = launch.servers
    sizes = ", ".join(f"{name} {size}" for name, size in CommandOptions(launch.axes, replicas=servers.count).items() if size > 1)
    beside = f" for decoding, {servers.prefill_workers} x {prompt_sizes(servers)} for prompts" if servers.prefill_workers else ""
    ranked = launch.options if about is VerbSubject.SEARCH else {}  # a search ranks the pasted plan with its own settings
    kept = {*taken, *(name for name in ranked if name not in options)} - {*SIZES, *unsearched}
    also_read = "".join(f", {_option_words(name, value)}" for name, value in launch.options.items() if name in kept)
    remarks += [f"from: {pasted.engine}, {model}, {sizes or 'one GPU'}{beside}{also_read}"]
    remarks += launch.notes
    remarks += unread_remarks(launch.engine, launch.unread)
    if unused:
        without = "plans are searched without" if about is VerbSubject.SEARCH else "makes no difference here"
        remarks.append(f"read, but {without}: {', '.join(unused)}")
    return launch, model


def prompt_sizes(servers: Servers) -> str:
    """Return the sizes of a server for prompts: ``tp 4``, or ``dp 8 x tp 1``."""
    ranks = f"dp {servers.prefill_dp} x " if (servers.prefill_dp or 1) > 1 else ""
    return f"{ranks}tp {servers.prefill_tp}"


def _fill(
    pasted: CommandOptions, launch: Launch, options: CommandOptions, about: VerbSubject, unsearched: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Let options that nobody gave take what was pasted, and return their names, and in words what is of no use here."""
    context, taken, unused = click.get_current_context(), list[str](), list[str]()
    other = {name: option.otherwise for name, option in known_options().items()}
    if launch.phase == "serve" and about.whole:  # a batch and a length are of training there
        other = {}
    if about is VerbSubject.SERVER and launch.phase == "serve":  # no search: what a command leaves out is 1
        pasted = CommandOptions(CommandOptions(tp=1, pp=1) | pasted)
    if not about.several:  # one step has one length
        pasted.pop("spread", None)
    for name, value in pasted.items():
        target = name if name in options else other.get(name, "")
        if name in unsearched if about is VerbSubject.SEARCH else target not in options:
            unused.append(_option_words(name, value))
        elif target not in options:
            continue
        elif context.get_parameter_source(target) in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
            options[target] = value
            taken.append(name)
    return taken, unused


def _option_words(name: str, value: object) -> str:
    """Write an option and its value as they are read aloud.

    >>> _option_words("max_num_seqs", 128), _option_words("prefix_cache", True), _option_words("eager", False)
    ('max-num-seqs 128', 'prefix-cache', 'no eager')
    """
    words = "communication beside compute:" if name == "async_axes" else name.replace("_", "-")
    return f"{words} {value}" if not isinstance(value, bool) else words if value else f"no {words}"


def _shares(launch: Launch, model: str, pasted: CommandOptions, remarks: list[str], about: VerbSubject, phase: str | None) -> None:
    """Add what servers beside each other share, as the command at hand looks at them."""
    from commtax.launch.launch_options import implied_options

    shape, servers = bundled_model(model) or variant(model), launch.servers
    pasted |= implied_options(launch, shape, remarks)
    if servers.count > 1 and launch.options.concurrency and not about.several:
        pasted.concurrency = max(1, round(int(launch.options.concurrency) / servers.count))
        remarks.append(f"{servers.count} equal servers: the step of one of them, with its share of the clients")
    if servers.prefill_workers and not about.several and phase == "prefill":
        tp, dp = servers.prefill_tp or 1, servers.prefill_dp or 1
        spread = pasted.pop("ep", None) not in (None, 1) or (bool(shape and shape.experts) and dp > 1)  # as those that decode
        pasted.pop("pp", None)
        pasted |= {"tp": tp, "dp": dp, **({"ep": AUTO_EP} if spread else {})}
        beside = f"{servers.count} for decoding (tp {launch.options.tp or 1})"
        remarks.append(f"looked at: one server for prompts; pasted were {servers.prefill_workers} of these and {beside}")
    elif servers.prefill_workers and not about.several:
        beside = f"{servers.prefill_workers} for prompts ({prompt_sizes(servers)})"
        remarks.append(Note(LOOKED_AT, f"looked at: one server that decodes; pasted were {servers.count} of these and {beside}"))


def _agree_on_model(model: str, launch: Launch, remarks: list[str]) -> str:
    """Return the model that was named, where it can be the command's. One of the two may be a folder that only its owner knows."""
    from commtax.launch.launch_options import sizes_of, usual_model_name

    bundled = bundled_model(model)
    if bundled is None and os.path.exists(expand_home(model)):
        return model
    if launch.model:
        name = usual_model_name(launch.model, remarks)
        theirs = bundled_model(name)
        if not theirs and name.startswith(ELSEWHERE):
            remarks.append(f"{launch.model} is taken for {model}")
            return model
        if (same := origin(name)) and same == origin(model):
            return name if bundled and not theirs else model
        if normal(model) != normal(name):
            raise Refusal(f"MODEL '{model}' is not the pasted command's '{launch.model}': leave one of them out")
    elif launch.shape and bundled:
        sizes = sizes_of(bundled)
        odd = [(name, size) for name, size in launch.shape if sizes.get(name, size) != size]
        if odd:
            raise Refusal(f"MODEL '{model}' has {sizes[odd[0][0]]} {odd[0][0]}, and the pasted command {odd[0][1]}")
    return model


def expand_cluster(launch: Launch, options: CommandOptions, remarks: list[str]) -> None:
    """Expand a chip's name alone, or that of a manifest's hosts, to as many hosts of it as the command needs."""
    text = str(options.cluster or launch.place.chip)
    if not text or (options.cluster and launch.num_gpus == 1) or catalogued_hosts(text):  # a rack says how many it has
        return
    try:
        chip = catalog.chip(text)
    except ValueError:
        return
    hosts = launch.place.nnodes or -(-launch.num_gpus // chip.gpus_per_host)
    each = launch.place.gpus_per_node or -(-launch.num_gpus // hosts)
    options.cluster = f"{hosts}x{each}x{chip.key}" if hosts > 1 else f"{each}x{chip.key}"
    remarks.append(f"cluster: {options.cluster}, as the command needs it")


def apply_topology(options: CommandOptions, remarks: list[str]) -> str:
    """Choose GPUs from a topology and return their numbers. The link inside becomes the one that tensor-parallel groups have."""
    file = options.pop("topo", "")
    if not file:
        return ""
    if options.intra:
        raise Refusal.about(intra="give it or --topo, not both")
    if not options.cluster:
        raise Refusal.about(topo="says how GPUs are joined, not which they are; add --cluster, such as 4xrtx-3090")
    plan = Plan(tp=options.tp or 1, dp=options.dp or 1, pp=options.pp or 1)
    laid = placement_by_topology(file, catalog.cluster(options.cluster), remarks)(plan)
    if plan.tp == 1:
        return ""
    options.intra = laid.cluster.intra.key
    return laid.devices


def placement_by_topology(file: str, cluster: Cluster, remarks: list[str]) -> Callable[[Plan], PlacedCluster]:
    """Return a function that lays plans on the GPUs of a topology that suit each best."""
    from commtax.launch import topology

    seen = topology.parse(read_text(file, "topo"))

    def placed(plan: Plan) -> PlacedCluster:
        laid = topology.place(seen, cluster, int(plan.tp), int(plan.dp * plan.pp))
        remarks.extend(laid.notes)
        return laid

    return placed
