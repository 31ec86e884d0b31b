"""What a launch means in our options: the model by a name that the catalogue may know, the plan, servers beside each other."""

import os
from collections.abc import Iterable

from commtax import catalog
from commtax.catalog.loader import normal, stems
from commtax.catalog.models import bundled_model, origin, variant
from commtax.catalog.programs import program
from commtax.catalog.quantisation import base_key
from commtax.catalog.technique_flags import is_carrier
from commtax.catalog.techniques import technique
from commtax.files import ELSEWHERE, expand_home, read_text
from commtax.launch.flags import AUTO_EP, COMMON, PRICED_WHOLE, FlagValues, Launch
from commtax.launch.read_command import parse
from commtax.spec import Model
from commtax.statement import Refusal


def read_pasted(text: str, model: str = "") -> Launch:
    """Read a pasted command, or the file that it names. ``FILE#NAME`` is one server of a file that has several."""
    name, _, choice = text.rpartition("#") if not os.path.exists(text) else (text, "", "")
    if "\n" in text or not name or not os.path.exists(name):
        if len(text.split()) == 1 and "(" not in text:
            raise Refusal(f"--from {text.strip()[:200]}: no such file", "from")
        return parse(text)

    def is_same(theirs: str) -> bool:
        return bool(theirs) and (normal(model) == normal(theirs) or (bool(origin(theirs)) and origin(model) == origin(theirs)))

    return parse(read_text(name, "from"), name, is_same if model else None, choice)


def options_of(launch: Launch, several: bool) -> FlagValues:
    """Return the options that a command sets, by name. Servers for prompts belong to several servers' plans alone."""
    options = FlagValues({name: value for name, value in launch.options.items() if name != "dp"})
    servers = launch.servers
    if servers.prefill_workers and several:
        options.disaggregated, options.decode_workers, options.prefill_workers = True, servers.count, servers.prefill_workers
        options.prefill_tp, options.prefill_dp = servers.prefill_tp, servers.prefill_dp
    else:  # caches go nowhere
        used = [word for word in str(options.technique).split(",") if word and not is_carrier(technique(word.partition("=")[0]))]
        options.technique = ",".join(used)
        if not used:
            del options["technique"]
    if servers.count > 1 and not servers.prefill_workers:
        options.replicas = servers.count
    if int(launch.options.dp or 1) > 1:
        options.dp = int(launch.options.dp)
    if launch.phase == "train":
        options.phase = "train"
    options.engine = f"{launch.engine}@{launch.version}" if launch.version else launch.engine
    return options


def unsearched_options() -> tuple[str, ...]:
    """Return the options of a pasted command that a search can do without: it remarks on them, and refuses nothing for them."""
    return tuple(COMMON["unsearched"].split())


def implied_options(launch: Launch, model: Model | None, remarks: list[str]) -> FlagValues:
    """Return the options that follow from a command and the model's sizes together."""
    options = FlagValues()
    if launch.stage_layers and model:
        options.chunks = launch.chunks_of(model.num_layers)
    if launch.slots and model and model.experts:
        copies, least = launch.slots - model.experts.num_experts, model.experts.num_experts
        if copies < 0:
            raise Refusal(f"from: num_slots {launch.slots} are fewer than the {least} experts of {model.key}", "from", (least,))
        options.redundant_experts = copies
    elif launch.slots:
        remarks.append(f"not in the answer: num_slots {launch.slots}; add --redundant-experts, the slots less the model's experts")
    over_all = catalog.engine(launch.engine).sends.ep_is_tp_dp
    if over_all and int(launch.options.dp or 1) > 1 and launch.options.ep == "" and model and model.experts:
        options.ep = AUTO_EP
        remarks.append(f"{program(launch.engine).title} splits a mixture's experts over tp x dp: {PRICED_WHOLE}")
    return options


def model_of(launch: Launch, remarks: list[str]) -> str:
    """Return the command's model: by its name, by the last part of its path, or by its sizes."""
    if launch.model:
        name = usual_model_name(launch.model, remarks)
        return usual_model_name(launch.called, remarks) if launch.called and name.startswith(ELSEWHERE) else name
    if not launch.shape:
        return ""
    if key := model_with(launch.shape):
        remarks.append(f"the command's sizes are those of {key}")
        return key
    listed = ", ".join(f"{name} {size}" for name, size in launch.shape)
    raise Refusal(f"from: no model of the catalogue has {listed}; name one (a folder with config.json will do)", "from")


def usual_model_name(name: str, remarks: list[str]) -> str:
    """Return a name that the catalogue, a folder or the Hub may have: of a path its last part, where that is a model's."""
    if bundled_model(name) or os.path.exists(expand_home(name)):
        return name
    last = name.rstrip("/").rsplit("/", 1)[-1]
    if key := base_key(normal(last)):
        remarks.append(f"{name} is taken for {key}")
        return key
    return last if variant(last) and (name.startswith(ELSEWHERE) or name.count("/") > 1) else name


def sizes_of(model: Model) -> dict[str, int]:
    """Return what a command may say of a model, by our names."""
    attention, ffn, experts = model.attention, model.feed_forward, model.experts
    sizes = {"layers": model.num_layers, "hidden": model.hidden, "heads": attention.num_heads, "kv_heads": attention.num_kv_heads}
    return {**sizes, "width": ffn.intermediate, "experts": experts.num_experts if experts else 0, "vocab": model.vocab}


def model_with(shape: Iterable[tuple[str, int]]) -> str:
    """Return the first bundled model that agrees in every stated size, "" where none does.

    >>> model_with([("layers", 32), ("hidden", 4096), ("experts", 8), ("width", 14336)])
    'mixtral-8x7b'
    """
    stated = dict(shape)
    for key in stems("models"):  # those with a file of their own first
        if all(value == stated.get(name, value) for name, value in sizes_of(catalog.model(key)).items()):
            return key
    return ""
