"""What a launch command says, and what its flags mean in each engine: its own words are put into ours, and fill the records."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby

from commtax.cost.schedules import Layout, virtual_layers
from commtax.files import parse_json
from commtax.readers.launch.flags import RULES, Reading, Value, dialect
from commtax.records import dataclass, filled
from commtax.spec import OVERLAPPED
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
UNEVEN = ("first_layers", "last_layers", "embedding_counts", "loss_counts")
SHAPE = ("layers", "hidden", "heads", "kv_heads", "width", "experts", "vocab", "top_k")
MOST_LETTERS = 100_000  # that a layout of stages may spell out
LAYOUT_TOKEN = re.compile(r"\*[0-9]{1,9}|.", re.DOTALL)
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
class Place:
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
    place: Place = Place()
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


def launched(engine: str, reading: Reading, loose: list[str], env: Mapping[str, str]) -> Launch:
    """The command of an engine, by its flags, the words that belong to none, and its variables."""
    if engine in SERVING:
        reading.values.setdefault("model", next((w for w in loose if w not in BENCHMARKS), ""))
        _served(reading)
        SERVING[engine](reading)
    else:
        TRAINING[engine](reading, loose, env)
    values = reading.values
    shape = tuple((name, reading.number(name)) for name in SHAPE if name in values)
    said = {name: values[name] for name in OPTIONS if values.get(name, "") != "" and values[name] is not False}
    phase = "serve" if engine in SERVING else "train"
    what = Launch(engine, said, "", phase, reading.text("model"), reading.text("called"), shape)
    where = replace(what, servers=filled(Servers, values), place=filled(Place, values))
    where = replace(where, stage_layers=reading.number("stage_layers"), slots=reading.number("slots"))
    return replace(where, notes=tuple(reading.notes), unread=tuple(reading.unread))


def _served(reading: Reading) -> None:
    """What all serving engines have in common."""
    values = reading.values
    if reading.number("max_num_batched_tokens", 1) < 1:  # chunking switched off
        del values["max_num_batched_tokens"]
        reading.note("chunks", "prompts are not cut into chunks here; the price cuts them at the engine's usual size")
    if "input_len" in values:
        values["spread"] = values.get("range_ratio", 0.0)  # drawn from (1 - r) to (1 + r) of the stated length
    _timed(reading)
    _adapters(reading)
    if "eplb_config" in values:
        _copied(reading)
    if reading.on("eplb") and not reading.number("redundant_experts"):
        reading.note("eplb", "experts are placed by their load: the busiest rank is priced as usual, --imbalance says otherwise")
    values["dtype"] = reading.text("quantization") or reading.text("compute")
    values["library"] = "nccl" if reading.on("plain_nccl") else reading.text("library")


def _adapters(reading: Reading) -> None:
    """A server keeps room for adapters where it is told to serve any; of a rank that is not said it takes the usual one."""
    if not reading.on("lora"):
        for name in ("lora_rank", "max_loras"):
            reading.values.pop(name, None)
    elif "lora_rank" not in reading.values:
        reading.values["lora_rank"] = USUAL_LORA_RANK
        reading.note("lora rank", f"the adapters' rank is not said: {USUAL_LORA_RANK}, vLLM's usual one")


def _copied(reading: Reading) -> None:
    """Copies of popular experts, where a table of settings tells them."""
    text = reading.text("eplb_config")
    try:
        reading.values["redundant_experts"] = int(parse_json(text, "eplb_config").get("num_redundant_experts", 0))
    except (ValueError, AttributeError, TypeError, OverflowError):
        reading.unread.append(f"--eplb-config {text}")


def _timed(reading: Reading) -> None:
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


def _vllm(reading: Reading) -> None:
    """Experts go over tp x dp; replicas on several hosts are told by how many of them are local."""
    values = reading.values
    if reading.on("expert_parallel"):
        values["ep"] = AUTO_EP
    local = reading.number("local_dp")
    if local and reading.number("dp", 1) > local:
        values.setdefault("nnodes", -(-reading.number("dp") // local))
    does = "prefill" if reading.on("prefill_worker") else "decode" if reading.on("decode_worker") else reading.text("mode")
    does = does if does in ("prefill", "decode") else ""
    if "kv_transfer" in values:
        does = _role(reading, does)
    values["role"] = does
    if "draft" in values:
        _drafted(reading)


def _role(reading: Reading, does: str) -> str:
    """Prompts or decoding, where a server does one of them: as its connector says, or else what stands around it."""
    text = reading.text("kv_transfer")
    try:
        config = parse_json(text, "kv_transfer")
        kind, role = config["kv_connector"], dialect("vllm").names["role"].get(config["kv_role"], "") or does
    except (ValueError, KeyError, TypeError):
        kind, role = "", does
    if kind != "NixlConnector" or not role:
        reading.unread.append(f"--kv-transfer-config {text}")
    return role


def _drafted(reading: Reading) -> None:
    text = str(reading.values["draft"])
    reading.values.pop("speculative", None)
    try:
        reading.values["speculative"] = int(parse_json(text, "draft")["num_speculative_tokens"])
    except (ValueError, KeyError, TypeError, OverflowError):
        reading.unread.append(f"--speculative-config {text}")


def _sglang(reading: Reading) -> None:
    """``--tp`` counts all GPUs of a server where attention is data-parallel: dp of them groups of tp / dp."""
    values, tp = reading.values, reading.number("tp", 1)
    if reading.text("role") not in ("prefill", "decode"):
        values.pop("role", None)
    exchange = reading.text("a2a", "none")
    if exchange == "deepep" or reading.on("deepep"):
        low = reading.text("deepep_mode") in ("low_latency", "auto")  # auto: prompts in bulk, decodes with low latency
        values |= {"ep_backend": "deepep_low_latency" if low else "deepep_high_throughput", "ep": tp}
    elif exchange != "none":
        reading.unread.append(f"--moe-a2a-backend {exchange}")
    if reading.on("expert_parallel"):
        values.setdefault("ep", tp)
    values["eager"] = reading.on("eager") or reading.text("graphs").lower() == "disabled"
    values["tower"] = "data" if reading.on("tower_data") else ""
    if "spread" in values:
        _drawn_below(reading)
    groups = reading.number("dp", 1)
    for name, parts in (("max_num_seqs", groups), ("max_num_batched_tokens", groups if reading.on("dp_attention") else 1)):
        if name in values:  # of the whole server: every group gets its part
            values[name] = max(1, reading.number(name) // max(1, parts))
    if reading.on("dp_attention"):
        _attention_dp(reading, groups)


def _drawn_below(reading: Reading) -> None:
    """Lengths are drawn from a share of the stated length up to all of it."""
    ratio = float(reading.values["spread"])
    mean = (1 + ratio) / 2
    if ratio < 1:
        reading.note(
            "mean length", f"lengths are drawn from {ratio:.0%} of the stated ones up to all: the mean is {mean:.0%} of them"
        )
    for name in ("input_len", "output_len"):
        if name in reading.values:
            reading.values[name] = max(1, round(reading.number(name) * mean))
    reading.values["spread"] = (1 - ratio) / (1 + ratio)


def _attention_dp(reading: Reading, groups: int) -> None:
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


def _trtllm(reading: Reading) -> None:
    """Attention data parallelism keeps attention whole on each GPU."""
    reading.values["eager"] = reading.text("graphs").lower() in ("null", "none", "~")
    if reading.text("mode") in ("prefill", "decode"):
        reading.values["role"] = reading.text("mode")
    elif reading.on("transceiver"):  # prompts are computed without the overlapping scheduler
        reading.values["role"] = "prefill" if reading.on("plain_scheduler") else "decode"
    if reading.on("dp_attention"):
        _attention_dp(reading, reading.number("tp", 1))


def _job(reading: Reading) -> None:
    """Hosts and replicas of a torchrun job; elastic jobs (1:4) count their most hosts."""
    values, world = reading.values, 1
    for name, flag in (("nnodes", "--nnodes"), ("gpus_per_node", "--nproc-per-node")):
        text = reading.text(name, "1").split(":")[-1]
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
            raise Refusal(f"from: '{flag} {text}': {RULES['int']}", "from")
        values[name] = int(text)
        world *= int(text)
    inner = reading.number("tp", 1) * reading.number("pp", 1) * reading.number("cp", 1)
    if world % inner:
        raise Refusal(f"from: tp x pp x cp = {inner} does not divide the {world} GPUs of --nnodes x --nproc-per-node", "from")
    values["dp"] = world // inner


def _megatron(reading: Reading, _loose: list[str], _env: Mapping[str, str]) -> None:
    """Sizes, schedule and optimiser of a Megatron-LM job; the model is told by its sizes."""
    _job(reading)
    values, tp = reading.values, reading.number("tp", 1)
    values["recompute"] = reading.text("recompute") or ("selective" if reading.on("selective") else "")
    eight = "mxfp8" if reading.text("fp8_recipe") == "mxfp8" else "fp8"
    values["dtype"] = eight if reading.text("fp8") else "nvfp4" if reading.text("fp4") else ""
    values["zero"] = 1 if reading.on("zero") else 0
    chunks = _chunks(reading, reading.number("pp", 1))
    values.pop("chunks", None)
    if chunks > 1:
        values |= {"schedule": "interleaved", "chunks": chunks}
    if reading.number("expert_tp", tp) != tp:
        reading.unread.append(f"--expert-tensor-parallel-size {values['expert_tp']}")
    asked = {axis: reading.on(f"overlap_{axis}") for axis in ("dp", "tp", "ep")}
    asked |= {"cp": True, "pp": chunks > 1 and not reading.on("waits_pp")}
    values["async_axes"] = ",".join(axis for axis in OVERLAPPED if asked[axis])
    if "expert_width" in values:  # beside dense layers, which have a width of their own
        values["width"] = values["expert_width"]


def _chunks(reading: Reading, pp: int) -> int:
    """Chunks a rank, told in one of three ways; a split of layers other than the priced one is said."""
    layers, chunks, each = reading.number("layers"), reading.number("chunks", 1), reading.number("layers_a_chunk")
    if each and layers:
        chunks = max(1, layers // pp // each)
    asked: list[int] = []
    if "layout" in reading.values:
        layout = reading.text("layout")
        asked = [sum(column) for column in zip(*layout_of(layout, pp), strict=True)]
        chunks, layers = len(stages(layout)) // pp, layers or sum(asked)
    elif layers and pp > 1 and any(reading.on(name) for name in UNEVEN):
        asked = _uneven(reading, layers, pp)
    priced = [sum(column) for column in zip(*virtual_layers(layers, pp, chunks), strict=True)] if asked else []
    if sorted(asked) != sorted(priced):
        theirs, ours = ("+".join(map(str, sizes)) for sizes in (asked, priced))
        reading.note("stages", f"stages of {theirs} layers are asked for; priced as {ours}")
    return chunks


def stages(text: str) -> list[str]:
    """What each virtual stage of Megatron's ``--pipeline-model-parallel-layout`` holds, in the order of the model.

    ``E`` is the embedding, ``t`` a layer, ``m`` a layer of multi-token prediction, ``L`` head and loss; ``|`` ends a stage, ``*n``
    repeats the letter or the group before it, and commas only please the eye.

    >>> stages("Et*3|(tt|)*2L")
    ['Ettt', 'tt', 'tt', 'L']
    """
    letters: list[str] = []
    group, unit = 0, 0  # where a group began, how many letters a "*n" repeats
    for token in LAYOUT_TOKEN.findall(text):
        if token in "EtmL|":
            letters.append(token)
            unit = 1
        elif token == "(":
            group = len(letters)
        elif token == ")":
            unit = len(letters) - group
        elif token[0] == "*" and unit and len(token) > 1:
            last, times = letters[len(letters) - unit :], int(token[1:])
            if len(letters) + unit * times > MOST_LETTERS:
                raise Refusal(f"from: pipeline-model-parallel-layout spells out more than {MOST_LETTERS:,} letters", "from")
            letters[len(letters) - unit :] = last * times
            unit = 0
        elif token not in ", '\"":
            raise Refusal(
                f"from: pipeline-model-parallel-layout '{text:.40}': E, t, m, L, |, (…) and *n are known, not '{token}'", "from"
            )
    return "".join(letters).split("|")


def layout_of(text: str, pp: int) -> Layout:
    """Layers of each virtual stage, by chunk and rank."""
    virtual = stages(text)
    if len(virtual) % pp:
        raise Refusal(f"from: pipeline-model-parallel-layout has {len(virtual)} stages, which pp={pp} does not divide", "from")
    sizes = [stage.count("t") for stage in virtual]
    return tuple(tuple(sizes[i : i + pp]) for i in range(0, len(sizes), pp))


def layout_text(layout: Layout) -> str:
    """The layout as Megatron reads it, equal stages beside each other in one group.

    >>> layout_text(((3, 4, 4), (4, 4, 3)))
    'Ettt|(tttt|)*4tttL'
    """
    first, *inner, last = ("t" * size for chunk in layout for size in chunk)
    runs = [(stage, len(list(run))) for stage, run in groupby(inner)]
    return "".join([f"E{first}|", *(f"({stage}|)*{n}" if n > 1 else f"{stage}|" for stage, n in runs), f"{last}L"])


def _uneven(reading: Reading, layers: int, pp: int) -> list[int]:
    """Layers of each rank where the first or the last stage has a number of its own."""
    usual = -(-layers // pp) - 1
    first = reading.number("first_layers") or (usual if reading.on("embedding_counts") else 0)
    last = reading.number("last_layers") or (usual if reading.on("loss_counts") else 0)
    inner = pp - bool(first) - bool(last)
    return [first] * bool(first) + [(layers - first - last) // max(1, inner)] * inner + [last] * bool(last)


def _torchtitan(reading: Reading, loose: list[str], env: Mapping[str, str]) -> None:
    """Sizes of a torchtitan job; its model is a flavour of a family."""
    values = reading.values
    for name, variable, usual in (("gpus_per_node", "NGPU", "8"), ("flavour", "CONFIG", ""), ("family", "MODULE", "")):
        values.setdefault(name, env.get(variable, usual))
    for word in loose:
        name, _, kind = word.replace("_", "-").partition(":")
        values |= {"recompute": kind} if name == "activation-checkpoint" else {}
    _job(reading)
    values["zero"] = 3
    if (copies := reading.number("copies", 1)) > 1:
        values["hsdp"] = reading.number("dp") // copies
    _batches(reading)
    values |= {"chunks": 2} if reading.text("schedule") == "interleaved" else {}
    flavour = reading.text("flavour")
    name = flavour if "_" in flavour else f"{reading.text('family')}_{flavour}"
    values["model"] = dialect("torchtitan").names["model"].get(name.lower(), "")
    if flavour and not values["model"]:
        reading.unread.append(f"--config {flavour}")


def _batches(reading: Reading) -> None:
    """Sequences of a microbatch and of a step, told in tokens (from 0.5) or in sequences (before)."""
    values, length, tokens = reading.values, reading.number("context"), reading.number("micro_tokens")
    of_a_stage, local, dp = reading.number("micro_batch", 1), reading.number("local_batch"), reading.number("dp")
    values.pop("micro_batch", None)
    if length and tokens:
        values["micro_batch"] = tokens // length
    elif local:
        values["micro_batch"] = of_a_stage if reading.number("pp", 1) > 1 else local
        values.setdefault("global_batch", local * dp)
    if length and reading.number("step_tokens") > 0:
        values["global_batch"] = reading.number("step_tokens") // length
    elif tokens and reading.number("micro_batch"):
        values["global_batch"] = reading.number("micro_batch") * reading.number("flight", 1) * dp


SERVING: Mapping[str, Callable[[Reading], None]] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
TRAINING: Mapping[str, Callable[[Reading, list[str], Mapping[str, str]], None]] = {"megatron": _megatron, "torchtitan": _torchtitan}
