"""InferenceX's (once InferenceMAX's) own summary of one run: seconds, tokens a second of one GPU, and where it ran.

Its clients draw lengths evenly between 0.8 and 1 times the ones it names (``--random-range-ratio 0.8``), so their mean is 0.9.
"""

from commtax.files import JsonObject
from commtax.runs.results.bench_record import METRICS, TABLE, BenchmarkRun, number, result
from commtax.statement import Note

KEYS = ("tput_per_gpu", "output_tput_per_gpu")
MEAN_LENGTH, SPREAD = 0.9, 1 / 9  # of the lengths it names, and to either side of that mean
APART = ("workers for prompts", "tp for prompts", "dp for prompts", "workers that decode")
"""Facts of a run whose prompts have workers of their own."""
UNDRAFTED = ("", "none", "false", "off", "0")
_ENGINES = {"trt": "trtllm", "tensorrt": "trtllm", "sglang": "sglang", "vllm": "vllm"}


def is_document(d: JsonObject) -> bool:
    """Whether a document is such a summary, or a row of its database, which keeps the figures apart."""
    held = d.get("metrics")
    return any(key in part for part in (d, held) if isinstance(part, dict) for key in KEYS)


def from_document(d: JsonObject) -> BenchmarkRun:
    held = d.get("metrics")
    d = {**d, **held} if isinstance(held, dict) else d
    stats: dict[str, dict[str, float]] = {}
    for key, value in d.items():
        statistic, _, metric = key.partition("_")
        if metric in METRICS and (seconds := number(value)) is not None:
            stats.setdefault(metric, {})[statistic] = seconds
    gpus, decoding = _gpus(d)
    rates = {"total_token_throughput": ("tput_per_gpu", gpus), "output_throughput": ("output_tput_per_gpu", decoding)}
    whole = {name: each * count for name, (key, count) in rates.items() if count and (each := number(d.get(key)))}
    lengths = tuple(n * MEAN_LENGTH if (n := number(d.get(key))) else None for key in ("isl", "osl"))
    said = {"tp": _sizes(d).get("tp"), "model": d.get("model"), **whole}
    drafted = str(d.get("spec_decoding", d.get("spec_method", ""))).lower() not in UNDRAFTED
    accepted = _chunk(stats) if drafted else 1.0
    told = f"a step gives {accepted:.2f} tokens (ITL over TPOT)" if accepted > 1 else "how many a step gives is not told"
    notes = (Note("drafted", f"tokens were drafted: {told}"),) if drafted else ()
    more = {"facts": _facts(d), "notes": notes, "concurrency": number(d.get("conc"))}
    return result("inferencex", "serve", said, stats, lengths=lengths, spread=SPREAD, accepted=accepted, **more)


def _gpus(d: JsonObject) -> tuple[float, float]:
    """GPUs that all tokens are divided by, and those that output is; 0 where they are not told."""
    prefill, decode = (number(d.get(f"num_{part}_gpu")) or 0.0 for part in ("prefill", "decode"))
    apart = str(d.get("disagg", "")).lower() == "true" or d.get("is_multinode") is True
    if apart and decode:
        return prefill + decode, decode
    return (number(d.get("tp")) or decode,) * 2


def _sizes(d: JsonObject, part: str = "") -> dict[str, int]:
    """Sizes of a server, or of a worker that decodes: with data-parallel attention ``tp`` counts the GPUs that share experts."""
    part = part or ("decode_" if _is_apart(d) and number(d.get("decode_tp")) else "")
    told = {axis: int(n) for axis in ("tp", "ep", "dp") if (n := number(d.get(f"{part}{axis}")))}
    groups = str(d.get(f"{part}dp_attention", "")).lower() == "true"
    return {"tp": 1, "dp": told["tp"], "ep": told["tp"]} if groups and "tp" in told else told


def _is_apart(d: JsonObject) -> bool:
    return str(d.get("disagg", "")).lower() == "true"


def _workers(d: JsonObject) -> dict[str, str]:
    """How many workers compute prompts and how many decode, and the sizes of the first, where they are apart."""
    count, decode = (int(number(d.get(f"{part}_num_workers")) or 0) for part in ("prefill", "decode"))
    if not (_is_apart(d) and count and decode):
        return {}
    ahead = {"tp": 1, "dp": 1, **_sizes(d, "prefill_")}
    return dict(zip(APART, map(str, (count, ahead["tp"], ahead["dp"], decode)), strict=True))


def _chunk(stats: dict[str, dict[str, float]]) -> float:
    """Tokens of a step: a step sends one chunk, and gaps between chunks are as many times the time of a token."""
    gap, token = (stats.get(metric, {}).get("mean", 0.0) for metric in ("itl", "tpot"))
    return max(1.0, gap / token) if token else 1.0


def _facts(d: JsonObject) -> dict[str, str]:
    """Chips, engine, number format and how the parts lie."""
    framework = str(d.get("framework") or "").lower()
    engine = next((name for word, name in _ENGINES.items() if word in framework), framework)
    hardware = next((str(d[key]) for key in TABLE["hardware"] if isinstance(d.get(key), str)), "")
    rate = {"tokens/s per GPU": f"{each:.2f}"} if (each := number(d.get("tput_per_gpu"))) else {}
    named = rate | {"hardware": hardware, "engine": engine, "precision": d.get("precision"), "drafts": d.get("spec_decoding")}
    image = str(d.get("image") or "").rpartition(":")[2]
    named |= {"version": image.lstrip("v")} if image[:2].lstrip("v")[:1].isdigit() else {}
    sizes = {axis: str(size) for axis, size in _sizes(d).items() if axis != "tp"} | _workers(d)
    return {name: str(value)[:80] for name, value in (*named.items(), *sizes.items()) if value}
