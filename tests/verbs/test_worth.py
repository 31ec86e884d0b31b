"""What techniques are worth: the table agrees with bills to the digit, flips where bills do, and turns nothing on by itself."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here as run
from commtax.catalog.technique_flags import is_carrier
from commtax.catalog.technique_misses import kind_of, missed
from commtax.catalog.techniques import changes_of, technique, techniques, techniques_on
from commtax.statement import Refusal
from commtax.verbs.fitting import fit_of_bill
from commtax.verbs.settling import resolve_question, settle
from commtax.verbs.worth import ALIKE

STEPS = (
    ("deepseek-v3", "8xh200-sxm", {"tp": 8, "batch": 32}),
    ("deepseek-v3", "4x8xh100-sxm", {"dp": 32, "ep": 32, "batch": 64, "engine": "sglang", "ep_backend": "deepep_low_latency"}),
    ("llama-3.1-70b", "8xmi300x", {"tp": 8, "batch": 16}),
    ("qwen3-235b-a22b", "8xb200-sxm", {"tp": 8, "phase": "prefill", "batch": 1, "context": 4096}),
)


@pytest.fixture(scope="module", params=STEPS, ids=lambda step: f"{step[0]}-{step[1]}")
def weighed(request):
    model, cluster, options = request.param
    return commtax.worth(model, cluster, **options), request.param


def test_the_table_agrees_with_bills_to_the_digit(weighed):
    w, (model, cluster, options) = weighed
    plain = commtax.bill(model, cluster, **options)
    assert (float(plain.step_s), float(plain.tokens_per_s)) == (float(w.bill.step_s), float(w.bill.tokens_per_s))
    for row in (*w.here, *w.idle):
        priced = commtax.bill(model, cluster, **{**options, "technique": row.asked})
        assert (row.step_s, row.tokens_per_s) == (float(priced.step_s), float(priced.tokens_per_s)), row.asked
        assert row.kv_tokens == fit_of_bill(priced).kv_tokens
        assert row.gain == pytest.approx(row.tokens_per_s / float(plain.tokens_per_s) * plain.num_gpus / priced.num_gpus)


def test_every_technique_is_told_once_best_first_with_a_flag_or_a_reason(weighed):
    w, _ = weighed
    assert sorted(row.technique.key for row in w.rows) == sorted(techniques())
    able = [row for row in w.rows if not row.refused]
    assert [row.gain for row in able if row.fits] == sorted((row.gain for row in able if row.fits), reverse=True)
    assert all(row.flag for row in able)
    assert all(row.low <= row.gain <= row.high for row in able)


def test_ranges_are_no_narrower_than_published_gains_missed(weighed):
    """Half of a range: sqrt(least^2 + (share effect)^2) at the least, and nothing where nothing changes."""
    w, _ = weighed
    for row in (*w.here, *w.idle):
        half = math.log(row.high / row.low) / 2
        if row.verdict == "changes nothing":
            assert half == pytest.approx(0, abs=1e-6)
        else:
            assert half >= missed(kind_of(row.technique.group), row.gain) - 1e-12


def test_no_technique_beats_what_bytes_and_flops_allow(weighed):
    w, (model, cluster, options) = weighed
    for row in (*w.here, *w.idle):
        priced = commtax.bill(model, cluster, **{**options, "technique": row.asked})
        assert priced.step_s >= priced.least_s(priced.question.cluster.chip.memory_Bps) * (1 - 1e-9), row.asked
        assert all(float(np.max(x.hidden_s)) <= float(np.max(x.total_s)) * (1 + 1e-9) for x in priced.lines), row.asked


def test_it_pays_where_it_is_said_to_pay(weighed):
    w, (model, cluster, options) = weighed
    for row in w.here:
        for pays in row.pays:
            for at in (pays.low, pays.high):
                changed = {**options, pays.axis: int(at)}
                plain, other = (commtax.bill(model, cluster, **changed, **on).tokens_per_s for on in ({}, {"technique": row.asked}))
                assert other > plain * (1 + ALIKE / 2), (row.asked, pays)


@settings(max_examples=40)
@given(st.sampled_from(sorted(techniques())))
def test_a_technique_is_named_as_it_was_asked_for(key):
    one = technique(key)
    usual = one.usual or ("deepseek-r1:3" if key == "draft" else "")  # which model shall draft is always said
    text = f"{key}={usual.split()[0]}" if usual else key
    apart = {"disaggregated": True} if is_carrier(one) else {"tp": 8, "dp": 1}  # what carries caches needs somewhere to carry them
    q = resolve_question("deepseek-v3", "8xh200-sxm", {**apart, "technique": text})
    assert text in [named for _, named in techniques_on(q)]


def test_none_turns_nothing_on():
    plain, none = (settle(resolve_question("llama-3.1-8b", "8xh100-sxm", {"tp": 2, **on})) for on in ({}, {"technique": "none"}))
    assert plain == none
    assert list(techniques_on(plain)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dbbo", "did you mean dbo"),
        ("mtp", ""),
        ("mtp=1:0.8:3:4", "write mtp="),
        ("quickreduce=int3", "one of"),
        ("dcp=", "write dcp="),
        ("sbo=3", "no value"),
    ],
)
def test_a_misspelt_technique_is_refused_in_one_line(text, said):
    if not said:
        assert changes_of(text)["speculative"] >= 1
        return
    with pytest.raises(Refusal, match=said):
        changes_of(text)


def test_requests_are_weighed_too():
    w = commtax.worth("deepseek-v3", "8xh200-sxm", tp=8, concurrency=16, context=512, output_len=64)
    loop = commtax.simulate("deepseek-v3", "8xh200-sxm", tp=8, concurrency=16, input_len=512, output_len=64)
    assert w.requests
    assert (w.requests.tpot_s, w.requests.ttft_s) == (float(loop.tpot_s), float(loop.ttft_s))
    assert all(math.isfinite(row.tpot_s) for row in w.here)


def test_the_command_says_what_to_set_and_json_holds_every_row():
    told = run("worth", "deepseek-v3", "-c", "8xh200-sxm", "-tp", "8", "--batch", "32")
    assert "pays" in told.stdout
    document = json.loads(run("worth", "deepseek-v3", "-c", "8xh200-sxm", "-tp", "8", "--batch", "32", "--json").stdout)
    assert {row["technique"] for row in document["weighed"]} == set(techniques())
    refused = run("worth", "llama-3.1-8b", "-c", "8xh100-sxm", "--phase", "train")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "text", ["mtp=abc", "mtp=1.5", "mtp=-1", "mtp=3:nan", "mtp=3:1.5", "sp=x", "eplb=x", "dcp=x", "dcp=0", "mtp=1,eagle3=3"]
)
def test_values_that_are_none_are_refused_with_exit_code_2(text):
    done = run("bill", "deepseek-v3", "-c", "8xh200-sxm", "-tp", "8", "--technique", text)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_a_technique_that_takes_more_gpus_is_judged_per_gpu():
    w = commtax.worth("gpt-oss-120b", "8xb200-sxm", tp=1, batch=64)
    split = next(row for row in w.rows if row.technique.key == "pcp")
    assert split.tokens_per_s > float(w.bill.tokens_per_s)
    assert split.gain == pytest.approx(split.tokens_per_s / float(w.bill.tokens_per_s) / 2)
    assert split.verdict == "loses"
