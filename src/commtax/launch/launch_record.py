"""What a launch command says, in our words, and what flags mean in every engine."""

import math
import re
from collections.abc import Mapping

from commtax.catalog.programs import program
from commtax.files import need_object, need_whole, parse_json
from commtax.launch.flags import FlagReading, Value, command_of
from commtax.records import dataclass
from commtax.statement import Note, Refusal

AUTO_EP = -1  # experts over tp x dp
LOAD = ("concurrency", "input_len", "output_len", "spread", "request_rate", "burstiness", "num_prompts")
"""What a benchmark sends; ``spread`` is that of the lengths it draws, as a share of their mean to either side."""
OPTIONS = (
    *("tp", "pp", "dp", "ep", "cp", "dtype", "kv_dtype", "lora_rank", "max_loras", "redundant_experts"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size", "kv_cache_memory_bytes"),
    *("recurrent_dtype", "eager", "library", "ep_backend", "speculative", "tower", *LOAD),
    *("micro_batch", "global_batch", "context", "recompute", "sequence_parallel", "schedule", "chunks", "zero", "hsdp"),
    "async_axes",
)
"""Options of ours that a command may set."""
USUAL_LORA_RANK = 16  # max_lora_rank of vLLM's LoRAConfig
SHAPE = ("layers", "hidden", "heads", "kv_heads", "width", "experts", "vocab", "top_k")
BENCHMARKS = ("throughput", "latency")
"""Words behind ``trtllm-bench`` that are no model."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers beside each other."""

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


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, read. The model is told by its name, or (Megatron) by its ``shape``."""

    engine: str
    options: Mapping[str, Value]  # what it leaves to the engine is not in them
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

    def number(self, name: str, usual: int = 0) -> int:
        return int(self.options.get(name, usual))

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of one server's plan, experts over tp x dp counted out."""
        sizes = {name: self.number(name, 1) for name in ("tp", "pp", "dp", "ep", "cp")}
        return {**sizes, "ep": sizes["tp"] * sizes["dp"]} if sizes["ep"] == AUTO_EP else sizes

    @property
    def num_gpus(self) -> int:
        one = math.prod(size for axis, size in self.axes.items() if axis != "ep")
        ahead = self.servers
        return one * ahead.count + (ahead.prefill_workers or 0) * (ahead.prefill_tp or 1) * (ahead.prefill_dp or 1)

    def chunks_of(self, layers: int) -> int:
        """Chunks a rank of a model with so many layers; 0 where nothing tells them."""
        whole = self.number("pp", 1) * self.stage_layers  # first and last stages may have fewer
        return max(1, math.ceil(layers / whole)) if whole and "schedule" in self.options else self.number("chunks")


def make_launch(engine: str, reading: FlagReading, loose: list[str], env: Mapping[str, str]) -> Launch:
    """The command of an engine, by its flags, the words that belong to none, and its variables."""
    values, trains = reading.values, program(engine).trains
    if not trains:
        values.setdefault("model", next((w for w in loose if w not in BENCHMARKS), ""))
        _settle_serving(reading)
    command_of(engine).understand(reading, loose, env)
    shape = tuple((name, reading.number(name)) for name in SHAPE if name in values)
    said = {name: values[name] for name in OPTIONS if values.get(name, "") != "" and values[name] is not False}
    return Launch(
        engine,
        said,
        phase="train" if trains else "serve",
        model=reading.text("model"),
        called=reading.text("called"),
        shape=shape,
        servers=Servers(role=reading.text("role")),
        place=LaunchPlace(reading.number("nnodes") or None, reading.number("gpus_per_node") or None, (), reading.text("address")),
        stage_layers=reading.number("stage_layers"),
        slots=reading.number("slots"),
        notes=tuple(reading.notes),
        unread=tuple(reading.unread),
    )


def _settle_serving(reading: FlagReading) -> None:
    """What all serving engines have in common."""
    values = reading.values
    if reading.number("max_num_batched_tokens", 1) < 1:  # chunking switched off
        del values["max_num_batched_tokens"]
        reading.note("chunks", "prompts are not cut into chunks here; the price cuts them at the engine's usual size")
    if "input_len" in values:
        values["spread"] = values.get("range_ratio", 0.0)  # drawn from (1 - r) to (1 + r) of the stated length
    _settle_request_rate(reading)
    _adapters(reading)
    if "eplb_config" in values:
        _settle_redundant_experts(reading)
    if reading.on("eplb") and not reading.number("redundant_experts"):
        reading.note("eplb", "experts are placed by their load: the busiest rank is priced as usual, --imbalance says otherwise")
    values["dtype"] = reading.text("quantization") or reading.text("compute")
    values["library"] = "nccl" if reading.on("plain_nccl") else reading.text("library")


def _adapters(reading: FlagReading) -> None:
    """A server keeps room for adapters where it is told to serve any; of a rank that is not said it takes the usual one."""
    if not reading.on("lora"):
        for name in ("lora_rank", "max_loras"):
            reading.values.pop(name, None)
    elif "lora_rank" not in reading.values:
        reading.values["lora_rank"] = USUAL_LORA_RANK
        reading.note("lora rank", f"the adapters' rank is not said: {USUAL_LORA_RANK}, vLLM's usual one")


def _settle_redundant_experts(reading: FlagReading) -> None:
    """Copies of popular experts, where a table of settings tells them."""
    text = reading.text("eplb_config")
    try:
        said = need_object(parse_json(text, "eplb_config"))
        reading.values["redundant_experts"] = need_whole(said.get("num_redundant_experts", 0))
    except (ValueError, TypeError, OverflowError):
        reading.unread.append(f"--eplb-config {text}")


def _settle_request_rate(reading: FlagReading) -> None:
    """A finite rate makes requests in time, as many as are said; without one clients make a closed loop, which has no end here."""
    values = reading.values
    words = {name: str(values.pop(name)) for name in ("request_rate", "burstiness") if name in values}
    numbers: dict[str, Value] = {
        name: float(text) for name, text in words.items() if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", text)
    }
    if numbers.get("request_rate"):
        values.update(numbers)
    else:
        values.pop("num_prompts", None)


def group_attention(reading: FlagReading, groups: int) -> None:
    """A server whose attention runs in ``groups``: our tp is what is left of it inside a group."""
    values, total = reading.values, reading.number("tp", 1)
    if total % groups:
        raise Refusal(f"from: attention in {groups} groups does not divide the server's {total} GPUs", "from")
    if "ep" not in values and groups > 1:
        values["ep"] = total
        reading.note(
            "experts spread",
            f"experts split over all {total} GPUs are priced as experts spread over them: the same bytes and weights",
        )
    values |= {"tp": total // groups, "dp": groups}
