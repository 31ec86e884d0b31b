"""``fit``, the simulation, the bill and what ``plan --emit`` writes: whether servers start, and how many KV tokens they hold."""

from random import Random
from typing import Any

import commtax
from commtax.judgement.engine_limits import SEQS
from commtax.options import taken_by
from commtax.report.documents import to_json
from commtax.verbs.fit_advice import max_num_seqs_to_start, startable, why_it_does_not_start
from laws import HOSTS, Law

MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "gpt-oss-20b", "gemma-3-27b", "qwen3.5-27b", "qwen3.5-35b-a3b")
HYBRIDS = ("nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "deepseek-v4-flash")


def _asked(rng: Random) -> dict[str, Any]:
    """A server with limits that often bind."""
    gpus = rng.choice((1, 1, 2, 4, 8))
    limits = {"max_num_seqs": rng.choice((64, 256, 1024, 2048)), "max_num_batched_tokens": rng.choice((2048, 8192, 16384))}
    kept = {name: value for name, value in limits.items() if rng.random() < 0.6}
    return {
        "model": rng.choice(MODELS + HYBRIDS), "cluster": f"{gpus}x{rng.choice(HOSTS)}",
        "engine": rng.choice(("vllm", "vllm", "vllm@0.23", "vllm@0.18", "sglang", "trtllm")), "tp": gpus,
        "max_model_len": rng.choice((2048, 8192, 65536, 131072)), "gpu_memory_utilization": rng.choice((0.8, 0.9, 0.95)), **kept,
    }  # fmt: skip


def servers_that_fit_start(rng: Random) -> str | None:
    """What ``fit`` says starts, starts in every verb, and the limits that it names do start."""
    asked = _asked(rng)
    said = "max_num_seqs" in asked
    try:
        fit = commtax.fit(**asked, advise=False)
        loop = commtax.simulate(**asked, concurrency=8, input_len=512, output_len=128)
    except ValueError:
        return None
    judged = fit.fits or (fit.stopped_by == SEQS and not said)
    why = why_it_does_not_start(loop.question)
    noted = any(note.code == "too-long" for note in loop.notes)
    if judged == bool(why) or noted != bool(why):
        return f"fit: {fit.stopped_by or 'starts'}, simulate: {why or 'starts'}, {noted=}: {asked}"
    own = any(note.code == "own-limits" for note in loop.notes)
    if own != (fit.stopped_by == SEQS and not said):
        return f"fit: {fit.stopped_by or 'starts'}, told of the engine's own limits: {own}: {asked}"
    if not fit.holds_one:
        return ""
    told = startable(loop.question).limits.max_num_seqs or fit.question.limits.max_num_seqs
    again = commtax.fit(**asked | {"max_num_seqs": told}, advise=False)
    if not again.fits:
        return f"emitted with max_num_seqs {told}, which stops: {again.stopped_by}: {asked}"
    more = commtax.fit(**asked | {"max_num_seqs": told + 1}, advise=False)
    if fit.stopped_by == SEQS and (more.fits or told != max_num_seqs_to_start(loop.question, fit.question.limits.max_num_seqs)):
        return f"max_num_seqs {told} is not the largest: {asked}"
    return ""


def simulations_start_what_fits(rng: Random) -> str | None:
    """Requests in time are refused exactly where ``fit`` refuses the server, if they have room at all."""
    asked = _asked(rng)
    try:
        fit = commtax.fit(**asked, advise=False)
    except ValueError:
        return None
    try:
        commtax.serve(**asked, request_rate=1, num_prompts=2, input_len=64, output_len=4)
    except ValueError as error:
        if getattr(error, "argument", "") not in ("max_model_len", "kv_tokens"):
            return None
        return "" if not fit.fits else f"fit starts it, and serve says {error}: {asked}"
    stopped = not fit.fits and (fit.stopped_by != SEQS or "max_num_seqs" in asked)
    return f"fit: {fit.stopped_by}, and serve answers: {asked}" if stopped else ""


def kv_tokens_are_the_same(rng: Random) -> str | None:
    """Of ``fit``, the simulation's document and the bill's memory."""
    from commtax.report.closed_loop import simulation_document
    from commtax.verbs.explained_step import ExplainedStep

    asked = _asked(rng)
    if own := rng.random() < 0.5:  # a bill knows no limits but the engine's and the model's
        asked = {name: value for name, value in asked.items() if name in taken_by("bill()") or name in ("model", "cluster")}
    try:
        fit = commtax.fit(**asked, advise=False)
        loop = commtax.simulate(**asked, concurrency=1, input_len=512, output_len=16)
        bill = commtax.bill(**asked, batch=1, context=512) if own else None
    except ValueError:
        return None
    told = [fit.kv_tokens, int(to_json(simulation_document(loop))["kv_tokens"])]
    told += [ExplainedStep(bill).memory.kv_tokens] if bill else []
    return "" if len({max(0, tokens or 0) for tokens in told}) == 1 else f"KV tokens {told} of fit, simulate and bill: {asked}"


LAWS: dict[str, tuple[Law, int]] = {
    law.__name__: (law, 2) for law in (servers_that_fit_start, simulations_start_what_fits, kv_tokens_are_the_same)
}
