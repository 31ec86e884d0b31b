"""What a training log says of its plan, its model and its GPUs: an argument dump is read as the command that it came from."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from commtax import catalog
from commtax.catalog.foreign_names import find_device_chip, model_key
from commtax.catalog.hf import from_config
from commtax.files import table
from commtax.launch.flags import flags_of
from commtax.launch.launch_options import model_with
from commtax.launch.read_command import parse
from commtax.records import record_from
from commtax.runs.logs.training_log import TrainingLog, mesh
from commtax.spec import AXES, Model, Plan
from commtax.statement import Note, Refusal
from commtax.thresholds import thresholds
from commtax.units import GiB, parse_count
from commtax.verbs.keywords import CompareOptions

_TABLE = table("runs/logs/training_plan.toml")
COUNT, LEVEL = thresholds(__name__)


@dataclass(frozen=True, slots=True)
class LoggedPlan:
    """``options`` are those of a training question; "", 0 and None where the log does not say."""

    engine: str
    options: Mapping[str, object] = field(default_factory=dict)
    model: Model | None = None
    chip: str = ""
    gpus: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def cluster(self) -> str:
        """As many hosts of the chip as the run has GPUs; "" where either is not told."""
        if not self.chip or not self.gpus:
            return ""
        each = catalog.chip(self.chip).gpus_per_host
        hosts = -(-self.gpus // each)
        return f"{hosts}x{each}x{self.chip}" if hosts > 1 else f"{self.gpus}x{self.chip}"


def logged_plan(log: TrainingLog) -> LoggedPlan:
    """The plan, the model and the chip of a log."""
    return _by_mesh(log) if log.program == "torchtitan" else _by_arguments(log)


def _by_mesh(log: TrainingLog) -> LoggedPlan:
    """torchtitan says its mesh, its batches, its model's name and its device."""
    facts, sizes = log.facts, mesh(log.facts)
    options: dict[str, object] = dict(sizes)
    if batch := facts.get("batch"):
        local, over_all, length = map(int, batch)
        plan = record_from(Plan, sizes)
        if plan.pp > 1:  # which cuts a replica's batch into as many microbatches as it has stages
            local = max(1, over_all // int(plan.dp) // int(plan.pp))
        options |= CompareOptions(global_batch=over_all, context=length, micro_batch=local)
    if log.steps and "recompute" in facts:
        options |= CompareOptions(recompute=_TABLE["recomputed"].get(facts["recompute"][0].lower(), "none"))
    if facts and "compiled" not in facts:
        options |= CompareOptions(eager=True)
    if facts.get("sharded", ("",))[0] == "DDP":
        options |= CompareOptions(zero=0)
    key = model_key(facts["model"][0]) if "model" in facts else ""
    gpus = math.prod(sizes.get(axis, 1) for axis in AXES)
    return LoggedPlan("torchtitan", options, catalog.model(key) if key else None, _chip(log), gpus if sizes else 0)


def _chip(log: TrainingLog) -> str:
    """The chip of the device's name whose memory is the one that was reported."""
    if "device" not in log.facts:
        return ""
    name, reported = log.facts["device"][0], float(log.facts["device"][1]) * GiB
    key = find_device_chip(name)
    if not key:
        return ""
    first = key.partition("-")[0]
    alike = [key, *(other for other in catalog.keys("chips") if other.partition("-")[0] == first)]
    near = [other for other in alike if abs(catalog.chip(other).visible_bytes / reported - 1) <= LEVEL.memory_tolerance]
    return min(near, key=lambda other: abs(catalog.chip(other).visible_bytes / reported - 1)) if near else key


def _by_arguments(log: TrainingLog) -> LoggedPlan:
    """Megatron's dump is its command line, every argument spelled out; DeepSpeed's config has the batches."""
    arguments = _flags_of_arguments(log.arguments)
    engine = _engine(log)
    if not arguments:
        return LoggedPlan(engine)
    known = flags_of("megatron").flags
    given = [(name, value) for name, value in arguments.items() if name in known]
    words = [f"--{name}" if value == "True" else f"--{name} {shlex.quote(value)}" for name, value in given]
    world = arguments.get("world-size", "")
    axes = "tensor-model", "pipeline-model", "context"
    inner = math.prod(_count(arguments.get(f"{axis}-parallel-size", ""), 1) for axis in axes)
    gpus = _count(world) or inner * _count(arguments.get("data-parallel-size", ""), 1)
    try:
        launch = parse(f"torchrun --nproc-per-node={gpus} pretrain_gpt.py {' '.join(words)}")
    except Refusal as refusal:
        return LoggedPlan(engine, notes=(Note("arguments", f"the logged arguments make no plan: {refusal}"),))
    told_all = "world-size" in arguments or "data-parallel-size" in arguments
    options: dict[str, object] = {name: value for name, value in launch.options.items() if told_all or name != "dp"}
    if chunks := launch.chunks_of(_count(arguments.get("num-layers", ""))):
        options |= CompareOptions(chunks=chunks)
    options |= CompareOptions(async_axes=tuple(axis for axis in str(launch.options.async_axes).split(",") if axis))
    try:
        model = _model(dict(launch.shape), arguments, log)
    except Refusal as refusal:
        return LoggedPlan(engine, options, None, "", gpus if told_all else 0, (Note("arguments", f"no model: {refusal}"),))
    return LoggedPlan(engine, options, model, "", gpus if told_all else 0)


def _engine(log: TrainingLog) -> str:
    if log.program != "megatron":
        return str(_TABLE["engines"].get(log.program, "megatron"))
    if log.arguments.get("deepspeed") == "True" or "train_micro_batch_size_per_gpu" in log.arguments:
        return "megatron-deepspeed"
    return "megatron-bridge" if "bridge" in log.facts else "megatron"


def _flags_of_arguments(arguments: Mapping[str, str]) -> dict[str, str]:
    """Arguments by the names of flags, those that are set; what belongs to features that are off is left out."""
    made: dict[str, str] = {}
    for name, value in arguments.items():
        if value not in _TABLE["unset"]:
            made.setdefault(_TABLE["renamed"].get(name, name).replace("_", "-"), value)
    if not _count(made.get("num-experts", "").strip("[]")) > 1:
        made = {name: value for name, value in made.items() if not name.startswith("moe-") and name != "num-experts"}
    if made.get("group-query-attention") != "True" and "num-attention-heads" in made:
        made["num-query-groups"] = made["num-attention-heads"]
    if "checkpoint-activations" in made:  # before there were kinds of it
        made.setdefault("recompute-granularity", "full")
    if "num-virtual-stages-per-pipeline-rank" in made:
        made.pop("num-layers-per-virtual-pipeline-stage", None)
    return made


def _count(text: str, usual: int = 0) -> int:
    try:
        return parse_count(text, "argument")
    except ValueError:
        return usual


def _model(shape: dict[str, int], arguments: Mapping[str, str], log: TrainingLog) -> Model | None:
    """The bundled model of these sizes, or one made of them; None where sizes are missing."""
    if not {"layers", "hidden", "heads"} <= shape.keys():
        return None
    vocab = int(log.facts["vocab"][0]) if "vocab" in log.facts else _count(arguments.get("padded-vocab-size", ""))
    if "vocab" in log.facts:
        shape = {**shape, "vocab": vocab}
    if key := model_with(shape.items()):
        return catalog.model(key)
    vocab = shape.get("vocab", vocab)
    if not vocab:
        return None
    gated, hidden, heads = "swiglu" in arguments, shape["hidden"], shape["heads"]
    config: dict[str, object] = {
        "hidden_size": hidden,
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": shape.get("kv_heads", heads),
        "head_dim": _count(arguments.get("kv-channels", ""), hidden // heads),
        "intermediate_size": shape.get("width", 4 * hidden),
        "vocab_size": vocab,
        "max_position_embeddings": _count(arguments.get("max-position-embeddings", ""), COUNT.usual_length),
        "tie_word_embeddings": "untie-embeddings-and-output-weights" not in arguments,
        "torch_dtype": "float16" if "fp16" in arguments else "bfloat16",
    }
    if "experts" in shape:
        config |= {"num_local_experts": shape["experts"], "num_experts_per_tok": shape.get("top_k", 2)}
        return from_config({**config, "architectures": ["MixtralForCausalLM"]}, "logged")
    if gated:
        return from_config({**config, "architectures": ["LlamaForCausalLM"]}, "logged")
    own = {"n_embd": hidden, "n_layer": shape["layers"], "n_head": heads, "n_inner": config["intermediate_size"]}
    own |= {"n_positions": config["max_position_embeddings"], "vocab_size": vocab, "tie_word_embeddings": True}
    return from_config({**own, "architectures": ["GPT2LMHeadModel"], "torch_dtype": config["torch_dtype"]}, "logged")
