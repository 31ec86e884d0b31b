"""What a launch command says, in our words, and what flags mean in every engine."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from commtax.catalog.programs import program
from commtax.launch.flags import COMMON, FlagReading, SaidValues, command_of
from commtax.options import options
from commtax.records import dataclass
from commtax.spec import AXES, SIZES
from commtax.statement import Note, Refusal

AUTO_EP = -1  # experts over tp x dp
PRICED_WHOLE = (
    "priced as whole experts spread over them: the same bytes and weights, and a busiest rank, which experts that are split do not "
    "have (--imbalance 1 leaves it out)"
)
LOAD = frozenset(name for name, option in options().items() if option.part in ("requests", "offered"))
"""What a benchmark sends; ``spread`` is that of the lengths it draws, as a share of their mean to either side."""
TOLD = tuple(dict.fromkeys((*COMMON["told"].split(), *options())))
"""Options of ours that a command may set, in the order in which they are told."""
SHAPE = ("layers", "hidden", "heads", "kv_heads", "width", "experts", "vocab", "top_k")


@dataclass(frozen=True, slots=True)
class Servers:
    count: int = 1  # equal ones
    role: str = ""  # "prefill" or "decode" where a server does one of them
    prefill_tp: int | None = None  # of the servers for prompts beside those that decode
    prefill_dp: int | None = None
    prefill_workers: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """Where it runs; None or "" is what it leaves to the engine."""

    nnodes: int | None = None
    gpus_per_node: int | None = None
    devices: tuple[str, ...] = ()
    address: str = ""  # where the hosts of one job meet
    chip: str = ""  # of the catalogue, where a manifest selects its hosts by it


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, read. The model is told by its name, or by its ``shape``."""

    engine: str
    options: SaidValues  # what it leaves to the engine is not in them
    version: str = ""
    phase: str = "serve"  # or train
    model: str = ""
    called: str = ""  # the name that clients call it
    shape: tuple[tuple[str, int], ...] = ()
    servers: Servers = Servers()
    place: LaunchPlace = LaunchPlace()
    stage_layers: int = 0  # of a chunk, where that is told instead of the chunks
    slots: int = 0  # experts of all ranks, copies of popular ones among them, where that is told instead of the copies
    notes: tuple[Note, ...] = ()
    unread: tuple[str, ...] = ()
    client: bool = False  # it sends requests to a server that something else started

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of one server's plan, experts over tp x dp counted out."""
        sizes = {name: int(self.options.get(name, 1)) for name in SIZES}
        over_all = int(self.options.tp or 1) * int(self.options.dp or 1)
        return {axis: over_all if size == AUTO_EP else size for axis, size in sizes.items()}

    @property
    def num_gpus(self) -> int:
        one = math.prod(self.axes[axis] for axis in AXES)
        ahead = self.servers
        return one * ahead.count + (ahead.prefill_workers or 0) * (ahead.prefill_tp or 1) * (ahead.prefill_dp or 1)

    def chunks_of(self, layers: int) -> int:
        """Chunks a rank of a model with so many layers; 0 where nothing tells them."""
        whole = int(self.options.pp or 1) * self.stage_layers  # first and last stages may have fewer
        return max(1, math.ceil(layers / whole)) if whole and self.options.schedule else int(self.options.chunks or 0)


def make_launch(engine: str, reading: FlagReading, loose: list[str], env: Mapping[str, str]) -> Launch:
    """Return the command of an engine, by its flags, the words that belong to none, and its variables."""
    values, trains = reading.values, program(engine).trains
    if not trains:
        values.setdefault("model", next((w for w in loose if w not in COMMON["subcommands"]), ""))
        _settle_serving(reading)
    command_of(engine).understand(reading, loose, env)
    shape = tuple((name, int(values[name])) for name in SHAPE if name in values)
    said = SaidValues({name: value for name in TOLD if (value := values.get(name, "")) != "" and value is not False})
    place = LaunchPlace(int(values.nnodes or 0) or None, int(values.gpus_per_node or 0) or None, (), str(values.address))
    launch = Launch(engine, said, "", "train" if trains else "serve", str(values.model), str(values.called), shape)
    launch = replace(launch, servers=Servers(role=str(values.role)), place=place, notes=tuple(reading.notes))
    return replace(launch, stage_layers=int(values.stage_layers or 0), slots=int(values.slots or 0), unread=tuple(reading.unread))


def _settle_serving(reading: FlagReading) -> None:
    values = reading.values
    if values.max_num_batched_tokens != "" and int(values.max_num_batched_tokens) < 1:  # chunking switched off
        values.max_num_batched_tokens = ""
        reading.note("chunks", "prompts are not cut into chunks here; the price cuts them at the engine's usual size")
    if values.input_len != "":
        values.spread = values.get("range_ratio", 0.0)  # drawn from (1 - r) to (1 + r) of the stated length
    words = (values.request_rate, values.burstiness)
    rate, gaps = (float(word) if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", str(word)) else "" for word in words)
    # A finite rate makes requests in time, as many as are stated. Without one, clients make a closed loop, which has no end here.
    values.request_rate, values.burstiness = rate or "", gaps if rate else ""
    if not rate:
        values.num_prompts = ""
    if not reading.values.lora:
        reading.values.lora_rank = reading.values.max_loras = ""
    elif reading.values.lora_rank == "":
        reading.values.lora_rank = rank = int(COMMON["lora_rank"])
        usual = f"{program(COMMON['lora_rank_of']).title}'s usual one"
        reading.note("lora rank", f"the adapters' rank is not said: {rank}, {usual}")
    values.dtype = str(values.quantization) or str(values.compute)
    values.library = COMMON["plain_library"] if values.plain_nccl else values.library


def group_attention(reading: FlagReading, groups: int) -> None:
    """A server whose attention runs in ``groups``: our tp is what is left of it inside a group."""
    values, total = reading.values, int(reading.values.tp or 1)
    if total % groups:
        raise Refusal(f"from: attention in {groups} groups does not divide the server's {total} GPUs", "from")
    if values.ep == "" and groups > 1:
        values.ep = total
        reading.note("experts spread", f"experts split over all {total} GPUs are {PRICED_WHOLE}")
    values.tp, values.dp = total // groups, groups
