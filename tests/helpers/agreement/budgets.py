"""Steps of few tokens: what the closed form says of a small ``--max-num-batched-tokens``, with drafts or without, against time."""

from math import isfinite, log
from random import Random

from closed_loops import FAR, paired


def small_budgets_serve_what_the_simulation_says(rng: Random) -> str | None:
    """TPOT and requests/s within 1.5 x, or a note says why, also where decoding alone would fill each step. With drafts within 2 x:
    a request that finds room for some of its rows alone decodes with fewer drafts, which is left out. How long prompts wait
    there is a matter of chance: TTFT, a small part of such requests, is not compared."""
    drafts, budget = rng.choice((0, 0, 3, 5)), rng.choice((128, 256, 512))
    clients = max(1, round(budget / (1 + drafts) * rng.uniform(0.3, 1.5)))
    words = {"model": "llama-3.1-8b", "cluster": f"4x{rng.choice(('h100-sxm', 'b200-sxm', 'a100-80-sxm'))}", "engine": "vllm"}
    words |= {"tp": rng.choice((1, 2, 4)), "concurrency": clients, "max_num_batched_tokens": budget, "spread": 0.5}
    words |= {"input_len": round(2 ** rng.uniform(5, 11)), "output_len": round(2 ** rng.uniform(4, 8))}
    pair = paired(words | ({"technique": f"eagle3={drafts}"} if drafts else {}))
    if pair is None:
        return None
    most = log(2) if drafts else FAR
    far = [name for name in ("tpot", "rate") if isfinite(pair.whole[name]) and abs(log(pair.whole[name])) > most]
    return str(pair) if far and not pair.noted else ""


LAWS = {law.__name__: (law, 1) for law in (small_budgets_serve_what_the_simulation_says,)}
