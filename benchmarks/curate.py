"""Choose the published figures that ship with commtax: ``python benchmarks/curate.py DATA_DIR``.

Takes a spread of rows of each larger table (by the hash of the row, so that the choice is the same every time), in our own
columns and rounded to what a figure is worth, and writes ``laboratory/commtax_lab/published/tables/*.csv``.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from commtax import catalog
from commtax.cost.collectives import applies
from commtax.spec import Engine
from commtax_lab.published import kernel_tables as kernel_tables
from commtax_lab.published import open_loop
from commtax_lab.published.collective_rows import mode
from commtax_lab.published.inferencemax import is_by_inferencemax
from commtax_lab.published.rows import names
from commtax_lab.published.serving_rows import is_fitted, may_draft, planning_rule, question
from commtax_lab.published.sweep import load as read_own
from commtax_lab.published.tables import dicts, read
from commtax_lab.published.training import row_questions
from commtax_lab.published.training_rows import whole_rows
from commtax_lab.published.weights import TILES

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "benchmarks" / "published"  # figures that we read in logs and documents ourselves
OUT = ROOT / "laboratory" / "commtax_lab" / "published" / "tables"
Row = dict[str, str]
HOW = {"rank rows": " (rank rows)", "NCCL_ALGO": ", NCCL_ALGO set"}  # what of a method matters beside its kind
IN_FLIGHT = 320  # requests of an open-loop run that ships


def spread_out(rows: Iterable[Row], by: Callable[[Row], object], each: int) -> list[Row]:
    """At most ``each`` rows of every group, those with the smallest hashes."""
    groups = defaultdict(list)
    for row in rows:
        groups[by(row)].append(row)
    chosen = []
    for members in groups.values():
        members.sort(key=lambda r: hashlib.sha256(json.dumps(r, sort_keys=True).encode()).digest())
        chosen += members[:each]
    return chosen


def rounded(text: str, digits: int = 4) -> str:
    return f"{float(text):.{digits}g}" if text else ""


def write(name: str, columns: list[str], rows: list[Row]) -> None:
    with (OUT / f"{name}.csv").open("w", newline="") as file:
        lines = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        lines.writeheader()
        lines.writerows(rows)
    print(f"{name}: {len(rows)} rows, {(OUT / f'{name}.csv').stat().st_size:,} bytes")


def place(source: str) -> str:
    """Repository and path without the commit."""
    return re.sub(r"@[0-9a-f]{40}", "", source)


def collectives(folder: Path) -> None:
    files = (folder / "collectives.csv", folder / "collectives_more.csv", PUBLISHED / "collectives.csv")
    rows = [r for file in files for r in dicts(*read(file)) if r["gpus"] and r["op"] not in ("moe_dispatch", "moe_combine")]
    rows = [r for r in rows if r["time_us"]]
    rows = [r for r in rows if "placeholder" not in r["notes"]]
    tables = [r for r in rows if r["source_id"].startswith("aic-")]
    few = [r for r in rows if not r["source_id"].startswith("aic-") and "MISCONFIGURED" not in r["interconnect"]]
    small = lambda r: float(r["bytes"]) <= 2**20  # noqa: E731
    graph = [r for r in tables if "eager" not in r["method"]]
    chosen = spread_out((r for r in graph if r["op"] == "all_reduce"), lambda r: (r["source_id"], r["gpus"], small(r)), 3)
    chosen += spread_out((r for r in graph if r["op"] != "all_reduce"), lambda r: (r["source_id"], r["op"]), 2)
    chosen += spread_out((r for r in tables if "eager" in r["method"]), lambda r: r["source_id"], 3)
    across = [r for r in few if r["nodes"] not in ("", "1") and "vidur" not in r["source_id"] and float(r["bytes"]) >= 2**20]
    chosen += across
    rest = [r for r in few if r not in across]
    chosen += spread_out(rest, lambda r: (r["source_id"], r["op"], r["library"], r["gpus"] == "2"), 2)
    columns = [
        "source",
        "system",
        "gpu",
        "hosts",
        "gpus",
        "links",
        "library",
        "version",
        "collective",
        "dtype",
        "bytes",
        "us",
        "how",
        "note",
    ]
    out = [
        {
            **r,
            "source": place(r["source"]),
            "hosts": r["nodes"],
            "links": r["interconnect"],
            "version": r["library_version"],
            "collective": r["op"],
            "us": rounded(r["time_us"]),
            "how": mode(r) + "".join(said for word, said in HOW.items() if word in r["method"]),
            "note": r["notes"][:40] if "blip" in r["notes"] else "",
        }
        for r in chosen
    ]
    write("collectives", columns, out + amd())


def amd() -> list[Row]:
    """Of AMD's collectives in ``benchmarks/amd``, which are in these columns: what engines would take the named kernel for."""
    rows = [r for r in csv.DictReader((ROOT / "benchmarks" / "amd" / "collectives.csv").open()) if float(r["bytes"]) >= 2**10]
    rows = [r for r in rows if r["how"] != "eager" or float(r["bytes"]) >= 2**20]
    rows = [r for r in rows if not r["library"].startswith("quickreduce") or _quantised(r)]
    across = [r for r in rows if r["hosts"] != "1"]
    return across + spread_out((r for r in rows if r not in across), lambda r: (r["source"], r["library"], r["gpus"]), 3)


def _quantised(row: Row) -> bool:
    """Whether vLLM hands a tensor of this size to QuickReduce."""
    first = catalog.fabric(row["library"], catalog.cluster("8xmi300x")).paths["all-reduce"][0]
    return bool(applies(first, float(row["bytes"]), int(row["gpus"])))


def serving(folder: Path) -> None:
    read_rows = [r for path in sorted(folder.glob("serving_runs*.csv")) for r in dicts(*read(path)) if r["mode"] == "agg"]
    same = ("backend", "model_path", "system", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms")  # runs stand in several tables
    rows = [r for r in {tuple(r[name] for name in same): r for r in read_rows}.values() if not _drafts(r)]
    dense = ("Llama", "Qwen3-32B")
    # Every dense run that tests, so that no choice of rows stands behind a bound on them; a fifth of the others.
    tests = [r for r in rows if any(name in r["model_path"] for name in dense) and not is_fitted(r)]
    chosen = tests + [r for r in rows if r not in tests and hashlib.sha256(r["id"].encode()).digest()[1] % 5 == 0]
    out = []
    for r in chosen:
        try:
            asked = question(r)
        except ValueError:
            continue
        measured = re.search(r"measured=(\d{4}-\d\d-\d\d)", r["silicon_data_source"])
        version = cast(Engine, asked["engine"]).version
        out.append(
            {
                "source": "InferenceMAX, by ai-dynamo/aiconfigurator" if is_by_inferencemax(r) else "ai-dynamo/aiconfigurator",
                "day": measured[1] if measured else "2026-04-01" if is_by_inferencemax(r) else "",
                "engine": r["backend"],
                "version": version or r["backend_version"],
                "model": r["model_path"],
                "system": r["system"],
                "mode": "agg",
                "weights": TILES if TILES in (r["gemm_quant_mode"], r["moe_quant_mode"]) else r["gemm_quant_mode"],
                "input": r["isl"],
                "output": r["osl"],
                "clients": str(asked["concurrency"]),
                **{name: str(asked[key]) for name, key in (("tp", "tp"), ("pp", "pp"), ("attention_dp", "dp"), ("ep", "ep"))},
                "ttft_ms": rounded(r["silicon_ttft_ms"]),
                "tpot_ms": rounded(r["silicon_tpot_ms"]),
            }
        )
    write("serving_runs", list(out[0]), out)


def _drafts(row: Row) -> bool:
    try:
        return may_draft(row) or bool(planning_rule(row))
    except ValueError:
        return False


def inference(folder: Path) -> None:
    rows = dicts(*read(folder / "inference.csv"))
    chosen = [r for r in rows if r["source_id"] == "gpt-fast"]
    others = [r for r in rows if r["source_id"] != "gpt-fast" and "A30" not in r["gpu"]]
    others = [r for r in others if not (r["metric"] == "decode_network_transfer_ms_per_token" and r["tp"] == "1")]
    chosen += spread_out(others, lambda r: (r["source_id"], r["model"], r["gpu"], r["metric"]), 1)
    columns = [
        "source",
        "engine",
        "version",
        "model",
        "gpu",
        "tp",
        "weights",
        "input",
        "output",
        "batch",
        "how",
        "metric",
        "value",
        "unit",
        "note",
    ]
    out = [
        {
            **r,
            "source": r["source_id"],
            "engine": r["framework"],
            "version": r["framework_version"],
            "weights": r["precision"],
            "input": r["isl"],
            "output": r["osl"],
            "how": r["batch_kind"],
            "value": rounded(r["value"]),
            "unit": r["unit"].split(" ")[0],
            "note": r["notes"] if "NCCL" in r["notes"] or "oddly" in r["notes"] else "",
        }
        for r in chosen
    ]
    write("inference", columns, out)


TRAINED = ["source", "model", "layers", "hidden", "heads", "seq", "vocab", "gpus", "gpu", "tp", "pp", "dp", "ep", "cp", "chunks"]
TRAINED += ["micro_batch", "global_batch", "recompute", "precision", "step_s", "note"]


def training(folder: Path) -> None:
    """Runs of torch and of ZeRO: torchtitan and torchao whole, some of each GPU and size of llm-foundry, ZeRO-3 of SC'21."""
    rows = dicts(*read(folder / "training_runs.csv"))
    keep = [r for r in rows if "llm-foundry" not in r["source"]]
    keep += spread_out(
        (r for r in rows if "llm-foundry" in r["source"]), lambda r: (r["gpu_type"], r["precision"], int(r["gpus"]) > 64), 8
    )
    zero = [r for r in dicts(*read(folder / "training_runs_more.csv")) if "ZeRO-3" in r["note"]]
    keep += [{**r, "step_time_s": str(told.entries[0].measured)} for r, told in zip(zero, row_questions(zero), strict=True)]
    keep += dicts(*read(Path(__file__).parent / "torch_runs.csv"))
    words = ("eager", "interleaved", "async tp", "asynctp", "shard_grad_op", "zero-3")
    out = [
        {
            **r,
            "gpu": r["gpu_type"],
            "chunks": r["interleave"],
            "micro_batch": r["microbatch"],
            "step_s": rounded(r["step_time_s"]),
            "note": " ".join(w for w in words if w in r["note"].lower()),
        }
        for r in keep
    ]
    write("training_runs", TRAINED, out)


def training_megatron(folder: Path) -> None:
    """Runs of Megatron and its kin: some of each release and chip of Megatron-Bridge, and whole tables of papers."""
    more = whole_rows(dicts(*read(folder / "training_runs_more.csv")))
    rows = [r for r in more if not r["note"].startswith("ZeRO-3")] + dicts(*read(Path(__file__).parent / "training_papers.csv"))
    bridge = [r for r in rows if "Megatron-Bridge" in r["source"]]
    kept = spread_out(bridge, lambda r: (r["source"], r["gpu_type"], "LLAMA" in r["model"]), 2)
    kept += [r for r in rows if r not in bridge]
    words = ("VARIANT 2", "FSDP=64", "FSDP=8", "schedule dualpipe", "distributed optimizer")
    out = []
    for row, told in zip(kept, row_questions(kept), strict=True):
        if told.question is None:
            continue
        same = {"gpu": row["gpu_type"], "chunks": row["interleave"], "micro_batch": row["microbatch"]}
        note = "; ".join(word for word in words if word in row["note"])
        out.append({**row, **same, "step_s": rounded(str(told.entries[0].measured)), "note": note})
    write("training_runs_megatron", TRAINED, out)


def open_loop_runs(folder: Path) -> None:
    """A run of each source, chip and model, of those with few requests in flight: few requests of each are simulated."""
    place_of = folder if (folder / "open_loop_runs.csv").is_file() else folder / "open_loop"
    rows = dicts(*read(place_of / "open_loop_runs.csv"))
    # Server runs sit so near their capacity that the few requests of a quick look tell nothing of them.
    near = [r.get("scenario") == "Server" for r in rows]
    runs = zip(rows, open_loop.read(rows, place_of), near, strict=True)
    told = [r for r, asked, at_capacity in runs if asked.question and not at_capacity]
    chosen = spread_out([r for r in told if _in_flight(r) <= IN_FLIGHT], _source_chip_model, 1)
    short = {larger: ours for ours, larger in names()["columns"]["open_loop_runs"].items()}
    figures = [c for c in rows[0] if open_loop.FIGURE.fullmatch(c)]
    same = ["id", "experiment", "source", "chip", "gpus", "model", "engine", "kv_tokens", "arrival", "scenario"]
    same += ["tp", "pp", "dp", "ep"]
    columns = [c for c in rows[0] if c in (*same, *short, "slo_ttft_ms", "slo_tpot_ms", *figures)]
    out = [
        {
            **{short.get(c, c): r[c] for c in columns},
            **{c: rounded(r[c]) for c in figures},
            "source": place(r["source"]),
            "outputs": r["output_dist"].split(" (")[0] if r["output_dist"].startswith("mlperf") else r["output_dist"],
        }
        for r in chosen
    ]
    write("open_loop_runs", [short.get(c, c) for c in columns], out)


def _in_flight(row: Row) -> float:
    """Of one replica, by Little's law; those of a run that is overloaded are as many as it has."""
    rate = 0.0 if open_loop.is_overloaded(row) else float(row["request_rate_rps"]) / int(row["dp"] or 1)
    return rate * float(row["e2e_mean_ms"]) / 1e3


def _source_chip_model(row: Row) -> tuple[object, ...]:
    return row["source_group"], row["chip"], row["model"], row["scenario"], open_loop.is_overloaded(row)


def _magnitude(row: Row) -> tuple[str, int, str]:
    """Number format, and digits of rows, prompt or cached tokens; of fp8 in tiles the kernel, whose launch is timed with it."""
    size = row.get("m") or (row["step"] if row["isl"] == "1" else row["isl"])
    dtype = row.get("gemm_dtype") or row["kv_cache_dtype"]
    return dtype, len(size) // 2, row["kernel_source"] if dtype == "fp8_block" else ""


def kernels(folder: Path) -> None:
    out = []
    for path in sorted((folder / "kernels").glob("*.csv.gz")):
        form = next(tail for tail in ("gemm", "context_attention", "generation_attention") if path.name.endswith(f"_{tail}.csv.gz"))
        rows = [r for r in dicts(*read(path)) if r.get("window_size") in (None, "", "0")]
        for r in spread_out(rows, _magnitude, 1):
            out.append(
                {
                    "source": "ai-dynamo/aiconfigurator",
                    "system": path.name.split(f"_{form}")[0],
                    "form": form,
                    "version": r["version"],
                    "kernel": r["kernel_source"],
                    "dtype": r.get("gemm_dtype") or r["attn_dtype"],
                    "kv_dtype": r.get("kv_cache_dtype", ""),
                    **{name: r.get(name, "") for name in ("m", "n", "k")},
                    "batch": r.get("batch_size", ""),
                    "length": r.get("isl", ""),
                    "heads": r.get("num_heads", ""),
                    "kv_heads": r.get("num_key_value_heads", ""),
                    "head_dim": r.get("head_dim", ""),
                    "past": r.get("step", ""),
                    "us": rounded(r.get("latency_us") or str(float(r["latency_ms"]) * 1e3)),
                }
            )
    write("kernels", list(out[0]), out)


STREAMS = {
    "gdn": ("phase", "seq_len", "d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim"),
    "kda": ("phase", "seq_len", "d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim"),
    "mamba2": ("phase", "seq_len", "d_conv", "nheads", "head_dim", "n_groups", "d_state"),
    "mhc_module": ("num_tokens", "num_sites", "hc_mult", "hidden_size"),
    "computescale": ("m", "k"),
    "scale_matrix": ("m", "k"),
    "encoder_attention": ("isl", "num_heads", "head_dim"),
    "gemm": ("m", "n", "k"),
}
"""Kinds of tables of linear attention, of passes over activations and of nvfp4 products, and their sizes."""
_ROUTED = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "distribution")
EXPERTS = {
    "moe": _ROUTED,
    "wideep_moe": (*_ROUTED, "num_slots"),
    "wideep_context_moe": _ROUTED,
    "wideep_generation_moe": _ROUTED,
    "moe_a2a": ("num_tokens", "hidden_size", "topk", "num_experts", "ep_size", "comm_backend", "phase", "comm_dtype"),
}
"""Kinds of tables of routed experts, and of what carries tokens to them."""
SIZES_OF = STREAMS | EXPERTS
MOST_STREAMS = 100  # rows of a kind
MOST_EXPERTS = {"moe": 110, "wideep_moe": 12, "wideep_context_moe": 12, "wideep_generation_moe": 12, "moe_a2a": 30}


def kernels_streams(folder: Path) -> None:
    """Rows that test: of each kernel, engine and chip as many, with small and large times alike."""
    out = []
    for tail in STREAMS:
        rows = [row for path in sorted((folder / "kernels_more").glob(f"*_{tail}.csv.gz")) for row in _tested(path, tail)]
        groups = len({_timed(r) for r in rows})
        out += spread_out(rows, _timed, max(1, MOST_STREAMS // groups))[:: max(1, groups // MOST_STREAMS)]
    shared = ["source", "system", "form", "engine", "version", "kernel", "dtype", "batch"]
    columns = list(dict.fromkeys([*shared, *(c for sizes in STREAMS.values() for c in sizes), "us"]))
    own = {"seq_len": "tokens", "isl": "length", "num_heads": "heads"}
    write("kernels_streams", [own.get(c, c) for c in columns], [{own.get(c, c): v for c, v in r.items()} for r in out])


def kernels_experts(folder: Path) -> None:
    """Rows of routed experts that test, of each implementation, engine and chip as many."""
    out = []
    for tail, most in MOST_EXPERTS.items():
        rows = [row for path in sorted((folder / "kernels_more").glob(f"*_{tail}.csv.gz")) for row in _tested(path, tail)]
        out += spread_out(rows, _timed, max(1, most // len({_timed(r) for r in rows})))
    shared = ["source", "system", "form", "engine", "version", "kernel", "dtype"]
    columns = list(dict.fromkeys([*shared, *(c for sizes in EXPERTS.values() for c in sizes), "us"]))
    write("kernels_experts", columns, [{c: r.get(c, "") for c in columns} for r in out])


def _timed(row: Row) -> tuple[str, ...]:
    return row["form"], row["system"], row["engine"], row["kernel"]


def _tested(path: Path, tail: str) -> list[Row]:
    header, lines = read(path)
    table = kernel_tables.read(path.name, header, lines)
    if table.chip is None or table.kind.tail != tail:
        return []
    use = table.good & ~table.fitted()
    rows = [row for row, used in zip(dicts(header, lines), use, strict=True) if used]
    kept = [r for r in rows if tail != "gemm" or r["gemm_dtype"] == "nvfp4"]
    return [
        {
            "source": "ai-dynamo/aiconfigurator",
            "system": table.system,
            "form": tail,
            "engine": r["framework"],
            "version": r["version"],
            "kernel": r["kernel_source"],
            "dtype": r.get("gemm_dtype") or r.get("moe_dtype") or "bfloat16",
            "batch": r.get("batch_size", ""),
            **{name: r[name] for name in SIZES_OF[tail]},
            "us": rounded(r.get("latency_us") or str(float(r["latency_ms"]) * 1e3)),
        }
        for r in kept
    ]


LATENT = {"mla": 1, "mla_bmm": 2, "dsa": 1, "msa": 1, "dsv4_csa": 3, "dsv4_hca": 3}
"""Kernels and modules of latent and sparse attention, and how many rows of each engine, number format and size."""


def kernels_latent(folder: Path) -> None:
    """Rows that test latent, block-sparse and compressed attention, in our own columns."""
    own = {larger: short for short, larger in names()["columns"]["kernels"].items()}
    out = []
    for path in sorted((folder / "kernels_more").glob("*.csv.gz")):
        kind = kernel_tables.kind_of(path.name)
        name = re.sub("_?(context|generation|module)_?", "", kind.tail) if kind else ""
        if kind is None or name not in LATENT:
            continue
        header, lines = read(path)
        table = kernel_tables.read(path.name, header, lines)
        tested = [row for row, fitted in zip(dicts(header, lines), table.fitted(), strict=True) if not fitted]
        usable = [row for row in tested if kind.tail != "msa_context_module" or row["framework"] != "trtllm"]
        columns = {"kernel_source", kind.dtype, kind.stored, *kind.asked} - {""}
        for r in spread_out(usable, _work, LATENT[name]):
            cells = {("dtype" if c == kind.dtype else own.get(c, c)): r[c] for c in r if c in columns}
            head = {"source": "ai-dynamo/aiconfigurator", "system": table.system, "form": kind.tail, "version": r["version"]}
            out.append({**head, **cells, "us": rounded(str(float(r["latency_ms"]) * 1e3))})
    write("kernels_latent", list(dict.fromkeys(column for row in out for column in row)), out)


def _work(row: Row) -> tuple[object, ...]:
    """Engine, number formats, and whether there is much to do."""
    size = float(row.get("num_tokens") or 0) or float(row["batch_size"]) * (float(row["isl"]) + float(row["step"]))
    return row["framework"], row.get("gemm_type"), row.get("bmm_dtype"), row.get("kv_cache_dtype"), size > 4096


def h200() -> None:
    """All of our own rows, medians only: samples stay in benchmarks/h200."""
    rows = [{k: v for k, v in r.items() if k not in ("samples_s", "sm_MHz")} for r in read_own(ROOT / "benchmarks" / "h200")]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    write("h200", columns, [{k: str(v) for k, v in r.items()} for r in rows])


def main(folder: Path) -> None:
    OUT.mkdir(exist_ok=True)
    whole = (collectives, serving, inference, training, training_megatron, open_loop_runs)
    for choose in (*whole, kernels, kernels_streams, kernels_experts, kernels_latent):
        choose(folder)
    h200()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
