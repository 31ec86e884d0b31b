"""Public start-up logs of vLLM, and what fits by the question that each was started with."""

import json
from dataclasses import replace

import commtax
from commtax import catalog
from commtax.catalog.hf import from_config
from commtax.catalog.quantisation import quant_from
from paths import FIXTURES

GIB = 2**30
LOGS = json.loads((FIXTURES / "vllm_logs.json").read_text())


def of_log(row):
    """The model, the cluster and the fit of one logged start."""
    model = from_config(row["config"], row["model"]) if "config" in row else catalog.model(row["model"])
    if "quantization_config" in row:
        model = replace(model, quant=quant_from(row["quantization_config"], model.key))
    args = row["args"]
    cluster = catalog.cluster(f"{args['tp'] * args.get('pp', 1)}x{row['chip']}")
    if "total_gib" in row:
        cluster = replace(cluster, chip=replace(cluster.chip, visible_bytes=row["total_gib"] * GIB))
    return model, commtax.fit(model, cluster, **args)


def name(row):
    return f"{row['model']}-{row['chip']}-tp{row['args']['tp']}-{row['version'].split()[0]}"


def start_log(folder, name, kv_gib, kv_tokens):
    """The file of a start of Llama-3.3-70B at TP 4 and 0.85 of the memory, with so much of it for the cache."""
    lines = (
        "vLLM API server version 0.12.0",
        "args: Namespace(max_model_len=32768, gpu_memory_utilization=0.85, max_num_seqs=256)",
        "Initializing a V1 LLM engine (v0.12.0) with config: model='meta-llama/Llama-3.3-70B-Instruct', tensor_parallel_size=4",
        "Model loading took 32.89 GiB memory and 61.2 seconds",
        f"Available KV cache memory: {kv_gib:.2f} GiB",
        f"GPU KV cache size: {kv_tokens:,} tokens",
        f"Maximum concurrency for 32,768 tokens per request: {kv_tokens / 32768:.2f}x",
        "Graph capturing finished in 18 secs, took 1.66 GiB",
    )
    (file := folder / f"{name}.log").write_text("".join(f"INFO 05-12 09:14:02 [x.py:1] {line}\n" for line in lines))
    return file
