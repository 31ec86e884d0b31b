"""The questions of ``benchmarks/frozen.py``: command lines of every verb, Python expressions, and paths of the page's API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DENSE, MIXTURE = "llama-3.1-8b -c 8xh100-sxm", "deepseek-v3 -c 4x8xh200-sxm"
TRAIN = "--phase train"

BILL = f"""
{DENSE}
{DENSE} -tp 8
{DENSE} -tp 8 --phase prefill --context 8192
{DENSE} -tp 4 --phase mixed --batch 16 --context 2048
{DENSE} -tp 2 -pp 2 --batch 8
{DENSE} -tp 2 -dp 4 --batch 32
{DENSE} -tp 2 -pp 2 -dp 2 --phase prefill
{DENSE} -tp 4 --replicas 2 --batch 4
{DENSE} -tp 8 --eager
{DENSE} -tp 8 --speculative 3 --batch 4
{DENSE} -tp 8 --slow-rank 1.3
{DENSE} -tp 8 --overlap 0.5 --phase prefill
{DENSE} -tp 8 --exact
{DENSE} -tp 8 --exact --phase prefill --batch 4
{DENSE} -tp 8 --library nccl
{DENSE} -tp 8 --library sglang
{DENSE} -tp 8 --library trtllm
{DENSE} -tp 8 --library textbook
{DENSE} -tp 8 --library vllm --engine torch
{DENSE} -tp 8 --dtype fp8 --kv-dtype fp8 --batch 64 --context 8k
{DENSE} -tp 2 --dtype int4 --batch 2
{DENSE} -tp 2 --intra pcie5
{DENSE} -tp 8 --sequence-parallel --phase prefill --context 4096
{DENSE} -tp 2 --profile profile.json --library nccl
{DENSE} -tp 1 --profile kernels-profile.json
{DENSE} -tp 8 --emit vllm
{DENSE} -tp 8 --emit sglang
{DENSE} -tp 4 --emit trtllm
{DENSE} -tp 8 --html page.html
{DENSE} -tp 4 --engine vllm@0.11
{DENSE} -tp 4 --engine vllm@0.12
{DENSE} -tp 4 --engine vllm@0.18
{DENSE} -tp 4 --engine vllm@0.6.3
{DENSE} -tp 4 --engine trtllm@1.0
{DENSE} -tp 4 --engine trtllm@1.1
{DENSE} -tp 4 --engine trtllm --batch 200
{DENSE} -tp 4 --engine sglang --batch 32
{DENSE} -tp 4 --engine torch
{DENSE} -tp 4 --engine textbook
{DENSE} -tp 4 --engine builtin
{DENSE} -tp 4 --engine fused
{DENSE} -tp 1 --engine gpt-fast
{DENSE} -tp 2 --engine vllm-2023 --eager
llama-3.1-70b -c 2x8xh100-sxm -tp 8 -pp 2 --batch 64
llama-3.1-70b -c 2x8xh100-sxm -tp 16 --inter 100gbe
llama-3.1-70b -c 2x8xh100-sxm -tp 8 -pp 2 --phase prefill --nics 4
llama-3.1-70b -c 8xa100-80-sxm -tp 8 --dtype int4
llama-3.1-70b -c dgx-b200 -tp 8 --dtype nvfp4 --batch 128
llama-3.1-405b -c 8xmi300x -tp 8
llama-3.1-405b -c 8xb300-sxm -tp 8 --dtype nvfp4
llama-3.3-70b -c 8xmi355x -tp 4
llama-2-7b -c 4x4090-pcie -tp 4
llama-2-13b -c 2xrtx-5090 -tp 2
llama-2-70b -c 8xl40s-pcie -tp 8
llama-3.2-1b -c 2xcpu -tp 2
llama-3.2-3b -c 1xl4
qwen2.5-7b -c 4xrtx-3090 -tp 4 --topo topo-4x3090.txt
qwen2.5-32b -c 8xh20 -tp 8
qwen2.5-72b -c p4de -tp 8
qwen3-8b -c 4xa10 -tp 4
qwen3-32b -c a3-mega -tp 8 --phase prefill --context 4096 --batch 4
qwq-32b -c 2xrtx-pro-6000 -tp 2
mistral-7b -c 2xt4 -tp 2
phi-4 -c 4xv100-32-sxm -tp 2
mpt-7b -c 2xa100-80-pcie -tp 2
opt-1.3b -c 2xv100-16-sxm -tp 2
gemma-3-27b -c 8xh100-sxm -tp 4 --context 32k --batch 8
gemma-3-27b -c 8xh200-sxm -tp 8 --phase prefill --context 16k
gpt-oss-20b -c 1xh100-sxm --batch 16
gpt-oss-120b -c 8xh100-sxm -tp 8 -ep 8 --batch 64
gpt-oss-120b -c 4xgb200 -tp 4
mixtral-8x7b -c 8xh100-sxm -tp 8
mixtral-8x22b -c 8xh200-sxm -tp 8 -ep
qwen3-30b-a3b -c 8xh100-sxm -tp 2 -dp 4 -ep --batch 64
qwen3-30b-a3b -c 4xv100-32-sxm -tp 4
qwen3-235b-a22b -c 8xh200-sxm -tp 8 -ep 8 --engine sglang --batch 32
llama-4-scout -c 8xh100-sxm -tp 8
minimax-m2.5 -c 8xh200-sxm -tp 4
kimi-k2 -c 2x8xh200-sxm -tp 16 -ep 16
glm-5 -c 2x8xh200-sxm -tp 8 -dp 2 -ep
deepseek-r1 -c 8xh200-sxm -tp 8
{MIXTURE} -tp 8 -dp 4 -ep --batch 128
{MIXTURE} -tp 8 -dp 4 -ep --batch 128 --ep-backend deepep_low_latency
{MIXTURE} -tp 8 -dp 4 -ep --phase prefill --context 4096 --ep-backend deepep_high_throughput
{MIXTURE} -tp 8 -dp 4 -ep --ep-backend allgather_reducescatter
{MIXTURE} -tp 1 -dp 32 -ep --batch 64 --engine sglang
{MIXTURE} -tp 1 -dp 32 -ep --batch 64 --engine trtllm
{MIXTURE} -tp 16 -pp 2
{MIXTURE} -tp 8 -pp 4 --phase mixed --batch 32
deepseek-v3 -c 2x4xgb200 -tp 8 -ep 8
tiny -c 2xcpu -tp 2 --engine builtin
stored -c 2xh100-sxm -tp 1
mixture -c 8xh200-sxm -tp 8
window/config.json -c 8xh100-sxm -tp 8
quantised -c 8xh100-sxm -tp 2
modelopt -c 8xh100-sxm -tp 2 --batch 8
-c 8xh100-sxm --from "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-model-len 8192"
-c 8xh100-sxm --from vllm.sh
-c 8xh100-sxm --from "vllm serve Qwen/Qwen3-30B-A3B -tp 4 -dp 2 --enable-expert-parallel --enforce-eager"
-c 8xh200-sxm --from "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --speculative-config {{\\"num_speculative_tokens\\":1}}"
-c 2x8xh100-sxm --from sglang.sh
-c 8xh200-sxm --from "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --disable-cuda-graph"
-c 8xh100-sxm --from trtllm.sh
-c 8xh100-sxm --from "trtllm-serve meta-llama/Llama-3.1-70B --tp_size 4 --pp_size 2 --kv_cache_dtype fp8"
-c 2x8xh100-sxm --from megatron.sh
-c 8xh100-sxm --from titan.sh
-c 8xh100-sxm --from "vllm bench latency --model meta-llama/Llama-3.1-8B -tp 2 --batch-size 8 --input-len 512 --output-len 64"
-c 2x8xh100-sxm --from "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve meta-llama/Llama-3.1-70B -tp 4 --kv-cache-dtype fp8"
{DENSE} {TRAIN}
{DENSE} {TRAIN} -dp 8 --global-batch 64
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 64 --zero 1 --sequence-parallel
{DENSE} {TRAIN} -dp 8 --global-batch 64 --zero 2 --recompute selective
{DENSE} {TRAIN} -dp 8 --global-batch 64 --zero 3 --recompute full
{DENSE} {TRAIN} -tp 2 -pp 2 -dp 2 --global-batch 32 --schedule gpipe
{DENSE} {TRAIN} -tp 2 -pp 4 --global-batch 32 --schedule interleaved --chunks 2
{DENSE} {TRAIN} -tp 2 -pp 4 --global-batch 32 --schedule zb-h1
{DENSE} {TRAIN} -tp 2 -pp 4 --global-batch 32 --schedule zb-h2
{DENSE} {TRAIN} -tp 2 -pp 4 --global-batch 32 --schedule zb-v
{DENSE} {TRAIN} -pp 8 --global-batch 32 --micro-batch 2
{DENSE} {TRAIN} -tp 2 -cp 4 --context 32k --global-batch 8
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --async none
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --async dp,tp --sequence-parallel
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --slow-rank 1.2 --flops causal
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --tokens 15T --measured-mfu 30%
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --dtype fp8
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --exact
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --emit megatron
{DENSE} {TRAIN} -dp 8 --global-batch 32 --engine torchtitan --emit torchrun
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --library textbook
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --html page.html
{DENSE} {TRAIN} -dp 8 --global-batch 32 --engine fsdp
{DENSE} {TRAIN} -dp 8 --global-batch 32 --engine deepspeed --zero 2
{DENSE} {TRAIN} -dp 8 --global-batch 32 --engine llm-foundry
{DENSE} {TRAIN} -tp 2 -dp 4 --global-batch 32 --engine torchtitan
{DENSE} {TRAIN} -tp 2 -pp 2 -dp 2 --global-batch 32 --engine megatron-2021
llama-3.1-70b -c 8x8xh100-sxm {TRAIN} -tp 8 -pp 4 -dp 2 --global-batch 64 --context 8192 --sequence-parallel
llama-3.1-70b -c 16x8xh100-sxm {TRAIN} --engine fsdp -dp 128 --hsdp 8 --global-batch 128
llama-3.1-405b -c 64x8xh100-sxm {TRAIN} -tp 8 -pp 16 -dp 4 --engine llama3 --global-batch 128 --schedule interleaved --chunks 2
gpt-3-175b -c 16x8xa100-80-sxm {TRAIN} -tp 8 -pp 16 --global-batch 64 --context 2048 --engine megatron-2021
mixtral-8x7b -c 4x8xh100-sxm {TRAIN} -dp 32 -ep 8 --global-batch 128 --zero 1
mixtral-8x7b -c 4x8xh100-sxm {TRAIN} -dp 32 -ep 8 --global-batch 128 --zero 1 --imbalance 1.5
deepseek-v3 -c 32x8xh100-sxm {TRAIN} -pp 8 -dp 32 -ep 32 --global-batch 512 --zero 1 --recompute full
qwen3-30b-a3b -c 2x8xh100-sxm {TRAIN} -dp 16 -ep 8 --engine torchtitan --global-batch 64
gemma-3-27b -c 4x8xh200-sxm {TRAIN} -tp 4 -dp 8 --global-batch 32
"""

FIT = f"""
{DENSE}
{DENSE} -tp 2 --max-model-len 128k
llama-3.1-70b -c 8xh100-sxm
llama-3.1-70b -c 8xh100-sxm -tp 4 --max-num-seqs 64 --max-num-batched-tokens 4096
llama-3.1-70b -c 8xh100-sxm -tp 4 --gpu-memory-utilization 0.95 --block-size 32
llama-3.1-70b -c 2x8xh100-sxm -tp 8 -pp 2 --dtype bf16
llama-3.1-70b -c 4xa100-80-sxm --dtype fp8 --kv-dtype fp8
llama-3.1-405b -c 2x8xh100-sxm
llama-3.1-405b -c 4xh100-sxm -tp 4
llama-3.1-8b -c 1xl4 --kv-cache-memory-bytes 1GiB
llama-3.1-8b -c 1xl4
gemma-3-27b -c 2xh100-sxm -tp 2 --max-model-len 32k
gpt-oss-120b -c 1xh100-sxm
gpt-oss-20b -c 1xrtx-4090 --engine sglang
deepseek-v3 -c 8xh200-sxm -tp 8 -ep
deepseek-v3 -c 2x8xh200-sxm -tp 8 -dp 2 -ep --engine sglang
mixtral-8x22b -c 8xa100-80-sxm --engine trtllm
qwen3-32b -c 2xh100-nvl --engine vllm@0.11
qwen3-32b -c 2xh100-sxm -tp 2 --replicas 1
-c 8xh100-sxm --from vllm.sh
-c 8xh100-sxm --from trtllm.sh
-c 2x8xh100-sxm --from megatron.sh
{DENSE} {TRAIN}
{DENSE} {TRAIN} -dp 8 --zero 1 --global-batch 32
{DENSE} {TRAIN} -tp 2 -pp 2 -dp 2 --recompute full --micro-batch 2 --global-batch 32
{DENSE} {TRAIN} --engine fsdp -dp 8 --global-batch 32
llama-3.1-70b -c 8x8xh100-sxm {TRAIN} -tp 8 -pp 8 --schedule interleaved --chunks 2 --global-batch 32
llama-3.1-70b -c 8x8xh100-sxm {TRAIN} --engine fsdp -dp 64 --hsdp 8 --global-batch 64
mixtral-8x7b -c 4x8xh100-sxm {TRAIN} -dp 32 -ep 8 --zero 1 --global-batch 128
quantised -c 1xl40s
modelopt -c 1xl40s --max-model-len 16k
tiny -c 2xcpu -tp 2
"""

EXPECT = """
all-reduce -c 8xh100-sxm
all-reduce -c 8xh100-sxm --size 8K --library vllm
all-reduce -c 8xh100-sxm --size 64K --library sglang
all-reduce -c 8xh100-sxm --size 64K --library trtllm
all-reduce -c 2x8xh100-sxm --size 1G --measured 450GB/s
all-reduce -c 8xh100-sxm --size 1G --measured 40GB/s
all-reduce -c 8xh100-sxm --measured nccl-8.txt
all-reduce -c 8xh100-sxm --size 1M --measured 25us
all-gather -c 8xa100-80-sxm --size 256M --ranks 4
reduce-scatter -c 4x8xh200-sxm --inter roce-400
all-to-all -c 8xb200-sxm --size 64M
send-recv -c 2x8xh100-sxm --ranks 2 --size 16M
broadcast -c 8xh100-sxm --size 16M
all-reduce -c 8xmi300x --size 512M
all-reduce -c 4x4090-pcie --size 128M --library textbook
all-reduce -c 8xh100-sxm --profile profile.json --size 1G
all-reduce -c 2xh100-sxm --intra pcie4 --size 1G --measured 10GB/s
all-reduce -c gb200-nvl72 --size 1G
all-reduce -c 4xgb200 --size 1G
all-to-all -c 4x8xh100-sxm --nics 4 --size 1G
all-reduce -c 2xcpu --size 1M
"""

COMPARE = f"""
{DENSE} -tp 2 --over batch=1:256
{DENSE} --over tp=1,2,4,8
{DENSE} --over tp=1,2,4,8 --over batch=1,16,128
{DENSE} -tp 4 --over context=128,1024,8192 --phase prefill
{DENSE} -tp 2 --over link=nvlink4,pcie5,10gbe --csv
{DENSE} -tp 2 --over batch=1:64 --csv
{DENSE} --over tp=1,2,3,4 --batch 8
{DENSE} --plans tp1,tp2,tp4dp2,dp8 --batches 1,8,64
{DENSE} --plans tp8,tp4r2,tp2pp4 --batches 1,32
{DENSE} --plans tp2,tp4 --links nvlink4,pcie5,10gbe --batches 1,64
{DENSE} --plans tp1,tp2 --engine sglang --batches 1,64 --csv
deepseek-v3 -c 8xh200-sxm --plans tp8,tp8ep,dp8ep --batches 1,64,256
qwen3-30b-a3b -c 8xh100-sxm -tp 8 --over ep=1,8 --over batch=1,64
llama-3.1-70b -c 2x8xh100-sxm --plans tp16,tp8pp2,tp8r2 --batches 1,256
{DENSE} {TRAIN} --over dp=1,2,4,8 --global-batch 64
{DENSE} {TRAIN} --plans dp8,tp2dp4,tp8,pp8 --batches 64
llama-3.1-70b -c 4x8xh100-sxm {TRAIN} --sequence-parallel --over tp=1:32
{DENSE} {TRAIN} -dp 8 --over local_tokens=1024:16384 --over link=nvlink4,10gbe
{DENSE} -tp 2 --over batch=1,8 --profile profile.json
-c 8xh100-sxm --from vllm.sh --over batch=1,8,64
{DENSE} -tp 8 --over batch=1,8 --overlap 0.3 --slow-rank 1.1
"""

SIMULATE = f"""
{DENSE} -tp 1 --concurrency 32 --input-len 1024 --output-len 256
{DENSE} -tp 8 --concurrency 1,8,64,256
{DENSE} -tp 2 --concurrency 64 --spread 0
{DENSE} -tp 2 --concurrency 64 --num-prompts 640
{DENSE} -tp 2 --concurrency 64 --prompts-per-client 10 --engine sglang
{DENSE} -tp 2 --concurrency 512 --max-num-seqs 64 --max-num-batched-tokens 2048
{DENSE} -tp 2 --concurrency 64 --disaggregated
{DENSE} -tp 2 --concurrency 64 --disaggregated --prefill-workers 2 --prefill-tp 1 --decode-workers 1
{DENSE} -tp 2 --replicas 4 --concurrency 128
{DENSE} -tp 2 -pp 2 -dp 2 --concurrency 64
{DENSE} -tp 2 --concurrency 8 --profile kernels-profile.json
llama-3.1-70b -c 8xh100-sxm -tp 8 --concurrency 16 --engine trtllm
llama-3.1-70b -c 4xh100-sxm -tp 4 --concurrency 4096 --gpu-memory-utilization 0.85
llama-3.1-405b -c 4xh100-sxm -tp 4 --concurrency 4
deepseek-v3 -c 4x8xh200-sxm -tp 8 -dp 4 -ep --concurrency 256
gpt-oss-120b -c 8xh100-sxm -tp 4 --concurrency 1,64
gemma-3-27b -c 8xh100-sxm -tp 2 --concurrency 16 --input-len 8192 --kv-dtype fp8
qwen3-30b-a3b -c 2xa100-80-sxm -tp 2 --concurrency 32 --engine vllm@0.12
-c 8xh100-sxm --from vllm.sh --concurrency 16
-c 8xh100-sxm --from trtllm.sh --concurrency 16
"""

PIPELINE = """
-p 8 -m 32
-p 8 -m 32 --schedule gpipe
-p 8 -m 32 --schedule fill-drain
-p 4 -m 16 --schedule interleaved --chunks 2
-p 4 -m 16 --schedule interleaved --chunks 4 --times 1:2:1
-p 8 -m 32 --schedule zb-h1
-p 8 -m 32 --schedule zb-h2 --transfer 0.1
-p 4 -m 16 --schedule zb-v
-p 8 -m 32 --schedule dualpipe
-p 4 -m 8 --straggler 2:1.5
-p 8 --budget 0.05
-p 8 --budget 0.05 --schedule interleaved
-p 4 -m 8 --svg picture.svg
-p 4 -m 8 --chrome-trace trace.json
-p 1 -m 4
"""

PLAN = f"""
{DENSE}
{DENSE} --ttft 500ms --tpot 10ms
{DENSE} --objective latency
{DENSE} --objective cost --tpot 20ms
{DENSE} --objective gpus --tpot 20ms --ttft 1s
{DENSE} --workload chat --price 2.5
{DENSE} --workload rag --no-disaggregated
{DENSE} --workload code --spread 0
{DENSE} --workload batch --top 3
{DENSE} --dtype fp8,bf16 --kv-dtype fp8
{DENSE} --engine sglang --tpot 15ms --emit sglang
{DENSE} --engine trtllm --emit trtllm --max-concurrency 64
{DENSE} --tpot 0.1ms
{DENSE} --max-num-seqs 32 --max-num-batched-tokens 2048 --gpu-memory-utilization 0.8
{DENSE} --profile profile.json --top 5
{DENSE} --html page.html --tpot 30ms
llama-3.1-70b -c 2x8xh100-sxm --ttft 500ms --tpot 30ms
llama-3.1-405b -c 8xh100-sxm
llama-3.1-405b -c 1xh100-sxm
deepseek-v3 -c 2x8xh200-sxm --ttft 2s --tpot 50ms --top 5
qwen3-30b-a3b -c 8xh100-sxm --input-len 2000 --output-len 500
gpt-oss-20b -c 4xl40s --tpot 50ms
gemma-3-27b -c 8xmi300x --objective latency
-c 2x8xh100-sxm --from "vllm serve meta-llama/Llama-3.1-70B -tp 8" --tpot 30ms
-c 8xh100-sxm --from sglang.sh
{DENSE} {TRAIN} --global-batch 64
{DENSE} {TRAIN} --global-batch 64 --engine fsdp
{DENSE} {TRAIN} --global-batch 64 --engine torchtitan --context 8192 --emit torchrun
llama-3.1-70b -c 8x8xh100-sxm {TRAIN} --global-batch 256 --context 8192 --emit megatron
mixtral-8x7b -c 4x8xh100-sxm {TRAIN} --global-batch 256 --top 4
llama-3.1-70b -c 1x8xh100-sxm {TRAIN} --global-batch 16
-c 2x8xh100-sxm --from megatron.sh
"""

CATALOG = """

chips
links
clusters
models
engines
chips h100-sxm
chips mi300x
chips cpu
links nvlink4
links ib-ndr
clusters dgx-h100
clusters gb200-nvl72
models llama-3.1-8b
models deepseek-v3
models gemma-3-27b
models gpt-oss-120b
engines vllm
engines sglang
engines trtllm
engines megatron
engines vllm@0.11
engines torchtitan
"""

AUDIT = """
vllm-cpu-tp2.log -m tiny -c 2xcpu -tp 2
vllm-cpu-tp1.log -m tiny -c 2xcpu -tp 1
vllm-cpu-tp2.log -m llama-3.1-8b -c 2xh100-sxm -tp 2
vllm-cpu-tp2-rank0.trace.json.gz vllm-cpu-tp2-rank1.trace.json.gz -m tiny -c 2xcpu -tp 2
vllm-cpu-tp2-rank0.trace.json -m tiny -c 2xcpu -tp 2 --phase prefill
vllm-cpu-tp2.log vllm-cpu-tp2-rank0.trace.json.gz -m tiny -c 2xcpu -tp 2
graphs-rank0.json graphs-rank1.json -m llama-3.1-8b -c 2xh100-sxm -tp 2
graphs-rank0.json -m stored -c 2xh100-sxm -tp 2
vllm-cpu-tp1.latency.json -m tiny -c 2xcpu -tp 1 --batch 8 --context 32 --output-len 128
vllm-cpu-tp2.latency.json --baseline vllm-cpu-tp1.latency.json -m tiny -c 2xcpu -tp 2 --batch 8 --context 32 --output-len 128
vllm-cpu-tp1.serve.json -m tiny -c 2xcpu -tp 1
vllm-cpu-tp1.throughput.json -m tiny -c 2xcpu -tp 1
sglang.jsonl -m llama-3.1-8b -c 2xh100-sxm -tp 2 --engine sglang
aiperf.json -m llama-3.1-8b -c 8xh100-sxm -tp 2 --context 512 --output-len 64
h100.log -m llama-3.1-8b -c 1xh100-sxm --max-model-len 8192
h100.log -m llama-3.1-8b -c 1xh100-sxm --max-model-len 8192 --tolerance 0.01
"""

CALIBRATE = """
nccl-2.txt nccl-4.txt nccl-8.txt -c 8xh100-sxm -o made.json
nccl-8.txt -c 8xh100-sxm -o made.json --name mine
collectives.jsonl -c 8xh200-sxm -o made.json
gemm.jsonl decode.jsonl prefill.jsonl -c 8xh200-sxm -o made.json
nccl-8.txt gemm.jsonl -c 8xh100-sxm -o made.json
vllm-cpu-tp1.serve.json -c 2xcpu -m tiny -tp 1 -o made.json
sglang.jsonl -c 2xh100-sxm -m llama-3.1-8b -tp 1 -e sglang -o made.json
"""

OTHERS = """
claims
claims --json
validate --json
validate --rows rows.csv
validate --only collectives
validate --only inference --json
validate --only training_runs --json
validate --data tables --only inference --json
measure experiment --merge study --merge study --out both --json
--version
--help
bill --help
fit --help
plan --help
simulate --help
compare --help
audit --help
measure --help
measure tp --help
pipeline --help
catalog --help
web --help
"""

REFUSED = f"""
napkin
bil
bill
bill llama-3.1-9b -c 8xh100-sxm
bill llama-3.1-8b -c 8xh100
bill llama-3.1-8b -c 8xh100-sxn -tp 8
bill llama-3.1-8b -c 0xh100-sxm
bill llama-3.1-8b -c 8x8x8xh100-sxm
bill {DENSE} -tp 3
bill {DENSE} -tp 16
bill {DENSE} -tp 0
bill {DENSE} -tp -1
bill {DENSE} -tp x
bill {DENSE} -tp 1.5
bill {DENSE} -tp 64 --engine textbook
bill {DENSE} -ep 8
bill {DENSE} -pp 64
bill {DENSE} -tp 2 -dp 8
bill {DENSE} -cp 2 --engine sglang
bill {DENSE} --batch 0
bill {DENSE} --batch nan
bill {DENSE} --context 0
bill {DENSE} --context 100M
bill {DENSE} --phase decod
bill {DENSE} --phase serve
bill {DENSE} --engine vlm
bill {DENSE} --engine vllm@x
bill {DENSE} --engine megatron
bill {DENSE} --engine fsdp --phase prefill
bill {DENSE} {TRAIN} --engine vllm
bill {DENSE} --dtype fp9
bill {DENSE} --kv-dtype int4
bill {DENSE} --library ncl
bill {DENSE} --intra nvlink9
bill {DENSE} --inter ib-ndx
bill {DENSE} --nics 0
bill {DENSE} --zero 1
bill {DENSE} --recompute full
bill {DENSE} --schedule gpipe
bill {DENSE} --imbalance 1.5
bill {DENSE} --tokens 1T
bill {DENSE} --global-batch 8
bill {DENSE} --overlap 1.5
bill {DENSE} --slow-rank 0.5
bill {DENSE} --speculative -1
bill {DENSE} --speculative 3 --phase prefill
bill {DENSE} --ep-backend deepep_low_latency
bill {DENSE} --ep-backend deepep
bill {DENSE} --exact --profile profile.json
bill {DENSE} --exact --html page.html
bill {DENSE} --emit vlm
bill {DENSE} --emit megatron
bill {DENSE} --profile none.json
bill {DENSE} --profile tiny
bill {DENSE} --profile vllm-cpu-tp1.serve.json
bill {DENSE} --topo topo-4x3090.txt
bill {DENSE} --from vllm.sh
bill {DENSE} --frm x
bill {DENSE} --replicas 3 -tp 4
bill {DENSE} {TRAIN} --zero 4
bill {DENSE} {TRAIN} --recompute ful
bill {DENSE} {TRAIN} --schedule zb
bill {DENSE} {TRAIN} --schedule dualpipe -pp 4 --global-batch 32
bill {DENSE} {TRAIN} --schedule interleaved -pp 4 --chunks 3 --global-batch 32
bill {DENSE} {TRAIN} --chunks 2
bill {DENSE} {TRAIN} -dp 8 --global-batch 12
bill {DENSE} {TRAIN} --async xx
bill {DENSE} {TRAIN} --imbalance 0.5
bill {DENSE} {TRAIN} --hsdp 3 --engine fsdp -dp 8
bill {DENSE} {TRAIN} --kv-dtype fp8
bill {DENSE} {TRAIN} --speculative 2
bill {DENSE} {TRAIN} --overlap 0.5
bill {DENSE} {TRAIN} --flops half
bill {DENSE} {TRAIN} --measured-mfu 2
bill {DENSE} {TRAIN} --tokens many
bill {DENSE} {TRAIN} -dp 8 --engine fsdp --zero 1
bill {DENSE} {TRAIN} --batch 8 --global-batch 8
bill mixtral-8x7b -c 8xh100-sxm -ep 3
bill deepseek-v3 -c 8xh200-sxm -tp 8 -ep 7
bill deepseek-v3 -c 8xh200-sxm -tp 256
bill none/config.json -c 8xh100-sxm
bill topo-4x3090.txt -c 8xh100-sxm
bill nobody/nothing-7b -c 8xh100-sxm
bill -c 8xh100-sxm --from "vllm serve"
bill -c 8xh100-sxm --from "ls -l"
bill -c 8xh100-sxm --from "vllm serve meta-llama/Llama-3.1-8B -tp eight"
bill -c 8xh100-sxm --from "vllm serve nobody/none -tp 2"
bill -c 8xh100-sxm --from "deepspeed train.py"
fit llama-3.1-70 -c 8xh100-sxm
fit {DENSE} --max-model-len 1G
fit {DENSE} --gpu-memory-utilization 2
fit {DENSE} --block-size 0
fit {DENSE} --kv-cache-memory-bytes lots
fit {DENSE} --zero 2
fit {DENSE} --phase decode
fit {DENSE} {TRAIN} --max-model-len 8k
expect all-redoce -c 8xh100-sxm
expect all-reduce -c 8xh100-sxm --ranks 9
expect all-reduce -c 8xh100-sxm --ranks 1
expect all-reduce -c 8xh100-sxm --size -1
expect all-reduce -c 8xh100-sxm --measured fast
expect all-reduce -c 8xh100-sxm --measured topo-4x3090.txt
expect all-reduce -c 8xh100-sxm --library gloo
compare {DENSE}
compare {DENSE} --over colour=1,2
compare {DENSE} --over tp=
compare {DENSE} --over tp=1,2 --over tp=1,2
compare {DENSE} --over batch=1:2:3
compare {DENSE} --plans tp1,xx2
compare {DENSE} --plans tp1,tp2 --over batch=1,2
compare {DENSE} --over batch=1,2 --links nvlink4
compare {DENSE} --plans tp1,tp2 --links nvlink9
compare {DENSE} --plans tp1,tp1
compare {DENSE} --plans tp1,tp2 --batches 0
simulate {DENSE} --concurrency 0
simulate {DENSE} --concurrency 1,x
simulate {DENSE} --spread 2
simulate {DENSE} --prefill-workers 2
simulate {DENSE} --num-prompts 10 --prompts-per-client 2
simulate {DENSE} --engine megatron
simulate {DENSE} --input-len 1M
simulate {DENSE} --disaggregated --prefill-tp 3
pipeline
pipeline -p 8
pipeline -p 8 -m 4 --budget 0.1
pipeline -p 8 -m 30 --schedule interleaved
pipeline -p 8 -m 4 --schedule zb-h1
pipeline -p 8 -m 32 --schedule zigzag
pipeline -p 3 -m 8 --schedule dualpipe
pipeline -p 8 -m 32 --times 1:1
pipeline -p 8 -m 32 --straggler 9:2
pipeline -p 8 --budget 0
pipeline -p 4 -m 8 --svg none/picture.svg
plan
plan {DENSE} --objective best
plan {DENSE} --workload talk
plan {DENSE} --tpot 30
plan {DENSE} --tpot fast
plan {DENSE} --ttft -1s
plan {DENSE} --top 0
plan {DENSE} --dtype fp9
plan {DENSE} --global-batch 8
plan {DENSE} {TRAIN}
plan {DENSE} {TRAIN} --global-batch 64 --tpot 30ms
plan {DENSE} --engine megatron
plan {DENSE} {TRAIN} --global-batch 7
plan {DENSE} --max-concurrency 0
plan {DENSE} --price -1
plan {DENSE} --emit torchrun
catalog planets
catalog chips h100
catalog chips h100-smx
catalog models llama-3
catalog engines vlm
audit none.log -m tiny -c 2xcpu
audit vllm-cpu-tp2.log -c 2xcpu
audit topo-4x3090.txt -m tiny -c 2xcpu
audit tiny/config.json -m tiny -c 2xcpu
audit vllm-cpu-tp1.latency.json -m tiny -c 2xcpu -tp 1
audit vllm-cpu-tp2.log -m tiny -c 2xcpu -tp 2 --tolerance -1
calibrate none.txt -c 8xh100-sxm -o made.json
calibrate topo-4x3090.txt -c 8xh100-sxm -o made.json
calibrate nccl-8.txt -o made.json
calibrate nccl-8.txt -c 2xh100-sxm -o made.json
calibrate vllm-cpu-tp1.latency.json -c 2xcpu -m tiny -tp 1 -o made.json
validate --only nothing
validate --data none
validate --data tiny
measure
measure tp
measure tp --random llama-9
measure tp --random llama-3.2-1b --layers 0
measure tp --random llama-3.2-1b -tp 0
measure tp --random llama-3.2-1b --layers 1 --impl none
measure tp --random llama-3.2-1b --layers 1 --emulate-link nolink
measure tp --random llama-3.2-1b --layers 1 --slow-rank 9:2
measure tp --random llama-3.2-1b --layers 1 --dtype int3
measure collectives --impl none
measure collectives --ranks 0
measure collectives --op all-to-none
measure collectives --min 1M --max 8
measure calibrate --dtype int3
measure experiment --recipe none
measure experiment --merge none
measure experiment --engine none
web --port 70000
web --port x
web --host nowhere.invalid --port 0
bill {DENSE} extra
bill minimax-m2.5 -c 8xh200-sxm -tp 8
bill deepseek-v3 -c gb200-nvl72 -tp 8 -ep 8
bill {DENSE} {TRAIN} -tp 2 -dp 4 --async dp,tp
calibrate sglang.jsonl -c 2xh100-sxm -m llama-3.1-8b -tp 2 -e sglang -o made.json
claims extra
"""

SERVED = """bill("llama-3.1-8b", "8xh100-sxm", tp=8)
bill("llama-3.1-8b", "8xh100-sxm", tp=8, batch=np.array([1, 2, 8, 64]))
bill("llama-3.1-8b", "8xh100-sxm", tp=np.array([1, 2, 3, 4, 8, 16]), batch=16)
bill("llama-3.1-8b", "8xh100-sxm", tp=np.array([[1], [2], [4]]), batch=np.array([1, 8, 64]), phase="prefill")
bill("llama-3.1-8b", "8xh100-sxm", tp=2, pp=np.array([1, 2, 4]), phase="mixed", batch=8)
bill("llama-3.1-8b", "8xh100-sxm", tp=2, context=np.array([128, 1024, 16384]))
bill("llama-3.1-8b", "8xh100-sxm", tp=8, latency_scale=0.5)
bill("llama-3.1-8b", "8xh100-sxm", tp=8, bandwidth_scale=2.0)
bill("llama-3.1-8b", "8xh100-sxm", tp=8, latency_scale=0.0, bandwidth_scale=10.0, library="nccl")
bill("llama-3.1-8b", "8xh100-sxm", tp=8, overlap=0.5, phase="prefill")
bill("llama-3.1-8b", "8xh100-sxm", tp=8, speculative=3, batch=4)
bill("llama-3.1-8b", "8xh100-sxm", tp=8, slow_rank=1.5, eager=True)
bill("llama-3.1-8b", "8xh100-sxm", tp=2, engine="sglang", dtype="fp8", kv_dtype="fp8")
bill("llama-3.1-8b", "8xh100-sxm", tp=2, replicas=4, batch=8)
bill("llama-3.1-8b", "8xh100-sxm", tp=2, profile="profile.json")
bill("deepseek-v3", "4x8xh200-sxm", tp=8, dp=4, ep=32, batch=np.array([1, 64]), ep_backend="deepep_low_latency")
bill("deepseek-v3", "4x8xh200-sxm", tp=8, dp=4, ep=32, batch=64, phase="prefill")
bill("qwen3-30b-a3b", "8xh100-sxm", tp=np.array([1, 2, 4, 8]), ep=np.array([1, 2, 4, 8]), batch=32)
bill("gemma-3-27b", "2x8xh100-sxm", tp=np.array([8, 16]), context=32768)
bill("gpt-oss-120b", "8xh100-sxm", tp=4, engine="trtllm")
bill("llama-3.1-8b", "8xh100-sxm", tp=3)
bill("llama-3.1-8b", "8xh100-sxm", tp=16)
bill("llama-3.1-9b", "8xh100-sxm")
bill("llama-3.1-8b", "8xh100-sxm", batch=-1)
bill("llama-3.1-8b", "8xh100-sxm", phase="idle")
bill("llama-3.1-8b", "8xh100-sxm", engine="megatron")
fit("llama-3.1-70b", "8xh100-sxm")
fit("llama-3.1-70b", "8xh100-sxm", tp=8, max_model_len=32768)
fit("llama-3.1-70b", "2x8xh100-sxm", tp=8, pp=2, max_num_seqs=64, gpu_memory_utilization=0.95)
fit("llama-3.1-405b", "8xh100-sxm", tp=8)
fit("gpt-oss-20b", "h100-sxm", tp=1, kv_cache_memory_bytes=40 * 2**30)
fit("deepseek-v3", "8xh200-sxm", tp=8, ep=8, kv_dtype="fp8")
fit("gemma-3-27b", "2xh100-sxm", tp=2, block_size=32, engine="sglang")
fit("llama-3.1-8b", "8xh100-sxm", tp=5)
fit("llama-3.1-8b", "8xh100-sxm", max_model_len=0)
train_bill("llama-3.1-8b", "8xh100-sxm", dp=8, batch=8)
train_bill("llama-3.1-8b", "8xh100-sxm", tp=np.array([1, 2, 4, 8]), dp=np.array([8, 4, 2, 1]), batch=8)
train_bill("llama-3.1-8b", "8xh100-sxm", tp=2, pp=4, batch=16, schedule="interleaved", chunks=2)
train_bill("llama-3.1-8b", "8xh100-sxm", tp=2, pp=4, batch=16, schedule="zb-h1")
train_bill("llama-3.1-8b", "8xh100-sxm", dp=8, batch=8, engine="fsdp", async_axes=())
train_bill("llama-3.1-70b", "8x8xh100-sxm", dp=64, engine="fsdp", hsdp=np.array([0, 8]), batch=2)
train_bill("llama-3.1-70b", "8x8xh100-sxm", tp=8, dp=8, batch=16, zero=1, recompute="full", sequence_parallel=True)
train_bill("llama-3.1-70b", "8x8xh100-sxm", tp=8, dp=8, batch=16, latency_scale=2.0, bandwidth_scale=0.5)
train_bill("llama-3.1-70b", "8x8xh100-sxm", tp=8, dp=8, batch=16, slow_axis="dp", slow_links=4.0, flops="causal")
train_bill("mixtral-8x7b", "4x8xh100-sxm", dp=32, ep=8, batch=4, zero=1, imbalance=1.3)
train_bill("llama-3.1-8b", "2x8xh100-sxm", tp=2, cp=4, dp=2, context=np.array([8192, 32768]), batch=2)
train_bill("llama-3.1-8b", "8xh100-sxm", dp=8, batch=np.array([8, 16]), micro_batch=np.array([1, 2, 4])[:, None])
train_bill("llama-3.1-8b", "8xh100-sxm", dp=3, schedule="none")
train_bill("llama-3.1-8b", "8xh100-sxm", engine="vllm")
train_fit("llama-3.1-8b", "8xh100-sxm", dp=8, zero=1, batch=8)
train_fit("llama-3.1-70b", "8xh100-sxm", tp=8, batch=8)
train_fit("llama-3.1-70b", "8x8xh100-sxm", dp=64, engine="fsdp", recompute="full")
simulate("llama-3.1-8b", "8xh100-sxm", tp=1, concurrency=32)
simulate("llama-3.1-8b", "8xh100-sxm", tp=2, concurrency=np.array([1, 8, 64, 512]), input_len=2000, output_len=300)
simulate("llama-3.1-8b", "8xh100-sxm", tp=np.array([1, 2, 4]), concurrency=64, spread=0.0)
simulate("llama-3.1-8b", "8xh100-sxm", tp=2, concurrency=64, num_prompts=640, engine="sglang")
simulate("llama-3.1-8b", "8xh100-sxm", tp=2, concurrency=64, disaggregated=True, prefill_workers=2)
simulate("llama-3.1-8b", "8xh100-sxm", tp=2, concurrency=0)
plan("llama-3.1-8b", "8xh100-sxm", tpot_s=0.01)
plan("llama-3.1-70b", "2x8xh100-sxm", tpot_s=0.03, ttft_s=0.5)
plan("llama-3.1-70b", "8xh100-sxm", objective="cost", usd_per_gpu_hour=2.0, disaggregated=False)
plan("qwen3-30b-a3b", "8xh100-sxm", objective="latency", dtypes=("bf16", "fp8"), engine="sglang")
plan("llama-3.1-8b", "8xh100-sxm", objective="speed")
plan_training("llama-3.1-8b", "8xh100-sxm", global_batch=64)
plan_training("llama-3.1-70b", "8x8xh100-sxm", global_batch=128, engine="fsdp")
compare("llama-3.1-8b", "8xh100-sxm", ["tp=1,2,4,8"], batch=8)
compare("llama-3.1-8b", "8xh100-sxm", ["tp=1,2,3", "link=nvlink4,10gbe"])
compare("llama-3.1-8b", "8xh100-sxm", ["dp=1,8"], phase="train")
compare("llama-3.1-8b", "8xh100-sxm", ["hue=1"])
compare_plans("llama-3.1-8b", "8xh100-sxm", ["tp1", "tp8", "tp4dp2", "tp3"], batches=[1, 64])
compare_plans("llama-3.1-70b", "2x8xh100-sxm", ["tp16", "tp8pp2"], links=["ib-ndr", "10gbe"], batches=[32])
compare_plans("llama-3.1-8b", "8xh100-sxm", ["dp8", "tp2dp4"], batches=[64], phase="train")
expect("all-reduce", "8xh100-sxm", nbytes=2**30)
expect("all-reduce", "8xh100-sxm", nbytes=2.0 ** np.arange(3, 31, 3), library="vllm")
expect("all-to-all", "4x8xh100-sxm", nbytes=2**26, ranks=16)
expect("all-reduce", "8xh100-sxm", nbytes=2**30, ranks=9)
expect("all-reduce", "8xh100-sxm", nbytes=2**30, profile="profile.json")
traffic("llama-3.1-8b", "8xh100-sxm", tp=8, batch=3)
traffic("llama-3.1-8b", "8xh100-sxm", tp=np.array([1, 2, 4, 8]), batch=3, phase="prefill")
traffic("deepseek-v3", "4x8xh200-sxm", tp=8, dp=4, ep=32, batch=16)
traffic("llama-3.1-8b", "8xh100-sxm", tp=2, dp=4, phase="train", batch=8)
napkin.allreduce_payload_bytes(16, 4096)
napkin.ring_allreduce_traffic_per_rank(1e6, 8)
napkin.allreduce_time_s(1e6, 8, 450e9, 5e-6)
napkin.comm_fraction(0.1, 0.4)
napkin.crossover_payload_bytes(8, 450e9, 5e-6)
napkin.bubble_fraction(8, 32)
napkin.min_microbatches_for_bubble(8, 0.05)
napkin.dp_local_token_threshold(989e12, 0.4, 50e9)
napkin.tp_tax(989e12, 450e9, 8192, 8)
napkin.dp_allreduce_time_s(8e9, 50e9)
napkin.backward_time_s(8e9, 4096, 989e12, 0.4)
napkin.ridge_point(989e12, 3.35e12)
napkin.kv_bytes_per_token(32, 8, 128, 2)
napkin.bubble_fraction(0, 32)
napkin.allreduce_time_s(1e6, 8, 0, 5e-6)"""

BIG, HUGE = "m=llama-3.1-70b&c=8x8xh100-sxm", "m=deepseek-v3&c=2x8xh200-sxm"
PATHS = f"""catalog
view
view?tp=8
view?tp=2&b=32&s=8192
view?m=llama-3.1-70b&tp=4&ph=prefill&s=8192
view?c=2x1xh100-sxm&inter=10gbe&tp=2
view?{HUGE}&tp=16&ep=16&b=32
view?{HUGE}&tp=8&dp=2&ep=16&e=sglang
view?{HUGE}&tp=1&dp=16&ep=16&e=trtllm
view?{BIG}&tp=8&dp=8&ph=train
view?{BIG}&dp=64&ph=train&e=fsdp
view?{BIG}&tp=8&dp=8&ph=train&z=1&sp=1&rc=full
view?{BIG}&tp=8&pp=4&dp=2&ph=train&n=16&rc=full&sp=1
view?{BIG}&tp=4&pp=4&dp=4&ph=train&n=16&sch=interleaved
view?{BIG}&tp=4&pp=4&dp=4&ph=train&n=16&sch=zb-h1
view?{BIG}&tp=8&cp=2&dp=4&ph=train&s=16384
view?m=qwen3-30b-a3b&c=2x8xh100-sxm&ph=train&dp=16&ep=8
view?m=qwen3-30b-a3b&c=8x8xh100-sxm&ph=train&dp=64&ep=8&n=16&e=torchtitan
view?h=8192&L=80&c=8x8xh100-sxm&tp=16&dp=4&ph=train
view?h=4096&L=32&tp=4&b=8
view?m=gpt-oss-120b&tp=4&dt=fp8&kv=fp8
view?m=gemma-3-27b&tp=4&s=32768&eg=1
view?tp=8&lib=nccl
view?tp=8&lib=textbook&e=textbook
view?tp=2&pp=2&dp=2
view?c=4x4090-pcie&m=qwen3-8b&tp=4
view?c=8xmi300x&m=llama-3.1-405b&tp=8
view?m=llama-3.1-405b&tp=8
view?{BIG}&tp=8&dp=8&ph=train&as=none
view?tp=3
view?tp=16
view?tp=x
view?tp=0
view?m=llama-9
view?m=deepseek-v3&c=8xh200-sxm&tp=8&ep=7
view?zz=1
view?tp=1&tp=2
view?ph=idle
view?c=8xh100
view?cfg=%7B
view?ph=train&e=vllm
bill?tp=8
bill?{BIG}&tp=8&dp=8&ph=train
bill?{HUGE}&tp=16&ep=16&b=32
bill?tp=5
bill?m=llama-3.1-70b&tp=4&ph=prefill&s=8192
fit?tp=1
fit?m=llama-3.1-70b&tp=8
fit?{BIG}&tp=8&dp=8&ph=train
fit?m=llama-3.1-405b&tp=2
compare?tp=8&grid=tp-link
compare?tp=8&grid=tp-batch
compare?{BIG}&tp=8&dp=8&ph=train&grid=tp-link
compare?{BIG}&tp=8&dp=8&ph=train&grid=tp-batch
compare?{HUGE}&tp=16&ep=16&b=32&grid=tp-batch
compare?tp=8&grid=none
pipeline?{BIG}&tp=8&pp=4&dp=2&ph=train&n=16
pipeline?{BIG}&tp=8&pp=4&dp=2&ph=train&n=16&sch=zb-v
pipeline?{BIG}&tp=8&pp=4&dp=2&ph=train&n=16&sch=interleaved&v=4
pipeline?tp=2&pp=4
pipeline?tp=2
plan?c=8xh100-sxm&tpot=30
plan?m=llama-3.1-70b&c=2x8xh100-sxm&tpot=30&ttft=500
plan?m=qwen3-30b-a3b&obj=latency
plan?obj=cost&tpot=20&il=2048&ol=512
plan?{BIG}&ph=train&dp=64&n=2
plan?tpot=0.01
plan?obj=best
plan?il=0
nothing"""


def real_files() -> dict[str, str]:
    """Names and texts of other people's files that the tests hold."""
    kept = {
        kind: json.loads((ROOT / f"tests/fixtures/audit/{kind}.json").read_text())
        for kind in ("benches", "logs", "training", "rocprof")
    }
    endings = {"training": "log", "logs": "log", "rocprof": "csv", "benches": "txt"}
    return {
        f"real/{kind}-{number:02}.{endings[kind]}": one["text"] if "text" in one else "\n".join(one["lines"]) + "\n"
        for kind, ones in kept.items()
        for number, one in enumerate(ones)
        if "text" in one or "lines" in one
    }


EAGER = (
    *(
        "deepseek-v3",
        "deepseek-v3.2",
        "deepseek-v4-flash",
        "gemma-4-26b-a4b",
        "glm-4.5-air",
        "glm-5.2",
        "gpt-oss-20b",
        "gpt-oss-120b",
    ),
    *("kimi-k2", "kimi-linear-48b-a3b", "llama-4-scout", "mimo-v2-flash", "minimax-m2.5", "mixtral-8x7b", "qwen3-30b-a3b"),
    *("nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b", "nemotron-h-56b", "nemotron-nano-9b-v2", "qwen3-235b-a22b"),
    *("qwen3-next-80b-a3b", "qwen3-vl-30b-a3b", "qwen3.5-27b", "qwen3.5-35b-a3b", "step-3.5-flash", "gemma-3-27b", "llama-3.1-8b"),
)
"""Mixtures, hybrids and dense models, whose launches the host issues one by one."""
LAUNCHED = "\n".join(
    f"{model} -c 8xh200-sxm -tp 8 --eager --batch {batch}{more}"
    for model in EAGER
    for batch, more in ((1, ""), (32, " --phase prefill --context 512"))
)
TIMED = f"""
{DENSE} -tp 1 --request-rate 4 --num-prompts 60 --seed 3
{DENSE} -tp 1 --request-rate 30 --num-prompts 60 --input-len 512 --output-len 64
{DENSE} -tp 2 --request-rate inf --num-prompts 40 --engine sglang
{DENSE} -tp 2 --request-rate 8 --num-prompts 60 --engine trtllm
{DENSE} -tp 2 --replicas 2 --request-rate 20 --num-prompts 60 --router least-loaded
{DENSE} -tp 2 --replicas 2 --request-rate 20 --num-prompts 60 --router prefix --unique-prompts 5
{DENSE} -tp 2 --request-rate 8 --num-prompts 60 --shared-prefix 512
{DENSE} -tp 2 --request-rate 8 --num-prompts 60 --prefix-cache 0.5 --burstiness 0.5
{DENSE} -tp 2 --request-rate 8 --duration 10s --ttft-p95 500ms --tpot-p99 30ms
{DENSE} -tp 2 --request-rate 8 --num-prompts 60 --goodput ttft:300 --goodput tpot:20
{DENSE} -tp 2 --request-rate 8 --num-prompts 60 --disaggregated --prefill-workers 2
{DENSE} -tp 1 --request-rate 4 --num-prompts 60 --input-len sharegpt --output-len sharegpt
{DENSE} -tp 1 --sweep request-rate=1,4,16 --num-prompts 40
{DENSE} -tp 1 --sweep concurrency=1,8 --num-prompts 40
{DENSE} -tp 1 --request-rate 4 --num-prompts 60 --warmup 10 --max-num-seqs 16
llama-3.1-70b -c 8xh100-sxm -tp 4 -pp 2 --request-rate 4 --num-prompts 40
qwen3-30b-a3b -c 8xh100-sxm -tp 4 -dp 2 -ep --request-rate 10 --num-prompts 40
qwen3.5-27b -c 8xh200-sxm -tp 4 --request-rate 4 --num-prompts 40
gpt-oss-20b -c 8xh100-sxm -tp 2 --request-rate 6 --num-prompts 40
{DENSE} -tp 1 --request-rate 0
{DENSE} -tp 1 --request-rate 4 --sweep request-rate=1,2
"""
"""Requests in time."""
SEARCHED = f"""
{DENSE} --request-rate 10 --num-prompts 60
{DENSE} --request-rate 10 --num-prompts 60 --ttft-p99 1s --tpot-p95 30ms
{DENSE} --request-rate 40 --num-prompts 60 --objective cost
qwen3-30b-a3b -c 8xh100-sxm --eager
{DENSE} --confidence 80% --tpot 12ms
{DENSE} --margin 0 --tpot 20ms
qwen3-30b-a3b -c 8xh200-sxm --redundant-experts 16 --imbalance 1.2
{DENSE} --prefill-cluster 4xh200-sxm
qwen3.5-27b -c 8xh200-sxm --tpot 20ms
llama-3.1-8b -c 8xh100-sxm -c 8xl40s --tpot 30ms
"""

JSON = {
    "bill": BILL,
    "eager": LAUNCHED,
    "timed": TIMED,
    "searched": SEARCHED,
    "fit": FIT,
    "expect": EXPECT,
    "compare": COMPARE,
    "simulate": SIMULATE,
    "pipeline": PIPELINE,
    "plan": PLAN,
    "catalog": CATALOG,
    "audit": AUDIT,
    "real": "\n".join(f"{path} -m llama-3.1-8b -c 8xh100-sxm -tp 8" for path in real_files()),
    "calibrate": CALIBRATE,
}
VERBS = {"eager": "bill", "timed": "simulate", "searched": "plan", "real": "audit"}
"""Verbs that answer in JSON: every fifth question is asked for its text instead."""


def questions() -> Iterator[tuple[str, str, str]]:
    """Name, kind (command, python or web), and what is asked."""
    for verb, block in JSON.items():
        for number, line in enumerate(block.removeprefix("\n").removesuffix("\n").split("\n")):
            text = number % 5 == 4 or "--csv" in line
            yield f"{verb}-{number:03}", "command", f"{VERBS.get(verb, verb)} {line}{'' if text else ' --json'}"
    for name, block in {"other": OTHERS, "refused": REFUSED}.items():
        for number, line in enumerate(block.strip().split("\n")):
            yield f"{name}-{number:03}", "command", line
    for number, line in enumerate(documented()):
        yield f"docs-{number:03}", "command", line
    for number, line in enumerate(SERVED.split("\n")):
        yield f"python-{number:03}", "python", f"commtax.{line}"
    for number, line in enumerate(PATHS.split("\n")):
        yield f"web-{number:03}", "web", f"/api/{line}"


def documented() -> list[str]:
    """Every command that README and docs show."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"^```(?:sh|console)\n(.*?)^```", page.read_text(), re.M | re.S)]
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.removeprefix("commtax ").partition(" | ")[0] for line in lines if line.startswith("commtax ")]
