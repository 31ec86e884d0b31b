"""``--from`` and ``--topo``: what people have already, turned into options before a command runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from commtax import catalog
from commtax.catalog.checkpoints import base_key
from commtax.catalog.loader import normal
from commtax.catalog.models import bundled_model, origin, variant
from commtax.catalog.programs import program
from commtax.cli.options import GivenOptions, VerbSubject
from commtax.files import ELSEWHERE, expand_home, read_text
from commtax.options import options as known_options
from commtax.spec import SIZES, Cluster, Model, Plan
from commtax.statement import Refusal
from commtax.verbs.settling import AUTO_EP

if TYPE_CHECKING:
    from commtax.launch.launch_record import Launch, Servers
    from commtax.machines.topology import PlacedCluster


def fill_from_command(text: str, model: str, given: GivenOptions, remarks: list[str], about: VerbSubject) -> tuple[Launch, str]:
    """Fill options that nobody gave from a command, or the file that holds it; returns what was read, and the model's name."""
    launch = _launch(text, model)
    options = _options(launch, about)
    model = _agree_on_model(model, launch, remarks) if model else _model(launch, remarks)
    _shares(launch, model, options, remarks, about)
    if given.plans:
        _join_plans(options, given, remarks)
    unused = _fill(options, launch, given, about)
    _hosts(launch, given, remarks)
    servers = launch.servers
    sizes = ", ".join(f"{name} {size}" for name, size in GivenOptions(launch.axes, replicas=servers.count).items() if size > 1)
    beside = f" to decode, {servers.prefill_workers} x {prompt_sizes(servers)} for prompts" if servers.prefill_workers else ""
    remarks += [f"from: {options.engine}, {sizes or 'one GPU'}{beside}"]
    remarks += launch.notes
    if launch.unread:
        remarks.append(f"not understood, and not in the answer: {', '.join(launch.unread)}")
    if unused and about is not VerbSubject.SEARCH:  # which has a use for the pasted plan itself
        remarks.append(f"read, but of no effect on this answer: {', '.join(unused)}")
    return launch, model


def _launch(text: str, model: str) -> Launch:
    """What was pasted, or a file with it; ``FILE#NAME`` is one server of a file that has several."""
    from commtax.launch.read_command import parse

    name, _, choice = text.rpartition("#") if not os.path.exists(text) else (text, "", "")
    file = name if "\n" not in text and name and os.path.exists(name) else ""
    if not file:
        return parse(text)

    def is_same(theirs: str) -> bool:
        return bool(theirs) and (normal(model) == normal(theirs) or (bool(origin(theirs)) and origin(model) == origin(theirs)))

    return parse(read_text(file, "from"), file, is_same if model else None, choice)


def prompt_sizes(servers: Servers) -> str:
    """The sizes of a server for prompts: ``tp 4``, or ``dp 8 x tp 1``."""
    ranks = f"dp {servers.prefill_dp} x " if (servers.prefill_dp or 1) > 1 else ""
    return f"{ranks}tp {servers.prefill_tp}"


def _fill(options: GivenOptions, launch: Launch, given: GivenOptions, about: VerbSubject) -> list[str]:
    """Options that nobody gave take what was pasted; returns those that the command has no option for."""
    context, unused = click.get_current_context(), []
    other = {name: option.otherwise for name, option in known_options().items()}
    if launch.phase == "serve" and about not in (VerbSubject.STEP, VerbSubject.STEPS):  # a batch and a length are of training there
        other = {}
    if about is VerbSubject.SERVER and launch.phase == "serve":  # no search: what a command leaves out is 1
        options = GivenOptions(GivenOptions(tp=1, pp=1) | options)
    if not about.several:  # one step has one length
        options.pop("spread", None)
    for name, value in options.items():
        target = name if name in given else other.get(name, "")
        if target not in given:
            unused.append(f"{name.replace('_', '-')} {value}")
        elif context.get_parameter_source(target) in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
            given[target] = value
    return unused


def _shares(launch: Launch, model: str, options: GivenOptions, remarks: list[str], about: VerbSubject) -> None:
    """What servers beside each other share, as the command at hand looks at them."""
    known, servers = bundled_model(model) or variant(model), launch.servers
    if launch.stage_layers and known:
        options.chunks = launch.chunks_of(known.num_layers)
    if launch.slots:
        options |= _copies(launch.slots, known, remarks)
    if servers.count > 1 and launch.options.concurrency and not about.several:
        options.concurrency = max(1, round(int(launch.options.concurrency) / servers.count))
        remarks.append(f"{servers.count} equal servers: the step of one of them, with its share of the clients")
    over_all = catalog.engine(launch.engine).sends.ep_is_tp_dp
    if over_all and int(launch.options.dp or 1) > 1 and launch.options.ep == "" and known and known.experts:
        options.ep = AUTO_EP
        how = "priced as experts spread over them (the same bytes and weights)"
        remarks.append(f"{program(launch.engine).title} splits a mixture's experts over tp x dp: {how}")
    if servers.prefill_workers and not about.several:
        beside = f"{servers.prefill_workers} for prompts ({prompt_sizes(servers)})"
        remarks.append(f"looked at: one server that decodes; pasted were {servers.count} of these and {beside}")


def _copies(slots: int, model: Model | None, remarks: list[str]) -> GivenOptions:
    """Copies of popular experts, told by the experts of all ranks."""
    if model is None or model.experts is None:
        remarks.append(f"not in the answer: num_slots {slots}; add --redundant-experts, the slots less the model's experts")
        return GivenOptions()
    if slots < model.experts.num_experts:
        rule = f"fewer than the {model.experts.num_experts} experts of {model.key}"
        raise Refusal(f"from: num_slots {slots} are {rule}", "from", (model.experts.num_experts,))
    return GivenOptions(redundant_experts=slots - model.experts.num_experts)


def _join_plans(options: GivenOptions, given: GivenOptions, remarks: list[str]) -> None:
    """The command's own plan stands beside those that are compared."""
    sizes = {axis: options.pop(axis) for axis in SIZES if axis in options} | {"r": options.pop("replicas", 1)}
    own = "".join(f"{axis}{'' if n == AUTO_EP else n}" for axis, n in sizes.items() if n != 1) or "tp1"
    if own not in given.plans.split(","):
        given.plans = f"{own},{given.plans}"
        remarks.append(f"{own} is the command's own plan")


def _options(launch: Launch, about: VerbSubject) -> GivenOptions:
    """Options by name, those that the command says something about. Servers for prompts are none of one server's."""
    options = GivenOptions({name: value for name, value in launch.options.items() if name != "dp"})
    servers = launch.servers
    if servers.prefill_workers and about.several:
        options.disaggregated, options.decode_workers, options.prefill_workers = True, servers.count, servers.prefill_workers
        options.prefill_tp, options.prefill_dp = servers.prefill_tp, servers.prefill_dp
    elif servers.count > 1 and not servers.prefill_workers:
        options.replicas = servers.count
    if int(launch.options.dp or 1) > 1:
        options.dp = int(launch.options.dp)
    if launch.phase == "train":
        options.phase = "train"
    options.engine = f"{launch.engine}@{launch.version}" if launch.version else launch.engine
    return options


def _model(launch: Launch, remarks: list[str]) -> str:
    """The command's model: by its name, by the last part of its path, or by its sizes."""
    if launch.model:
        name = _usual_model_name(launch.model, remarks)
        return _usual_model_name(launch.called, remarks) if launch.called and name.startswith(ELSEWHERE) else name
    if not launch.shape:
        return ""

    from commtax.launch.model_sizes import model_with

    if key := model_with(launch.shape):
        remarks.append(f"the command's sizes are those of {key}")
        return key
    listed = ", ".join(f"{name} {size}" for name, size in launch.shape)
    raise Refusal(f"from: no model of the catalogue has {listed}; name one (a folder with config.json will do)", "from")


def _agree_on_model(model: str, launch: Launch, remarks: list[str]) -> str:
    """The model that was named, where it can be the command's; one of the two may be a folder that only its owner knows."""
    known = bundled_model(model)
    if known is None and os.path.exists(expand_home(model)):
        return model
    if launch.model:
        name = _usual_model_name(launch.model, remarks)
        theirs = bundled_model(name)
        if not theirs and name.startswith(ELSEWHERE):
            remarks.append(f"{launch.model} is taken for {model}")
            return model
        if (same := origin(name)) and same == origin(model):
            return name if known and not theirs else model
        if normal(model) != normal(name):
            raise Refusal(f"MODEL '{model}' is not the pasted command's '{launch.model}': leave one of them out")
    elif launch.shape and known:
        from commtax.launch.model_sizes import sizes_of

        sizes = sizes_of(known)
        odd = [(name, size) for name, size in launch.shape if sizes.get(name, size) != size]
        if odd:
            raise Refusal(f"MODEL '{model}' has {sizes[odd[0][0]]} {odd[0][0]}, and the pasted command {odd[0][1]}")
    return model


def _usual_model_name(name: str, remarks: list[str]) -> str:
    """A name that the catalogue, a folder or the Hub may know; a path's last part may be a model's usual name."""
    if bundled_model(name) or os.path.exists(expand_home(name)):
        return name
    last = name.rstrip("/").rsplit("/", 1)[-1]
    if key := base_key(normal(last)):
        remarks.append(f"{name} is taken for {key}")
        return key
    if not variant(last):
        return name
    return last if name.startswith(ELSEWHERE) or name.count("/") > 1 else name


def _hosts(launch: Launch, given: GivenOptions, remarks: list[str]) -> None:
    """A chip's name alone becomes as many hosts of it as the command needs."""
    text = str(given.cluster)
    if not text or launch.num_gpus == 1:
        return
    try:
        chip = catalog.chip(text)
    except ValueError:
        return
    hosts = launch.place.nnodes or -(-launch.num_gpus // chip.gpus_per_host)
    each = launch.place.gpus_per_node or -(-launch.num_gpus // hosts)
    given.cluster = f"{hosts}x{each}x{chip.key}" if hosts > 1 else f"{each}x{chip.key}"
    remarks.append(f"cluster: {given.cluster}, as the command needs it")


def apply_topology(given: GivenOptions, remarks: list[str]) -> str:
    """GPUs chosen from a topology: the inside link becomes the one that the tensor-parallel groups have. Returns their numbers."""
    file = given.pop("topo", "")
    if not file:
        return ""
    if given.intra:
        raise Refusal.about(intra="give it or --topo, not both")
    if not given.cluster:
        raise Refusal.about(topo="says how GPUs are joined, not which they are; add --cluster, such as 4xrtx-3090")
    plan = Plan(tp=given.tp or 1, dp=given.dp or 1, pp=given.pp or 1)
    laid = placement_by_topology(file, catalog.cluster(given.cluster), remarks)(plan)
    if plan.tp == 1:
        return ""
    given.intra = laid.cluster.intra.key
    return laid.devices


def placement_by_topology(file: str, cluster: Cluster, remarks: list[str]) -> Callable[[Plan], PlacedCluster]:
    """Where a topology lets plans lie, by their sizes: on the GPUs that suit each best."""
    from commtax.machines import topology

    seen = topology.parse(read_text(file, "topo"))

    def placed(plan: Plan) -> PlacedCluster:
        laid = topology.place(seen, cluster, int(plan.tp), int(plan.dp * plan.pp))
        remarks.extend(laid.notes)
        return laid

    return placed
