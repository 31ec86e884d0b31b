"""What the hostile benchmarks type: values that make sense, extreme ones, and garbage."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import click

from commtax import catalog
from commtax.catalog.programs import programs
from commtax.launch.flags import Flags, flags_of

MODELS = (
    *("llama-3.1-8b", "llama-3.2-1b", "llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-27b", "deepseek-v3"),
    "mixtral-8x7b",
)
CLUSTERS = (
    *("8xh100-sxm", "2x8xh100-sxm", "8xh200-sxm", "4xb200-sxm", "18x4xgb200", "8xmi300x", "4xa100-80-sxm", "2xl40s"),
    *("dgx-h100", "16x8xh100-sxm", "64x8xh200-sxm"),
)
FOLDERS = ("samples/tiny", "samples/stored", "samples/mixture", "samples/quantised/config.json")
INSIDE, BETWEEN = ("nvlink4", "pcie5", "pcie4"), ("ib-ndr", "10gbe", "roce-400")
WORDS: dict[str, Sequence[str]] = {
    "model": (*MODELS, *FOLDERS, "meta-llama/Llama-3.1-8B"),
    "cluster": CLUSTERS,
    "intra": INSIDE,
    "inter": BETWEEN,
    "emulate_link": BETWEEN,
    "links": ("nvlink4", "nvlink4,pcie5,10gbe"),
    "engine": ("vllm", "sglang", "trtllm", "torch", "builtin", "textbook", "vllm@0.11", "vllm@0.6.3"),
    "dtype": ("bf16", "fp8", "int4", "fp16"),
    "kv_dtype": ("auto", "bf16", "fp8"),
    "library": ("nccl", "vllm", "sglang", "trtllm", "gloo", "textbook"),
    "emit": ("vllm", "sglang", "trtllm", "megatron", "torchrun", "kubernetes", "dynamo", "llm-d", "compose", "slurm"),
    "phase": ("decode", "prefill", "mixed"),
    "over": ("batch=1:64", "tp=1,2,4,8", "link=nvlink4,10gbe", "context=128,1024", "batch=1,8,64", "dp=1,2"),
    "plans": ("tp1,tp2,tp4dp2", "tp8", "tp4pp2,tp8", "dp8,tp2dp4"),
    "batches": ("1,8,64", "4"),
    "ttft": ("500ms", "2s", "50ms"),
    "tpot": ("30ms", "100ms", "5ms"),
    "workload": ("chat", "summarise", "code", "rag"),
    "objective": ("throughput", "latency", "cost", "gpus"),
    "recompute": ("none", "selective", "full"),
    "schedule": ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v"),
    "async_axes": ("none", "dp", "dp,tp"),
    "flops": ("full", "causal"),
    "tokens": ("15T", "300B", "1.4e12"),
    "times": ("1:1:1", "1:2:1", "0.5:1:0.25"),
    "straggler": ("0:1.5", "1:2"),
    "op": ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv"),
    "measured": ("380GB/s", "25us", "4ms", "samples/nccl-8.txt"),
    "ep_backend": ("allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"),
    "kind": ("chips", "links", "clusters", "models", "engines"),
    "name": ("llama-3.1-8b", "h100-sxm", "nvlink4", "vllm", "dgx-h100", "deepseek-v3"),
    "profile": ("samples/profile.json", "samples/kernels-profile.json"),
    "topo": ("samples/topo-4x3090.txt",),
    "baseline": ("samples/vllm-cpu-tp1.latency.json", "samples/vllm-cpu-tp1.serve.json"),
    "html": ("page.html",),
    "plot": ("picture.svg",),
    "svg": ("picture.svg",),
    "chrome_trace": ("trace.json",),
    "out": ("made.json", "made"),
    "output": ("made.json",),
    "rows": ("rows.csv",),
    "merged": ("samples/study",),
    "data": ("samples/tables",),
    "only": ("inference", "training_runs"),
}
"""By the name of a parameter. What is not here gets words of its own help, so that a new option is tried without being told."""
COUNTS: dict[str, Sequence[int]] = {
    "tp": (1, 1, 2, 4, 8),
    "pp": (1, 1, 2, 4),
    "dp": (1, 1, 2, 4),
    "ep": (1, 2, 8),
    "cp": (1, 1, 2),
    "batch": (1, 2, 8, 32, 64, 200),
    "context": (128, 1024, 4000, 8192, 32768),
    "input_len": (128, 1024, 8192),
    "output_len": (1, 16, 128, 512),
    "stages": (1, 2, 4, 8, 16, 1000),
    "microbatches": (1, 8, 16, 64, 2000),
    "chunks": (1, 2, 4),
    "nics": (1, 4, 8),
    "ranks": (2, 4, 8),
    "zero": (0, 1, 2, 3),
    "micro_batch": (1, 2),
    "global_batch": (8, 64, 512),
    "speculative": (1, 3),
    "max_model_len": (2048, 8192, 131072),
    "max_num_batched_tokens": (2048, 8192),
    "max_num_seqs": (16, 64, 256),
    "block_size": (16, 32),
}
EXTREME = (
    *("0", "-1", "1", "3", "7", "1e3", "1.5", "128k", "1g", "1G", "1e18", "1e-300", "1e300", "1e308", "1e400", "-1e308"),
    *("nan", "inf", "-inf", "-0", "99999999999999999999", "9" * 39, "9" * 5000, "2147483648", "9223372036854775807"),
    *("9223372036854775808", "0x10", "1_000", "1,000", " 7 ", "٣", "１２", "Ⅷ", "1e", "+8", "0.0", "1e-9", "100%", "50%"),
    *("1e-5%", "%", "NaN%", "1/3", "4.9e-324", "1000000", "16777217", "65536", "4096", "1023", "0.01", "0.0001", "512", "2"),
)
GARBAGE = (
    *("", " ", "-", "--", "---", "=", ",", ",,", ":", "::", "/", ".", "..", "*", "?", "#", "@", "%s%n", "{0}", "${x}", "$(x)"),
    *("`x`", "~", "\x1b[31mred\x1b[0m", "[red]x[/red]", "[/]", "[bold", "]", "💥", "é" * 40, "a" * 5000, "x" * 70_000),
    *("\u202egnp.exe", "a\nb", "\t", "\udcff\udcfe", "\x01\x02", "\u2028", "İ", "ß", "None", "null", "true", "[]", "{}"),
    *('"', "'", "\\", "a b", "0", "-1", "nan", "1e999", "8x", "x8", "0x8xh100-sxm", "8x8x8xh100-sxm", "tp0", "tp1,", "tp1tp1"),
    *("99999999999x8xh100-sxm", "1000000xh100-sxm", "vllm@", "vllm@x", "batch=", "batch=1:1000000", "batch=1:99999999999"),
    *("tp=1,x", "link=", "context=1:2:3", "pp-1", "1:1", "1:1:1:1", "nan:1:1", "1:0:1", "/dev/null", "/dev/zero", "/dev/full"),
    *("samples", "samples/none", "samples/vllm-cpu-tp2.log", "samples/profile.json", "../..", "no/such.json", "/etc", "COM1"),
    *(",".join(map(str, range(1, 5000))), "tp1," * 2000, "batch=" + "1," * 5000, "1:" * 5000),
    *("/proc/self/mem", "x.svg", "x.png", "x.pdf", "x.unknown", "a/b", "a/b/c", "http://127.0.0.1:9/x", "hf://x"),
)


def word(rng: random.Random, param: click.Parameter) -> str:
    """A value that this parameter may well take."""
    name = param.name or ""
    if param.type.name == "F" or name in ("slow_rank", "imbalance", "transfer", "price"):
        return rng.choice(("0.9", "0.5", "92%", "1", "1.5" if name in ("slow_rank", "imbalance", "price") else "0.1", "0.25"))
    if param.type.name == "SIZE":
        return rng.choice(("8", "16K", "1M", "1G", "4GiB", "80GB"))
    if param.type.name == "N" or name in COUNTS or name == "concurrency":
        return str(rng.choice(COUNTS.get(name, (1, 2, 4, 8, 16, 100, 1000, int(10 ** rng.uniform(0, 6))))))
    if name == "pasted":
        return launch(rng)
    if name == "cluster" and rng.random() < 0.2:
        return f"{rng.choice(('', '2x', '4x'))}{rng.choice((1, 2, 4, 8))}x{rng.choice(catalog.keys('chips'))}"
    if name == "model" and rng.random() < 0.4:
        return rng.choice(catalog.keys("models"))
    if name in WORDS:
        return rng.choice(WORDS[name])
    told = f"{getattr(param, 'help', '') or ''} {param.default or ''}"
    return rng.choice([w.strip(".,;:()[]") for w in told.split()] or ["x"])


def hostile(rng: random.Random, param: click.Parameter) -> str:
    """A value that nobody should give: out of range, no value at all, or a good one damaged."""
    kind = rng.random()
    if kind < 0.2 and (good := word(rng, param)) and (numbers := list(re.finditer(r"\d+(\.\d+)?", good))):
        one = rng.choice(numbers)
        return good[: one.start()] + rng.choice(EXTREME) + good[one.end() :]
    if param.type.name in ("N", "SIZE", "F", "float", "integer"):
        return rng.choice(EXTREME if kind < 0.8 else GARBAGE)
    if kind < 0.4:
        return damaged(rng, word(rng, param))
    return rng.choice(GARBAGE if kind < 0.85 else EXTREME)


def damaged(rng: random.Random, text: str) -> str:
    """One to three letters dropped, doubled, swapped or replaced, or the whole in another spelling."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        sign = rng.choice("0159xX-=,.:/_ @[]'\"\\$%\x1b\n💥é")
        change = rng.randrange(6)
        text = (
            text[:at] + text[at + 1 :],
            text[:at] + sign + text[at:],
            text[:at] + sign + text[at + 1 :],
            text[:at] + text[at : at + 3] * rng.choice((2, 40)) + text[at:],
            text.swapcase(),
            text[at:] + text[:at],
        )[change]
    return text


STARTS = {
    "vllm": "vllm serve {model}",
    "sglang": "python -m sglang.launch_server --model-path {model}",
    "trtllm": "trtllm-serve {model}",
    "megatron": "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32",
    "torchtitan": "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b",
}
HUB = ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3")


def launch(rng: random.Random, bad: float = 0.15) -> str:
    """A launch command of some engine with some of its own flags, or the file that holds one."""
    if rng.random() < 0.1:
        return f"samples/{rng.choice(('vllm', 'sglang', 'trtllm', 'megatron', 'titan'))}.sh"
    engine = rng.choice(programs()).key
    flags = flags_of(engine).flags
    parts = [STARTS[engine].format(model=rng.choice(HUB))]
    for flag in rng.sample(sorted(flags), rng.randint(0, 4)):
        parts.append(_flag(rng, flag, flags, bad))
    text = " ".join(parts)
    return damaged(rng, text) if rng.random() < bad else text


def _flag(rng: random.Random, flag: str, flags: Flags, bad: float) -> str:
    name, kind = flags[flag]
    dashes = "-" if len(flag) <= 3 else "--"
    if kind == "on":
        return f"{dashes}{flag}"
    if rng.random() < bad:
        value = rng.choice((*EXTREME, *GARBAGE))
    elif kind == "share":
        value = rng.choice(("0.9", "0.85", "0.5"))
    elif kind == "text":
        value = rng.choice(WORDS.get(name, ("auto", "fp8", "full", "x", "1")))
    else:
        value = str(rng.choice(COUNTS.get(name, (1, 2, 8, 64))))
    spelt = flag.replace("-", "_") if rng.random() < 0.2 else flag
    return f"{dashes}{spelt}{rng.choice((' ', ' ', '='))}{value if len(value) < 200 else value[:200]}"
