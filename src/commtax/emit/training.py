"""The command of a training job: Megatron-LM, or torchtitan under torchrun.

torchtitan counts tokens, not sequences, since 0.5; it has one microbatch in flight unless ``num_pp_microbatches`` says more;
recomputation is a word at the end since pull request 3674 (June 2026).
"""

import itertools
import math
from collections.abc import Callable, Mapping

from commtax.cost.schedules import SCHEDULES, virtual_layers
from commtax.emit.serving import Job, above_one
from commtax.readers.launch.flags import dialect, spelled
from commtax.readers.launch.meaning import layout_text
from commtax.spec import SIZES, Experts, Mlp, Model, Plan
from commtax.statement import Refusal

MEGATRON_SCHEDULES = ("1f1b", "interleaved")


def megatron(job: Job) -> str:
    """Megatron-LM: sizes of the plan, then the model's; the data and the learning rate are yours."""
    plan, q = job.plan, job.question
    beside = q.what_if.beside(q.engine)
    if plan.zero > 1:
        raise Refusal(f"emit 'megatron': its optimiser is ZeRO 0 or 1, not {plan.zero}", "emit")
    sizes = {"tp": int(plan.tp), "pp": int(plan.pp), **_wider(plan)}
    flags = spelled("megatron", **sizes, sequence_parallel=plan.sequence_parallel, zero=plan.zero == 1)
    flags += [*_stages(q.model, plan), *spelled("megatron", recompute=_granularity(plan))]
    flags += [f"--recompute-modules {' '.join(plan.remade)}"] * bool(plan.remade)
    flags += ["--recompute-method uniform --recompute-num-layers 1"] * (plan.recompute == "full")
    flags += spelled("megatron", micro_batch=int(q.micro_batch), global_batch=_global_batch(job), context=int(q.context))
    flags += ["--bf16", *_narrow(plan.weights_dtype)]
    flags += spelled("megatron", overlap_dp="dp" in beside)
    flags += ["--overlap-param-gather"] * ("dp" in beside and plan.zero == 1)
    flags += spelled("megatron", overlap_tp="tp" in beside, overlap_ep="ep" in beside)
    flags += spelled("megatron", waits_pp=plan.chunks > 1 and "pp" not in beside)
    command = " ".join([_torchrun(job), "pretrain_gpt.py", *flags, *_shape(q.model)])
    if plan.pp == 1 or plan.schedule in MEGATRON_SCHEDULES:
        return command
    return f"# no flag of Megatron-LM names the schedule {plan.schedule}: this runs 1F1B\n{command}"


def _granularity(plan: Plan) -> str:
    return "selective" if plan.remade else "" if plan.recompute == "none" else plan.recompute


def _narrow(dtype: str) -> list[str]:
    """The number format of the products, where it is not bf16."""
    if dtype == "mxfp8":
        return spelled("megatron", fp8="e4m3", fp8_recipe="mxfp8")
    return spelled("megatron", fp8="hybrid" if dtype == "fp8" else "", fp4="e2m1" if dtype == "nvfp4" else "")


def _wider(plan: Plan) -> dict[str, int]:
    """The axes beyond tensors, stages and replicas, where they split anything."""
    return {axis: above_one(getattr(plan, axis)) for axis in reversed(SIZES[3:])}


def torchtitan(job: Job) -> str:
    """torchtitan under torchrun: degrees of the plan, and the step in tokens."""
    plan, q, kind = job.plan, job.question, SCHEDULES[job.plan.schedule].torchtitan
    if not kind:
        raise Refusal(f"emit 'torchrun': torchtitan has no schedule {plan.schedule}", "emit")
    if plan.zero != 3:
        raise Refusal(f"emit 'torchrun': torchtitan shards with FSDP (zero 3), not {plan.zero}", "emit")
    flavour = dialect("torchtitan").theirs("model", q.model.key)
    family = flavour.rsplit("_", 1)[0]
    flags = spelled("torchtitan", family=family or "$MODULE", flavour=flavour or "$CONFIG")
    flags += spelled("torchtitan", tp=above_one(plan.tp), pp=above_one(plan.pp), **_wider(plan))
    shards = int(plan.num_shards)
    flags += spelled("torchtitan", shards=shards, copies=above_one(int(plan.dp) // shards))
    if plan.pp > 1:
        flags += spelled("torchtitan", schedule=kind, flight=int(plan.microbatches))
        flags += _titan_stages(q.model, plan) if plan.chunks > 2 else []  # two are its own choice
    length, micro = int(q.context), int(q.micro_batch)
    flags += spelled("torchtitan", context=length, micro_tokens=micro * length, step_tokens=_global_batch(job) * length)
    command = " ".join([_torchrun(job), "-m torchtitan.train", *flags, f"activation-checkpoint:{plan.recompute}"])
    return command if "fp8" not in plan.weights_dtype else f"# float8 is switched on in the configuration, not here\n{command}"


TRAINERS: Mapping[str, Callable[[Job], str]] = {"megatron": megatron, "torchrun": torchtitan}


def _torchrun(job: Job) -> str:
    per = min(job.gpus, job.question.cluster.gpus_per_host)
    if job.gpus % per:
        raise Refusal(f"emit: {job.gpus} GPUs do not fill hosts of {per}; torchrun starts as many ranks on each", "emit")
    start = ["torchrun", *spelled("torchrun", gpus_per_node=per, nnodes=above_one(job.hosts))]
    return " ".join(start + [f"--node-rank $NODE_RANK --master-addr {job.address} --master-port 29500"] * (job.hosts > 1))


def _global_batch(job: Job) -> int:
    return int(job.plan.microbatches) * int(job.question.micro_batch) * int(job.plan.dp)


def _stages(model: Model, plan: Plan) -> list[str]:
    """How layers lie on the stages: told one by one where they do not divide, because Megatron refuses to guess."""
    pp, chunks = int(plan.pp), plan.chunks if plan.schedule == "interleaved" else 1
    if pp == 1 or model.num_layers % (pp * chunks) == 0:
        return spelled("megatron", chunks=above_one(chunks)) if pp > 1 else []
    return spelled("megatron", layout=f"'{layout_text(virtual_layers(model.num_layers, pp, chunks))}'")


def _titan_stages(model: Model, plan: Plan) -> list[str]:
    """torchtitan cuts stages of equal depth, with fewer layers on the first and the last."""
    layout = virtual_layers(model.num_layers, int(plan.pp), plan.chunks)
    each = max(map(max, layout))
    less = {"first": each - layout[0][0], "last": each - layout[-1][-1]}
    if math.ceil((model.num_layers + sum(less.values())) / each) != int(plan.pp) * plan.chunks:
        raise Refusal(
            f"emit 'torchrun': torchtitan cuts {model.num_layers} layers on pp={int(plan.pp)} into 2 chunks, not {plan.chunks}",
            "emit",
        )
    ends = [f"--parallelism.pipeline_parallel_{end}_stage_less_layers {count}" for end, count in less.items()]
    return [*spelled("torchtitan", stage_layers=each), *ends]


def _shape(model: Model) -> list[str]:
    """The model as Megatron is told it: its sizes, and what its layers are made of. The base of rotary positions is yours."""
    flags = [*spelled("megatron", layers=model.num_layers, hidden=model.hidden), *_attention(model), *_feed_forward(model)]
    flags += ["--position-embedding-type rope"] * (not model.positions) + ["--normalization RMSNorm"] * (not model.norm_bias)
    flags += ["--untie-embeddings-and-output-weights"] * (not model.tied)
    return [*flags, *spelled("megatron", vocab=model.vocab, positions=model.max_len)]


def _attention(model: Model) -> list[str]:
    attention = model.attention
    flags = spelled("megatron", heads=attention.num_heads)
    if latent := attention.latent:
        flags += ["--multi-latent-attention"] + [f"--q-lora-rank {latent.q_rank}"] * (latent.q_rank > 1)
        flags.append(f"--kv-lora-rank {latent.kv_rank} --qk-head-dim {latent.nope_dim} --qk-pos-emb-head-dim {latent.rope_dim}")
        flags.append(f"--v-head-dim {attention.v_head_dim}")
    elif attention.num_kv_heads != attention.num_heads:
        flags += ["--group-query-attention", *spelled("megatron", kv_heads=attention.num_kv_heads)]
    if not latent and attention.head_dim * attention.num_heads != model.hidden:
        flags.append(f"--kv-channels {attention.head_dim}")
    flags += ["--qk-layernorm"] * bool(attention.qk_norm or latent)
    return flags + ["--add-qkv-bias"] * (attention.qkv_bias and not attention.out_bias)


def _feed_forward(model: Model) -> list[str]:
    """Widths of dense layers and of experts, and which layers have which."""
    kinds = [f for i in model.layers if (f := model.blocks[i].ffn)]
    dense = next((f for f in kinds if isinstance(f, Mlp)), None)
    last, experts = kinds[-1], model.experts
    flags = spelled("megatron", width=(dense or last).intermediate)
    if experts:
        flags += spelled("megatron", experts=experts.num_experts, top_k=experts.top_k)
        shared = experts.shared_intermediate
        flags += [f"--moe-shared-expert-intermediate-size {shared}"] * (shared > 1)
    if experts and dense:
        runs = itertools.groupby(isinstance(f, Experts) for f in kinds)
        freq = "+".join(f"[{int(routed)}]*{len(list(run))}" for routed, run in runs)
        flags += [*spelled("megatron", expert_width=experts.intermediate), f"--moe-layer-freq '({freq})'"]
    bias = last.bias or model.attention.out_bias
    return flags + ["--swiglu"] * last.gated + ["--disable-bias-linear"] * (not bias)
