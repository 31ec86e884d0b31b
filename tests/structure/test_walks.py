"""How often a reader who follows the price of one step comes back to a file that was left.

Functions are listed in the order in which a step first calls them, each once, by the file that they stand in; neighbours in one
file are one visit, and every visit to a file that was left before is a return.
"""

import sys
from pathlib import Path

import pytest

from commtax.cost.pricing import inference_bill
from commtax.verbs.settling import resolve_question, settle, terms_of
from paths import SOURCE

STEPS = {
    "dense": (("llama-3.1-70b", "2x8xh100-sxm", {"tp": 16, "batch": 8}), 9),
    "mixture": (("qwen3-30b-a3b", "8xh100-sxm", {"tp": 2, "dp": 4, "ep": 8, "batch": 64}), 11),
    "latent mixture": (("deepseek-v3", "4x8xh200-sxm", {"tp": 4, "dp": 8, "ep": 32, "batch": 64}), 11),
}
"""Steps, and the returns that they make at most."""


def forget():
    for name, module in list(sys.modules.items()):
        if name.startswith("commtax"):
            for thing in list(vars(module).values()):
                if hasattr(thing, "cache_clear"):
                    thing.cache_clear()


def visits(call):
    seen, files = set(), []

    def note(frame, event, _):
        code = frame.f_code
        place = Path(code.co_filename)
        if event != "call" or code in seen or not place.is_relative_to(SOURCE):
            return
        seen.add(code)
        name = str(place.relative_to(SOURCE).with_suffix(""))
        if name.split("/")[0] in ("cost", "ledger", "timeline") and files[-1:] != [name]:
            files.append(name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.parametrize("step", STEPS)
def test_a_price_is_read_with_few_returns(step):
    (model, cluster, words), most = STEPS[step]
    q = settle(resolve_question(model, cluster, words))
    forget()
    terms = terms_of(q)
    files = visits(lambda: inference_bill(terms, q.work, q.tokens))
    assert len(files) > 10
    assert len(files) - len(set(files)) <= most, files
