"""A folder of real files, one or more of every kind that commtax reads: the material of the hostile benchmarks."""

from __future__ import annotations

import csv
import gzip
import json
import random
import shutil
import struct
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "helpers"))  # small traces are made as the tests make them

LAUNCHES: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
RENAMED = ("collectives", "serving_runs", "inference", "training_runs")


def make(folder: Path) -> Path:
    """Fill an empty folder; names say what each file is."""
    fixtures = HERE.parent / "tests" / "fixtures"
    for file in fixtures.iterdir():
        if file.is_file():
            shutil.copy(file, folder / file.name)
    packed = (fixtures / "vllm-cpu-tp2-rank0.trace.json.gz").read_bytes()
    (folder / "vllm-cpu-tp2-rank0.trace.json").write_bytes(gzip.decompress(packed))
    for name, text in LAUNCHES.items():
        (folder / name).write_text(text)
    serve = json.loads((folder / "vllm-cpu-tp1.serve.json").read_text())
    line = {**serve, "backend": "sglang", "mean_e2e_latency_ms": 800.0, "max_concurrency": 8, "accept_length": 1.0}
    (folder / "sglang.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps({**line, 'max_concurrency': 4})}\n")
    figures = {"unit": "ms", "avg": 40.0, "p50": 38.0, "p99": 90.0}
    blocks = dict.fromkeys(("time_to_first_token", "inter_token_latency"), figures)
    (folder / "aiperf.json").write_text(json.dumps({**blocks, "request_latency": {"unit": "ms", "avg": 900.0}}))
    import made_traces

    for rank in (0, 1):
        made_traces.write(folder / f"graphs-rank{rank}.json", made_traces.decode_graphs(5, 1, rank=rank, late_us=3.0 * rank))
    _collectives(folder)
    _models(folder)
    _tables(folder / "tables")
    _profiles(folder)
    _experiment(folder / "study")
    return folder


def _collectives(folder: Path) -> None:
    """nccl-tests' text and rows of ``measure collectives``, from a ring of 180 GB/s."""
    rng = random.Random(0)
    rows = []
    for ranks in (2, 4, 8):
        lines = ["# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 2(factor)"]
        lines.append("# Collective test starting: all_reduce_perf")
        lines += [f"#  Rank {i:2d} Group  0 Pid {900 + i} on host device {i} [0x00] GPU" for i in range(ranks)]
        for size in (2**x for x in range(10, 31, 2)):
            us = 14 + 2.2 * ranks + size * 2 * (ranks - 1) / ranks / 180e3 * rng.uniform(0.98, 1.02)
            rate = f"{us:9.3f} {size / us / 1e3:8.3f} {size / us / 1e3 * 2 * (ranks - 1) / ranks:8.3f}"
            lines.append(f"{size:>12} {size // 4:>12} float sum -1 {rate} 0 {rate} 0")
            rows.append({"op": "all-reduce", "impl": "nccl", "ranks": ranks, "size_bytes": size, "time_us": us, "wrong": 0})
        (folder / f"nccl-{ranks}.txt").write_text("\n".join([*lines, "# Out of bounds values : 0 OK", ""]))
    (folder / "collectives.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind in ("gemm", "decode", "prefill"):
        lines = (HERE / "h200" / f"{kind}.jsonl").read_text().splitlines()
        (folder / f"{kind}.jsonl").write_text("\n".join(lines[:120]) + "\n")


def _models(folder: Path) -> None:
    """Folders with a config.json, one of them with tensors; a quantised one."""
    from commtax import catalog

    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}
    quantised = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    tiny = json.loads((HERE.parent / "tests" / "fixtures" / "tiny-llama" / "config.json").read_text())
    kept = {"mixture": "deepseek-v3", "window": "gemma-3-27b", "modelopt": "llama-3.1-8b"}
    configs = {"tiny": tiny, **{name: catalog.config(key) for name, key in kept.items()}}
    quantised = {**quantised, "ignore": ["lm_head", "re:.*gate$"]}
    configs["quantised"] = {**catalog.config("llama-3.1-8b"), "quantization_config": quantised}
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    _stored(folder / "stored")
    stored = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (folder / "modelopt" / "hf_quant_config.json").write_text(json.dumps(stored))


def _stored(folder: Path) -> None:
    """A decoder of one small layer with its tensors."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "tie_word_embeddings": True, **sizes}
    config |= {"torch_dtype": "bfloat16", "max_position_embeddings": 128}
    layer = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32)}
    layer |= {"mlp.gate_proj": (64, 32), "mlp.up_proj": (64, 32), "mlp.down_proj": (32, 64)}
    layer |= {"input_layernorm": (32, 1), "post_attention_layernorm": (32, 1)}
    shapes = {"embed_tokens": (64, 32), "norm": (32, 1), **{f"layers.0.{name}": shape for name, shape in layer.items()}}
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        start, end = end, end + 2 * rows * columns
        header[f"model.{name}.weight"] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def _tables(folder: Path) -> None:
    """The published tables in small, under the columns that folders of tables have."""
    from importlib.resources import files

    from commtax_lab.published.rows import names

    folder.mkdir()
    for name in RENAMED:
        lines = (files("commtax_lab.published") / "tables" / f"{name}.csv").read_text().splitlines()
        rows = list(csv.reader(lines[:40]))
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([[names()["columns"][name].get(column, column) for column in rows[0]], *rows[1:]])


def _profiles(folder: Path) -> None:
    """What ``commtax calibrate`` makes of the files above."""
    from commtax import catalog
    from commtax.catalog.profile_files import write_profile
    from commtax.runs.calibrate.calibration import calibrate
    from commtax.spec import Deployment, RunLesson

    cluster = catalog.cluster("8xh100-sxm")
    for name, files in {"profile": [f"nccl-{n}.txt" for n in (2, 4, 8)], "kernels-profile": ["gemm.jsonl", "decode.jsonl"]}.items():
        found = calibrate([folder / file for file in files], cluster, name=name)
        (folder / f"{name}.json").write_text(json.dumps(found.document))
    served = Deployment("vllm", "0.12", "h100-sxm", "LlamaForCausalLM", "llama-3.1-8b", "bf16", tp=2)
    lessons = (RunLesson(served, m, c, 1024, 128, 0.01, 0.009, 0.1, {"host_s": 0.2}) for c in (1, 64) for m in ("tpot", "ttft"))
    learnt = replace(found.profile, name="learnt", host={"host_s": 1e-3}, lessons=tuple(lessons))
    for ending in ("toml", "json"):
        write_profile(folder / f"learnt.{ending}", learnt)


def _experiment(folder: Path) -> None:
    """The document of a finished study, made from runs that are made up."""
    from commtax import catalog
    from commtax_lab.measure.study.findings import Prices, analyse, answers
    from commtax_lab.measure.study.recipe import StudyRun

    names = ("recipe", "version", "profile", "cluster")
    facts: dict[str, Any] = dict.fromkeys(names, "")
    facts |= {"quick": True, "engine": "builtin", "model": "llama-3.2-1b", "dtype": "fp32"}
    facts |= {"box": "a", "device": "cpu", "serving_lengths": "synthetic", "checks": [], "link_counters": [], "missing": []}
    times = {"latency_s": [0.31, 0.3, 0.32], "decode_s": [0.009, 0.01], "prefill_s": [0.02, 0.021]}
    served: dict[str, Any] = {"stats_s": {m: {"mean": 0.02, "median": 0.02, "p99": 0.05} for m in ("ttft", "itl", "tpot", "e2el")}}
    served |= {"requests": 16, "failed": 0, "requests_per_s": 4.0, "output_tokens_per_s": 90.0}
    served |= {"input_len": 128.0, "output_len": 32.0}
    shapes = (("latency", 1, 128, 32), ("batch", 4, 128, 32), ("batch", 16, 128, 32), ("serve", 0, 128, 32))
    runs = [StudyRun(kind, tp, batch, length, output, 3) for tp in (1, 2) for kind, batch, length, output in shapes]
    prices = Prices(catalog.model("llama-3.2-1b"), "", "builtin")
    found = analyse(facts, [(run, served if run.kind == "serve" else times) for run in runs], prices)
    folder.mkdir()
    (folder / "experiment.json").write_text(json.dumps({**found, "answers": answers(found)}))
