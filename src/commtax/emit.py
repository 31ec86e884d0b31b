"""A plan -> the command that launches it, and the commands that would check it.

Flags are those of November 2026, read in the engines' own parsers and documents:

* vLLM docs/serving/parallelism_scaling.md and data_parallel_deployment.md: ``--nnodes``, ``--node-rank``, ``--master-addr``,
  ``--headless``, ``--data-parallel-size-local``, Ray's span strategy.
* SGLang docs/advanced_features/server_arguments.md: ``--tp``, ``--dp``, ``--ep``, ``--enable-dp-attention``, ``--dist-init-addr``;
  ``--cuda-graph-backend-decode disabled`` and its twin for prefill took the place of ``--disable-cuda-graph``.
* TensorRT-LLM tensorrt_llm/commands/serve.py: ``--tp_size``, ``--ep_size``, ``--config`` (once ``--extra_llm_api_options``).
* Workers of their own for prompts: vLLM docs/features/nixl_connector_usage.md, SGLang docs/advanced_features/pd_disaggregation.md,
  TensorRT-LLM examples/disaggregated/README.md.
* Megatron-LM megatron/training/arguments.py: also what makes a model more than its sizes (norms, rotary positions, biases,
  ``--kv-channels``, latent attention, shared experts).
* torchtitan torchtitan/config: tokens, not sequences, since 0.5; ``--parallelism.num_pp_microbatches`` (1 unless it is said);
  recomputation is a word at the end, ``activation-checkpoint:full``, since pull request 3674 (June 2026).

``readers.launch.parse`` reads it all back.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from commtax.api.billing import StepBill
from commtax.api.train_billing import TrainBill
from commtax.cost.placement import span
from commtax.cost.schedules import SCHEDULES
from commtax.cost.serving import SPREAD
from commtax.cost.stages import virtual_layers
from commtax.ledger import Line
from commtax.readers.launch_flags import FLAVOURS
from commtax.readers.stage_layout import layout_text
from commtax.spec import Cluster, Experts, Mlp, Model, Plan
from commtax.statement import Refusal
from commtax.units import format_bytes

ENGINES = ("vllm", "sglang", "trtllm", "megatron", "torchrun")
SERVING = ("vllm", "sglang", "trtllm")
Written = tuple[list[str], str, list[str]]
"""Lines before a command, the command, lines after it."""
PORT, DOOR = 8100, 8998
"""First ports of servers beside each other, and of those where SGLang's prompt servers are met."""
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
PERF = {
    "all-reduce": "all_reduce_perf",
    "all-gather": "all_gather_perf",
    "reduce-scatter": "reduce_scatter_perf",
    "all-to-all": "alltoall_perf",
    "send-recv": "sendrecv_perf",
    "broadcast": "broadcast_perf",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What else a launch says; 0 or "" leaves it to the engine."""

    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    gpu_memory_utilization: float = 0.0
    eager: bool = False
    library: str = ""  # nccl switches the engine's own all-reduce off
    ep_backend: str = ""
    micro_batch: int = 1
    seq: int = 4096
    async_axes: tuple[str, ...] = ("dp", "cp")
    devices: str = ""  # CUDA_VISIBLE_DEVICES


@dataclass(frozen=True, slots=True)
class Job:
    """A plan cut into equal servers: ``dp`` groups inside each, ``servers`` of them beside each other."""

    model: Model
    plan: Plan
    cluster: Cluster
    limits: Limits
    dp: int
    servers: int

    @property
    def gpus(self) -> int:
        """GPUs of one server."""
        return int(self.plan.tp) * int(self.plan.pp) * int(self.plan.cp) * self.dp

    @property
    def hosts(self) -> int:
        """Hosts of one server."""
        return math.ceil(self.gpus / self.cluster.gpus_per_host)


def model_id(model: Model) -> str:
    """The name that the Hub knows, or a folder's path; else our own. Quoted: a path may hold what a shell would run."""
    name = next((a for a in model.aliases if "/" in a), model.key)
    if not name.isprintable():
        raise Refusal(f"emit: no command can hold the model's name {name!r}; rename the folder", "emit")
    return shlex.quote(name)


def launch_command(model: Model, plan: Plan, engine: str, cluster: Cluster, limits: Limits | None = None) -> str:
    """The command that starts a plan; several, one a line, where there are replicas of it, servers of their own.

    >>> from commtax import catalog
    >>> print(launch_command(catalog.model("llama-3.1-8b"), Plan(tp=2), "vllm", catalog.cluster("8xh100-sxm")))
    vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2
    """
    if engine not in ENGINES:
        raise Refusal(f"emit '{engine}': one of {', '.join(ENGINES)}", "emit")
    if plan.cp > 1 and engine in SERVING:
        raise Refusal(f"emit '{engine}': context parallelism is trained with, not served", "emit")
    if plan.all_gpus > cluster.num_gpus:
        raise Refusal(f"emit: the plan has {plan.all_gpus} GPUs, and {cluster.key} has {cluster.num_gpus}", "emit")
    limits = limits or Limits()
    if engine in ("megatron", "torchrun"):
        return {"megatron": _megatron, "torchrun": _torchtitan}[engine](Job(model, plan, cluster, limits, int(plan.dp), 1))
    inner = _together(plan, engine, cluster)
    job = Job(model, plan, cluster, limits, inner, int(plan.dp) // inner * int(plan.replicas))
    before, one, after = WRITERS[engine](job)
    devices = f"CUDA_VISIBLE_DEVICES={limits.devices} " if limits.devices else ""
    lines = [devices + one] if job.servers == 1 else _replicas(job, one, 30000 if engine == "sglang" else 8000)
    return "\n".join([*_checkpoint(job, engine), *before, *lines, *after])


def _together(plan: Plan, engine: str, cluster: Cluster) -> int:
    """Data-parallel groups that one server holds: those that share experts, or all where the engine starts replicas itself."""
    tp, dp, ep, pp = int(plan.tp), int(plan.dp), int(plan.ep), int(plan.pp)
    sharing = ep // tp if ep > tp else 1
    if dp % sharing or (ep > tp and ep % tp):
        raise Refusal(f"emit '{engine}': experts over {ep} ranks do not make whole groups of tp={tp} and dp={dp}", "emit")
    if engine == "trtllm" and sharing > 1 and tp > 1:  # a plan of another engine
        raise Refusal(f"emit 'trtllm': its attention data parallelism keeps attention whole on a GPU: tp 1, not {tp}", "emit")
    if sharing > 1 or ep > 1 or engine == "trtllm":
        return sharing
    if engine == "vllm":  # a mixture's experts are then cut over all of them, which is what a bill prices
        return dp
    return dp if tp * pp * dp <= cluster.gpus_per_host else 1


def _replicas(job: Job, command: str, port: int) -> list[str]:
    """One line a server: its GPUs and port, or its own first host."""
    lines, each = [], job.gpus
    order = job.limits.devices.split(",") if job.limits.devices else [str(i) for i in range(job.cluster.gpus_per_host)]
    per_host = max(1, len(order) // each)
    for i in range(job.servers):
        start = i % per_host * each
        show = f"CUDA_VISIBLE_DEVICES={','.join(order[start : start + each])} " if job.hosts == 1 else ""
        own = command.replace("$MASTER_ADDR", f"$MASTER_ADDR_{i}")
        host = f"  # host {i // per_host}" if job.hosts == 1 and job.servers > per_host else ""
        lines.append(f"{show}{own} --port {port + i % per_host} &{host}")
    return [*lines, f"# {job.servers} servers: put a router or load balancer in front"]


def apart_command(
    model: Model, engine: str, cluster: Cluster, workers: tuple[Plan, int], copies: tuple[Plan, int], limits: Limits
) -> str:
    """The commands of a plan with servers of their own for prompts: (plan, count) of both kinds, and what joins them.

    One line a server, with its GPUs, its host and its port; large ones are placed first, so that all find room.
    """
    prompts = replace(limits, max_num_seqs=0)  # that counts requests that decode
    jobs = {"prefill": Job(model, workers[0], cluster, prompts, 1, workers[1])}
    jobs["decode"] = Job(model, copies[0], cluster, limits, 1, copies[1])
    free = [cluster.gpus_per_host] * cluster.num_hosts
    before, lines, at = list[str](), list[str](), dict[str, list[tuple[str, int]]]({"prefill": [], "decode": []})
    for role, job in sorted(jobs.items(), key=lambda pair: -pair[1].gpus):
        for number in range(len(lines), len(lines) + job.servers):
            head, one, _ = APART[engine](job, role, number)
            before += head if head and head != before[-len(head) :] else []
            host = next((h for h, room in enumerate(free) if room >= job.gpus), None)
            if host is None:  # a server of several hosts
                name, devices = f"$MASTER_ADDR_{number}", ""
                one = one.replace("$MASTER_ADDR", name)
            else:
                first = cluster.gpus_per_host - free[host]
                free[host] -= job.gpus
                name = f"$HOST_{host}" if cluster.num_hosts > 1 else "localhost"
                devices = f"CUDA_VISIBLE_DEVICES={','.join(str(first + i) for i in range(job.gpus))} "
            lines.append(f"{devices}{_reached(one, engine, name)} --port {PORT + number} &  # {role}, on {name}")
            at[role].append((name, PORT + number))
    return "\n".join([*_checkpoint(jobs["decode"], engine), *before, *lines, *_router(engine, at["prefill"], at["decode"])])


def _reached(command: str, engine: str, name: str) -> str:
    """A server that others on other hosts can talk to."""
    if name == "localhost":
        return command
    return f"VLLM_NIXL_SIDE_CHANNEL_HOST={name} {command}" if engine == "vllm" else f"{command} --host 0.0.0.0"


def _vllm_apart(job: Job, role: str, number: int) -> Written:
    before, one, after = _vllm(job)
    config = shlex.quote(f'{{"kv_connector":"NixlConnector","kv_role":"{KV_ROLES[role]}"}}')
    return before, f"VLLM_NIXL_SIDE_CHANNEL_PORT={5600 + number} {one} --kv-transfer-config {config}", after


def _sglang_apart(job: Job, role: str, number: int) -> Written:
    before, one, after = _sglang(job)
    door = f" --disaggregation-bootstrap-port {DOOR + number}" if role == "prefill" else ""
    return before, f"{one} --disaggregation-mode {role} --disaggregation-transfer-backend nixl{door}", after


def _trtllm_apart(job: Job, role: str, _number: int) -> Written:
    """Its settings are a file for each kind; prompts are computed without the overlapping scheduler."""
    before, one, after = _trtllm(job)
    settings = [line for line in before if not line.startswith(("cat ", "EOF"))]
    settings += ["disable_overlap_scheduler: true"] * (role == "prefill") + ["cache_transceiver_config:", "  backend: DEFAULT"]
    return [f"cat > {role}.yaml <<EOF", *settings, "EOF"], f"{one.removesuffix(' --config llm.yaml')} --config {role}.yaml", after


APART: Mapping[str, Callable[[Job, str, int], Written]] = {"vllm": _vllm_apart, "sglang": _sglang_apart, "trtllm": _trtllm_apart}


def _router(engine: str, prompts: list[tuple[str, int]], decodes: list[tuple[str, int]]) -> list[str]:
    """What clients talk to, by the (host, port) of both kinds of servers."""
    if engine == "vllm":
        words = [
            f"--{side}-hosts {' '.join(host for host, _ in at)} --{side}-ports {' '.join(str(port) for _, port in at)}"
            for side, at in (("prefiller", prompts), ("decoder", decodes))
        ]
        proxy = "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
        return ["# the proxy of vLLM's repository, or a router of yours", f"python {proxy} --port 8000 {' '.join(words)}"]
    if engine == "sglang":
        doors = [f"--prefill http://{host}:{port} {DOOR + port - PORT}" for host, port in prompts]
        doors += [f"--decode http://{host}:{port}" for host, port in decodes]
        return [f"python -m sglang_router.launch_router --pd-disaggregation {' '.join(doors)} --host 0.0.0.0 --port 8000"]
    lines = ["cat > disagg.yaml <<EOF", "hostname: 0.0.0.0", "port: 8000"]
    for side, at in (("context", prompts), ("generation", decodes)):
        lines += [f"{side}_servers:", f"  num_instances: {len(at)}", "  urls:", *(f'    - "{host}:{port}"' for host, port in at)]
    return [*lines, "EOF", "trtllm-serve disaggregated -c disagg.yaml"]


def _vllm(job: Job) -> Written:
    plan, limits, ranks = job.plan, job.limits, job.gpus // job.dp
    words = [
        "vllm serve",
        model_id(job.model),
        *_sized("--tensor-parallel-size", plan.tp),
        *_sized("--pipeline-parallel-size", plan.pp),
    ]
    words += _sized("--data-parallel-size", job.dp) + (["--enable-expert-parallel"] if plan.ep > 1 else [])
    words += [f"--all2all-backend {limits.ep_backend}"] if limits.ep_backend else []
    words += _types(job) + _limits(
        limits, "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization"
    )
    words += ["--enforce-eager"] * limits.eager + ["--disable-custom-all-reduce"] * (limits.library == "nccl")
    if job.hosts == 1:
        return [], " ".join(words), []
    tail = ["# run it on every host, NODE_RANK 0, 1, …; hosts above 0 add --headless"]
    if job.dp == 1:
        return [], " ".join([*words, f"--nnodes {job.hosts} --node-rank $NODE_RANK --master-addr $MASTER_ADDR"]), tail
    if ranks > job.cluster.gpus_per_host:  # replicas wider than a host: Ray spans them
        ray = "--distributed-executor-backend ray --data-parallel-backend ray"
        return [], " ".join(["VLLM_RAY_DP_PACK_STRATEGY=span", *words, ray]), ["# once, on the head of a Ray cluster of all hosts"]
    local = job.cluster.gpus_per_host // ranks
    words += [f"--data-parallel-size-local {local} --data-parallel-start-rank $((NODE_RANK*{local}))"]
    return [], " ".join([*words, "--data-parallel-address $MASTER_ADDR --data-parallel-rpc-port 13345"]), tail


def _sglang(job: Job) -> Written:
    plan, limits = job.plan, job.limits
    shared = plan.ep > plan.tp
    words = ["python -m sglang.launch_server --model-path", model_id(job.model)]
    words += _sized("--tp", plan.tp * (job.dp if shared else 1)) + _sized("--pp", plan.pp) + _sized("--dp", job.dp)
    words += ["--enable-dp-attention"] * bool(shared) + _sized("--ep", plan.ep)
    if limits.ep_backend.startswith("deepep"):
        mode = "low_latency" if limits.ep_backend == "deepep_low_latency" else "normal"
        words.append(f"--moe-a2a-backend deepep --deepep-mode {mode}")
    # These two are of the whole server: every group gets its part.
    seqs, tokens = limits.max_num_seqs * job.dp, limits.max_num_batched_tokens * (job.dp if shared else 1)
    whole = replace(limits, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    words += _types(job) + _limits(
        whole, "--context-length", "--max-running-requests", "--chunked-prefill-size", "--mem-fraction-static"
    )
    words += ["--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled"] * limits.eager
    words += ["--disable-custom-all-reduce"] * (limits.library == "nccl")
    if job.hosts > 1:
        words.append(f"--nnodes {job.hosts} --node-rank $NODE_RANK --dist-init-addr $MASTER_ADDR:5000")
    return [], " ".join(words), ["# run it on every host, NODE_RANK 0, 1, …"] * (job.hosts > 1)


def _trtllm(job: Job) -> Written:
    plan, limits = job.plan, job.limits
    words = ["trtllm-serve", model_id(job.model), *_sized("--tp_size", plan.tp * job.dp), *_sized("--pp_size", plan.pp)]
    words += _sized("--ep_size", plan.ep)
    words += _limits(limits, "--max_seq_len", "--max_batch_size", "--max_num_tokens", "--kv_cache_free_gpu_memory_fraction")
    settings = ["enable_attention_dp: true"] * (job.dp > 1) + ["cuda_graph_config: null"] * limits.eager
    settings += ["kv_cache_config:\n  dtype: fp8"] * (plan.kv_dtype == "fp8")
    if job.hosts > 1:
        tasks = f"--ntasks-per-node {job.gpus // job.hosts}" if job.gpus % job.hosts == 0 else f"-n {job.gpus}"
        head = f"srun -N {job.hosts} {tasks} --mpi=pmix trtllm-llmapi-launch"
        words = [head, *words, f"--gpus_per_node {job.cluster.gpus_per_host}"]
    if not settings:
        return [], " ".join(words), []
    return ["cat > llm.yaml <<EOF", *settings, "EOF"], " ".join([*words, "--config llm.yaml"]), []


def _sized(flag: str, size: float) -> list[str]:
    return [f"{flag} {int(size)}"] if size > 1 else []


def _limits(limits: Limits, length: str, seqs: str, tokens: str, share: str) -> list[str]:
    pairs = ((length, limits.max_model_len), (seqs, limits.max_num_seqs), (tokens, limits.max_num_batched_tokens))
    found = [f"{flag} {value}" for flag, value in pairs if value]
    return found + ([f"{share} {limits.gpu_memory_utilization:g}"] if limits.gpu_memory_utilization else [])


def _types(job: Job) -> list[str]:
    """Weights that the engine quantises itself, and the KV cache's type; other types need a checkpoint that has them."""
    wanted, quant = job.plan.weights_dtype, job.model.quant
    words = {"fp8": ["--quantization fp8"], "fp32": ["--dtype float32"]}.get(wanted, [])
    return ([] if quant else words) + (["--kv-cache-dtype fp8"] if job.plan.kv_dtype == "fp8" else [])


def _checkpoint(job: Job, engine: str) -> list[str]:
    """Said where the plan's weights are of a type that the engine does not make itself."""
    wanted, quant = job.plan.weights_dtype, job.model.quant
    stored = quant.dtype if quant else job.model.dtype
    made = ("bf16", "fp16", "fp32", *(("fp8",) if engine != "trtllm" else ()))
    if wanted in ("", stored) or (wanted in made and not quant):
        return []
    return [f"# needs a checkpoint in {wanted}: put its name for {model_id(job.model)}, which is in {stored}"]


def _torchrun(job: Job) -> str:
    per = min(job.gpus, job.cluster.gpus_per_host)
    if job.gpus % per:
        raise Refusal(f"emit: {job.gpus} GPUs do not fill hosts of {per}; torchrun starts as many ranks on each", "emit")
    hosts = f" --nnodes {job.hosts} --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port 29500" if job.hosts > 1 else ""
    return f"torchrun --nproc-per-node {per}{hosts}"


def _megatron(job: Job) -> str:
    """Megatron-LM: sizes of the plan, then the model's; the data and the learning rate are yours."""
    plan, limits = job.plan, job.limits
    if plan.zero > 1:
        raise Refusal(f"emit 'megatron': its optimiser is ZeRO 0 or 1, not {plan.zero}", "emit")
    words = [f"--tensor-model-parallel-size {int(plan.tp)} --pipeline-model-parallel-size {int(plan.pp)}"]
    words += _sized("--context-parallel-size", plan.cp) + _sized("--expert-model-parallel-size", plan.ep)
    words += ["--sequence-parallel"] * plan.sequence_parallel + ["--use-distributed-optimizer"] * (plan.zero == 1)
    words += _stages(job.model, plan)
    words += {
        "full": ["--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"],
        "selective": ["--recompute-granularity selective"],
    }.get(plan.recompute, [])
    words += [f"--micro-batch-size {limits.micro_batch} --global-batch-size {_global_batch(job)} --seq-length {limits.seq}"]
    words += ["--bf16"] + ["--fp8-format hybrid"] * (plan.weights_dtype == "fp8")
    words += ["--overlap-grad-reduce"] * ("dp" in limits.async_axes)
    words += ["--overlap-param-gather"] * ("dp" in limits.async_axes and plan.zero == 1)
    words += ["--tp-comm-overlap"] * ("tp" in limits.async_axes)
    return " ".join([_torchrun(job), "pretrain_gpt.py", *words, *_shape(job.model)])


def _stages(model: Model, plan: Plan) -> list[str]:
    """How layers lie on the stages: told one by one where they do not divide, because Megatron refuses to guess."""
    pp, chunks = int(plan.pp), plan.chunks if plan.schedule == "interleaved" else 1
    if pp == 1 or model.num_layers % (pp * chunks) == 0:
        return [f"--num-virtual-stages-per-pipeline-rank {chunks}"] * (pp > 1 and chunks > 1)
    return [f"--pipeline-model-parallel-layout '{layout_text(virtual_layers(model.num_layers, pp, chunks))}'"]


def _global_batch(job: Job) -> int:
    return int(job.plan.microbatches) * job.limits.micro_batch * int(job.plan.dp)


def _shape(model: Model) -> list[str]:
    """The model as Megatron is told it: its sizes, and what its layers are made of. The base of rotary positions is yours."""
    words = [f"--num-layers {model.num_layers} --hidden-size {model.hidden}", *_attention(model), *_feed_forward(model)]
    words += ["--position-embedding-type rope"] * (not model.positions) + ["--normalization RMSNorm"] * (not model.norm_bias)
    words += ["--untie-embeddings-and-output-weights"] * (not model.tied)
    return [*words, f"--vocab-size {model.vocab} --max-position-embeddings {model.max_len}"]


def _attention(model: Model) -> list[str]:
    attention = model.attention
    words = [f"--num-attention-heads {attention.num_heads}"]
    if latent := attention.latent:
        words += ["--multi-latent-attention", *_sized("--q-lora-rank", latent.q_rank)]
        words.append(f"--kv-lora-rank {latent.kv_rank} --qk-head-dim {latent.nope_dim} --qk-pos-emb-head-dim {latent.rope_dim}")
        words.append(f"--v-head-dim {attention.v_head_dim}")
    elif attention.num_kv_heads != attention.num_heads:
        words.append(f"--group-query-attention --num-query-groups {attention.num_kv_heads}")
    if not latent and attention.head_dim * attention.num_heads != model.hidden:
        words.append(f"--kv-channels {attention.head_dim}")
    words += ["--qk-layernorm"] * bool(attention.qk_norm or latent)
    return words + ["--add-qkv-bias"] * (attention.qkv_bias and not attention.out_bias)


def _feed_forward(model: Model) -> list[str]:
    """Widths of dense layers and of experts, and which layers have which."""
    kinds = [model.blocks[i].ffn for i in model.layers]
    dense = next((f for f in kinds if isinstance(f, Mlp)), None)
    last, experts = kinds[-1], model.experts
    words = [f"--ffn-hidden-size {(dense or last).intermediate}"]
    if experts:
        words.append(f"--num-experts {experts.num_experts} --moe-router-topk {experts.top_k}")
        words += _sized("--moe-shared-expert-intermediate-size", experts.shared_intermediate)
    if experts and dense:
        runs = itertools.groupby(isinstance(f, Experts) for f in kinds)
        freq = "+".join(f"[{int(routed)}]*{len(list(run))}" for routed, run in runs)
        words.append(f"--moe-ffn-hidden-size {experts.intermediate} --moe-layer-freq '({freq})'")
    bias = last.bias or model.attention.out_bias
    return words + ["--swiglu"] * last.gated + ["--disable-bias-linear"] * (not bias)


def _torchtitan(job: Job) -> str:
    """torchtitan under torchrun: degrees of the plan, and the step in tokens."""
    plan, limits = job.plan, job.limits
    schedule = SCHEDULES[plan.schedule].torchtitan
    if not schedule:
        raise Refusal(f"emit 'torchrun': torchtitan has no schedule {plan.schedule}", "emit")
    if plan.zero != 3:
        raise Refusal(f"emit 'torchrun': torchtitan shards with FSDP (zero 3), not {plan.zero}", "emit")
    config = next((name for name, key in FLAVOURS.items() if key == job.model.key), "")
    named = f"--module {config.rsplit('_', 1)[0]} --config {config}" if config else "--module $MODULE --config $CONFIG"
    flag = "--parallelism."
    words = _sized(f"{flag}tensor_parallel_degree", plan.tp) + _sized(f"{flag}pipeline_parallel_degree", plan.pp)
    words += _sized(f"{flag}context_parallel_degree", plan.cp) + _sized(f"{flag}expert_parallel_degree", plan.ep)
    shards = int(plan.num_shards)
    words.append(f"{flag}data_parallel_shard_degree {shards}")
    words += _sized(f"{flag}data_parallel_replicate_degree", int(plan.dp) // shards)
    if plan.pp > 1:
        words.append(f"{flag}pipeline_parallel_schedule {schedule} {flag}num_pp_microbatches {int(plan.microbatches)}")
        words += _titan_stages(job.model, plan, flag) if plan.chunks > 2 else []  # two are its own choice
    words.append(f"--training.max_context_length {limits.seq}")
    words.append(f"--training.num_tokens_per_microbatch_per_dp_rank {limits.micro_batch * limits.seq}")
    words.append(f"--training.num_tokens_per_train_step {_global_batch(job) * limits.seq}")
    command = " ".join([_torchrun(job), "-m torchtitan.train", named, *words, f"activation-checkpoint:{plan.recompute}"])
    return command if plan.weights_dtype != "fp8" else f"# float8 is switched on in the configuration, not here\n{command}"


def _titan_stages(model: Model, plan: Plan, flag: str) -> list[str]:
    """torchtitan cuts stages of equal depth, with fewer layers on the first and the last."""
    layout = virtual_layers(model.num_layers, int(plan.pp), plan.chunks)
    each = max(map(max, layout))
    less = {"first": each - layout[0][0], "last": each - layout[-1][-1]}
    if math.ceil((model.num_layers + sum(less.values())) / each) != int(plan.pp) * plan.chunks:
        raise Refusal(
            f"emit 'torchrun': torchtitan cuts {model.num_layers} layers on pp={int(plan.pp)} into 2 chunks, not {plan.chunks}",
            "emit",
        )
    words = [f"{flag}pipeline_parallel_{end}_stage_less_layers {count}" for end, count in less.items()]
    return [f"{flag}pipeline_parallel_layers_per_stage {each}", *words]


WRITERS: Mapping[str, Callable[[Job], Written]] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}


def benchmark_command(
    model: Model,
    engine: str,
    *,
    input_len: int = 1024,
    output_len: int = 128,
    concurrency: int = 1,
    num_prompts: int = 0,
    spread: float = SPREAD,
) -> str:
    """The closed-loop benchmark of the engine's own tool that ``commtax simulate`` predicts and ``commtax audit`` reads.

    vLLM's and TensorRT-LLM's range ratio is the spread around the stated length, SGLang's the shortest over the longest.
    """
    name, prompts = model_id(model), num_prompts or max(10 * concurrency, 10)
    top = 1 + spread if engine == "sglang" else 1.0
    ratio = (1 - spread) / (1 + spread) if engine == "sglang" else spread
    lengths = f"--random-input-len {round(input_len * top)} --random-output-len {round(output_len * top)}"
    lengths += f" --random-range-ratio {ratio:.4g}"
    load = f"--max-concurrency {concurrency} --num-prompts {prompts}"
    if engine == "vllm":
        return f"vllm bench serve --model {name} --dataset-name random {lengths} --ignore-eos {load} --save-result"
    if engine == "sglang":
        return (
            f"python -m sglang.bench_serving --backend sglang --model {name} --dataset-name random {lengths} "
            f"{load} --output-file bench.jsonl"
        )
    if engine == "trtllm":
        return (
            f"python -m tensorrt_llm.serve.scripts.benchmark_serving --backend openai --model {name} --dataset-name random "
            f"{lengths} --random-ids --ignore-eos {load} --save-result"
        )
    raise Refusal(f"emit '{engine}': {', '.join(SERVING)} have a serving benchmark; training is checked with its own log", "emit")


def nccl_command(priced: StepBill | TrainBill, line: Line | None = None) -> str:
    """nccl-tests on one collective of a bill, the one that costs most unless told; "" where nothing is sent."""
    lines = [x for x in priced.items if x.kind == "comm" and float(x.exposed_s) > 0]
    if not lines:
        return ""
    top = line or max(lines, key=lambda x: float(x.exposed_s))
    ranks, size = int(top.item.ranks), max(4, int(top.item.nbytes))
    cluster, crosses = priced.setup.cluster, str(top.link) == priced.setup.cluster.inter.key
    tool, sizes = PERF[top.item.op], f"-b {size} -e {size} -n 100 -w 20"
    words = f"# {top.item.what}: {top.item.op} of {format_bytes(float(top.item.nbytes))} over {ranks} ranks"
    if not crosses:
        return f"{tool} {sizes} -g {ranks}  {words}"
    lies = span(top.item.axis, priced.setup.plan, cluster, priced.setup.engine)
    per = max(1, min(cluster.gpus_per_host, ranks, int(lies.ranks_per_domain)))
    return f"mpirun -np {ranks} -N {per} {tool} {sizes} -g 1  {words}"
