"""What the flags of launch commands mean: one table for each engine, in the spelling that all of them share after
underscores became dashes.

A value is (field of ``Launch``, kind). Kinds: ``int``, ``count`` (128k), ``share``, ``ratio`` (a share that may be 0), ``text``,
``on`` (a switch). ``NOTHING`` are flags that change no price: addresses, names, logs. Read in the engines' own argument parsers:
vllm/engine/arg_utils.py, sglang/srt/server_args.py, tensorrt_llm/commands/serve.py, megatron/training/arguments.py,
torchtitan/config (November 2026).
"""

from __future__ import annotations

from collections.abc import Mapping

from commtax.cost import schedules

Flags = Mapping[str, tuple[str, str]]


def _flags(**kinds: dict[str, str]) -> dict[str, tuple[str, str]]:
    """``{kind: {field: "flag flag …"}}`` turned round."""
    return {flag: (name, kind) for kind, fields in kinds.items() for name, flags in fields.items() for flag in flags.split()}


VLLM = _flags(
    text={
        "model": "model",
        "quantization": "quantization q",
        "compute": "dtype",
        "kv_dtype": "kv-cache-dtype",
        "ep_backend": "all2all-backend",
        "draft": "speculative-config sc",
        "executor": "distributed-executor-backend",
        "dp_executor": "data-parallel-backend",
        "address": "master-addr data-parallel-address dpa",
        "kv_transfer": "kv-transfer-config",
    },
    int={
        "tp": "tensor-parallel-size tp",
        "pp": "pipeline-parallel-size pp",
        "dp": "data-parallel-size dp",
        "local_dp": "data-parallel-size-local dpl",
        "nnodes": "nnodes n",
        "block_size": "block-size",
        "speculative": "num-speculative-tokens",
        "input_len": "input-len random-input-len",
        "output_len": "output-len random-output-len",
        "concurrency": "max-concurrency batch-size",
    },
    count={
        "max_model_len": "max-model-len",
        "max_num_seqs": "max-num-seqs",
        "max_num_batched_tokens": "max-num-batched-tokens",
        "kv_cache_memory_bytes": "kv-cache-memory-bytes kv-cache-memory",
    },
    share={"gpu_memory_utilization": "gpu-memory-utilization"},
    ratio={"range_ratio": "random-range-ratio"},
    on={
        "expert_parallel": "enable-expert-parallel ep",
        "eager": "enforce-eager",
        "plain_nccl": "disable-custom-all-reduce",
        "part": "headless",
    },
)
SGLANG = _flags(
    text={
        "model": "model-path model",
        "quantization": "quantization",
        "compute": "dtype",
        "kv_dtype": "kv-cache-dtype",
        "a2a": "moe-a2a-backend",
        "deepep_mode": "deepep-mode",
        "address": "dist-init-addr nccl-init-addr",
        "graphs": "cuda-graph-backend-decode",
        "role": "disaggregation-mode",
    },
    int={
        "tp": "tp-size tp tensor-parallel-size",
        "pp": "pp-size pp pipeline-parallel-size",
        "dp": "dp-size dp data-parallel-size",
        "ep": "ep-size ep expert-parallel-size",
        "nnodes": "nnodes",
        "block_size": "page-size",
        "speculative": "speculative-num-draft-tokens",
        "input_len": "random-input-len random-input",
        "output_len": "random-output-len random-output",
        "concurrency": "max-concurrency",
    },
    count={
        "max_model_len": "context-length",
        "max_num_seqs": "max-running-requests",
        "max_num_batched_tokens": "chunked-prefill-size",
    },
    share={"gpu_memory_utilization": "mem-fraction-static"},
    ratio={"range_ratio": "random-range-ratio"},
    on={
        "dp_attention": "enable-dp-attention",
        "expert_parallel": "enable-ep-moe",
        "deepep": "enable-deepep-moe",
        "eager": "disable-cuda-graph disable-decode-cuda-graph",
        "plain_nccl": "disable-custom-all-reduce",
    },
)
TRTLLM = _flags(
    text={
        "model": "model m",
        "file": "config extra-llm-api-options",
        "kv_dtype": "kv-cache-dtype kv-cache-config.dtype",
        "graphs": "cuda-graph-config",
        "transceiver": "cache-transceiver-config.backend",
    },
    int={
        "tp": "tp-size tensor-parallel-size tp",
        "pp": "pp-size pipeline-parallel-size pp",
        "ep": "ep-size moe-expert-parallel-size ep",
        "gpus_per_node": "gpus-per-node",
        "block_size": "kv-cache-config.tokens-per-block",
        "speculative": "speculative-config.max-draft-len speculative-config.num-nextn-predict-layers",
        "input_len": "random-input-len",
        "output_len": "random-output-len",
        "concurrency": "concurrency max-concurrency",
    },
    count={"max_model_len": "max-seq-len", "max_num_seqs": "max-batch-size", "max_num_batched_tokens": "max-num-tokens"},
    share={
        "gpu_memory_utilization": (
            "kv-cache-free-gpu-memory-fraction free-gpu-memory-fraction kv-cache-free-gpu-mem-fraction "
            "kv-cache-config.free-gpu-memory-fraction"
        )
    },
    ratio={"range_ratio": "random-range-ratio"},
    on={"dp_attention": "enable-attention-dp", "plain_scheduler": "disable-overlap-scheduler"},
)
MEGATRON = _flags(
    text={"recompute": "recompute-granularity", "fp8": "fp8-format", "layout": "pipeline-model-parallel-layout"},
    int={
        "first_layers": "decoder-first-pipeline-num-layers",
        "last_layers": "decoder-last-pipeline-num-layers",
        "tp": "tensor-model-parallel-size",
        "pp": "pipeline-model-parallel-size",
        "cp": "context-parallel-size",
        "ep": "expert-model-parallel-size",
        "expert_tp": "expert-tensor-parallel-size",
        "micro_batch": "micro-batch-size",
        "global_batch": "global-batch-size",
        "context": "seq-length",
        "layers_a_chunk": "num-layers-per-virtual-pipeline-stage",
        "chunks": "num-virtual-stages-per-pipeline-rank",
        "layers": "num-layers",
        "hidden": "hidden-size",
        "heads": "num-attention-heads",
        "kv_heads": "num-query-groups",
        "width": "ffn-hidden-size",
        "expert_width": "moe-ffn-hidden-size",
        "experts": "num-experts",
        "vocab": "vocab-size",
        "positions": "max-position-embeddings",
        "top_k": "moe-router-topk",
    },
    on={
        "sequence_parallel": "sequence-parallel",
        "zero": "use-distributed-optimizer",
        "selective": "recompute-activations",
        "overlap_dp": "overlap-grad-reduce",
        "overlap_tp": "tp-comm-overlap",
        "embedding_counts": "account-for-embedding-in-pipeline-split",
        "loss_counts": "account-for-loss-in-pipeline-split",
    },
)
TORCHTITAN = _flags(
    text={
        "flavour": "config model.flavor",
        "family": "module model.name",
        "recompute": "activation-checkpoint.mode",
        "pp_schedule": "parallelism.pipeline-parallel-schedule",
    },
    int={
        "tp": "parallelism.tensor-parallel-degree",
        "pp": "parallelism.pipeline-parallel-degree",
        "cp": "parallelism.context-parallel-degree",
        "ep": "parallelism.expert-parallel-degree",
        "shards": "parallelism.data-parallel-shard-degree",
        "copies": "parallelism.data-parallel-replicate-degree",
        "context": "training.seq-len training.max-context-length",
        "local_batch": "training.local-batch-size",
        "micro_batch": "parallelism.pipeline-parallel-microbatch-size",
        "global_batch": "training.global-batch-size",
        "step_tokens": "training.num-tokens-per-train-step",
        "micro_tokens": "training.num-tokens-per-microbatch-per-dp-rank",
        "flight": "parallelism.num-pp-microbatches",
        "stage_layers": "parallelism.pipeline-parallel-layers-per-stage",
    },
)
TORCHRUN = _flags(text={"nnodes": "nnodes", "gpus_per_node": "nproc-per-node"})

ENGINES: Mapping[str, Flags] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "trtllm": TRTLLM,
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
}
UNMODELLED = {
    "decode-context-parallel-size": "1",
    "dcp": "1",
    "prefill-context-parallel-size": "1",
    "pcp": "1",
    "cp-size": "1",
    "context-parallel-size": "1",
    "attn-cp-size": "1",
    "recompute-method": "uniform",
    "recompute-num-layers": "1",
    "parallelism.pipeline-parallel-first-stage-less-layers": "0",
    "parallelism.pipeline-parallel-last-stage-less-layers": "0",
}
"""What no engine's price has: listed unless it says what is priced anyway."""

_SWITCHES = (
    "trust-remote-code disable-log-requests disable-log-stats enable-log-requests enable-auto-tool-choice skip-tokenizer-init "
    "enable-metrics log-requests ignore-eos random-ids save-result swiglu disable-bias-linear untie-embeddings-and-output-weights "
    "group-query-attention use-flash-attn bf16 fp16 use-mcore-models no-position-embedding normalization-rmsnorm standalone "
    "overlap-param-gather use-rotary-position-embeddings use-rope-scaling add-qkv-bias moe-grouped-gemm enable-p2p-check "
    "multi-latent-attention qk-layernorm disable-prefill-cuda-graph "
    "enable-chunked-prefill no-enable-prefix-caching enable-prefix-caching disable-radix-cache apply-layernorm-1p "
    "accumulate-allreduce-grads-in-fp32 tokenize-on-client streaming mock-data compile.enable"
)
_WORDS = (
    "host port served-model-name api-key tokenizer tokenizer-path tokenizer-mode download-dir load-format seed log-level "
    "chat-template tool-call-parser reasoning-parser node-rank r master-port "
    "data-parallel-rpc-port dpp data-parallel-start-rank dpr data-parallel-rank api-server-count "
    "backend "
    "tokenizer-type tokenizer-model vocab-file merge-file data-path split save load save-interval eval-interval eval-iters "
    "log-interval train-iters train-samples lr min-lr lr-decay-style lr-decay-iters lr-warmup-iters lr-warmup-fraction "
    "weight-decay clip-grad adam-beta1 adam-beta2 init-method-std distributed-timeout-minutes tensorboard-dir "
    "rdzv-backend rdzv-endpoint rdzv-id local-ranks-filter role tee dataset dataset-name dataset-path num-prompts num-requests "
    "request-rate backend-url base-url training.steps job.config-file dump-folder metrics.log-freq "
    "distributed-backend position-embedding-type rotary-base rotary-percent normalization moe-token-dispatcher-type "
    "moe-router-load-balancing-type transformer-impl attention-backend make-vocab-size-divisible-by num-workers "
    "disaggregation-transfer-backend disaggregation-bootstrap-port disaggregation-ib-device "
    "cuda-graph-backend-prefill kv-channels norm-epsilon q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim "
    "moe-layer-freq moe-shared-expert-intermediate-size attention-dropout hidden-dropout "
    "optimizer.lr job.description model.hf-assets-path hf-assets-path workspace w max-beam-width num-postprocess-workers"
)
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
"""What vLLM calls the servers of prompts and of decoding; one that is both is neither."""
NOTHING: Flags = {**dict.fromkeys(_SWITCHES.split(), ("", "on")), **dict.fromkeys(_WORDS.split(), ("", "text"))}

# Weights as a flag asks for them; "": as the checkpoint has them.
QUANTISED = {
    "fp8": "fp8",
    "w8a8_fp8": "fp8",
    "awq": "int4",
    "awq_marlin": "int4",
    "gptq": "int4",
    "gptq_marlin": "int4",
    "bitsandbytes": "int4",
    "w8a8_int8": "int8",
    "mxfp4": "mxfp4",
    "modelopt_fp4": "nvfp4",
    "modelopt_fp8": "fp8",
    "compressed-tensors": "",
    "modelopt": "",
    "none": "",
}
COMPUTED = {"float32": "fp32", "float": "fp32", "fp32": "fp32"}  # 16 bits are what is priced anyway
KV = {"auto": "", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "float16": "fp16", "bf16": "bf16"}
BACKENDS = ("allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency")
SCHEDULES = {kind.torchtitan.lower(): kind.name for kind in schedules.SCHEDULES.values() if kind.torchtitan}
FLAVOURS = {  # torchtitan's registered configurations
    "llama3_8b": "llama-3.1-8b",
    "llama3_70b": "llama-3.1-70b",
    "llama3_405b": "llama-3.1-405b",
    "deepseek_v3_671b": "deepseek-v3",
}
