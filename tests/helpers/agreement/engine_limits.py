"""Engine limits that are advised where memory binds, against the same question asked with them."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import commtax
from commtax.planner import plan
from commtax.planner.alternatives import roomier_words
from commtax.report.exact_bytes import fit_document
from commtax.verbs.fit_advice import room_words

Question = dict[str, Any]
TIGHT = (
    ("gpt-oss-120b", "1xh100-sxm"), ("gemma-3-27b", "1xh100-sxm"), ("llama-3.1-70b", "2xh100-sxm"), ("gpt-oss-120b", "1xh100-nvl"),
    ("llama-3.1-70b", "2xa100-80-sxm"), ("qwen3-30b-a3b", "1xa100-80-sxm"), ("llama-3.1-8b", "1xrtx-4090"),
)  # fmt: skip
"""Models on GPUs that hold them, or nearly."""


def limits_that_fit_advises_hold_what_it_says(rng: Random) -> str | None:
    """``fit`` with the advised limits tells the KV tokens that it promised, and fits where it said so."""
    asked, length = _asked(rng), rng.choice((2048, 8192, 32768, 131072))
    asked |= {"tp": rng.choice((1, 1, 2, 4)), "max_model_len": length, "gpu_memory_utilization": rng.choice((None, None, 0.8))}
    try:
        judged = commtax.fit(**asked)
    except ValueError:
        return None
    if not judged.roomier:
        return None
    told, flags = fit_document(judged)["roomier"], _flags(room_words(judged.roomier, judged))
    again = commtax.fit(**(asked | flags))
    if (again.kv_tokens, again.max_concurrency) != (told["kv_tokens"], told["max_concurrency"]) or flags != _flags(told["add"]):
        return f"{told} promised, {again.kv_tokens:,} KV tokens answered: {asked} {flags}"
    advised = any(_flags(line) for line in judged.advice if line.startswith(("--max-num", "--gpu")))
    if advised and not again.fits:
        return f"does not fit with {flags}: {asked}"
    return "" if again.is_safe else f"more than the GPU has: {asked} {flags}"


def limits_that_plan_advises_serve_what_it_says(rng: Random) -> str | None:
    """``plan`` with the advised limits answers with the promised clients and tokens/s, and ``fit`` with the promised KV tokens."""
    asked = _asked(rng)
    asked |= {"input_len": rng.choice((512, 1024, 4000)), "output_len": rng.choice((64, 128, 500)), "max_concurrency": 256}
    asked |= {"tpot_s": rng.choice((0.025, 0.04, 0.08)), "ttft_s": rng.choice((0.5, 2.0, 10.0))} if rng.random() < 0.8 else {}
    try:
        found = plan(**asked)
    except ValueError:
        return None
    if not found.roomier:
        return _contradicts_would_take(asked, found)
    (said,) = roomier_words(found)
    flags = _flags(said)
    again = plan(**(asked | flags))
    rows, i = again.plans, again.recommended
    served = f"{int(rows.concurrency[i]):,} client", f"{rows.tokens_per_s[i]:,.0f} tokens/s"
    sizes = {axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}
    held = commtax.fit(asked["model"], asked["cluster"], engine=asked["engine"], **sizes, **flags)
    if all(words in said for words in (*served, f"{held.kv_tokens:,} KV tokens")):
        return ""
    return f"said: {said}; answered: {served}, {held.kv_tokens:,} KV tokens: {asked}"


def limits_that_worth_advises_gain_what_simulate_says(rng: Random) -> str | None:
    """Requests gain with the advised limits what ``simulate`` says of them."""
    asked, load = _asked(rng), {"concurrency": rng.choice((1, 16, 64, 200)), "output_len": rng.choice((64, 500))}
    asked |= {"tp": rng.choice((1, 1, 2))}
    length = rng.choice((512, 1024, 4000))
    try:
        found = commtax.worth(**asked, **load, context=length).limits
    except ValueError:
        return None
    if found is None:
        return None
    load |= {"input_len": length}
    now, then = (commtax.simulate(**asked, **load, **flags) for flags in ({}, _flags(found.flag)))
    gain = float(then.tokens_per_s / now.tokens_per_s)
    return "" if abs(gain / found.gain - 1) < 1e-6 else f"worth: {found.flag} {found.gain:.4f}, simulate {gain:.4f}: {asked} {load}"


def _contradicts_would_take(asked: Question, found: Any) -> str | None:
    """Where nothing fits: with the limits that it would take, something does."""
    flags = _flags(found.would_take[0]) if found.would_take else {}
    if not flags or len(found.plans) or len(found.near):
        return None
    again = plan(**(asked | flags))
    return "" if len(again.plans) or len(again.near) else f"nothing fits with {flags}: {asked}"


def _asked(rng: Random) -> Question:
    model, cluster = rng.choice(TIGHT)
    return {"model": model, "cluster": cluster, "engine": rng.choice(("vllm", "vllm", "sglang", "sglang", "trtllm", "vllm@0.10"))}


def _flags(text: str) -> Question:
    """The limits that a sentence names."""
    names = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
    said = {name: re.search(rf"--{name.replace('_', '-')} ([0-9.]+[0-9]|[0-9])", text) for name in names}
    return {name: float(found[1]) if "." in found[1] else int(found[1]) for name, found in said.items() if found}


LAWS = {
    law.__name__: (law, share)
    for law, share in (
        (limits_that_fit_advises_hold_what_it_says, 3),
        (limits_that_plan_advises_serve_what_it_says, 1),
        (limits_that_worth_advises_gain_what_simulate_says, 1),
    )
}
