"""What techniques are worth: the table agrees with bills to the digit, flips where bills do, and turns nothing on by itself."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, told_here
from cli_run import run_here as run
from commtax.catalog.technique_flags import is_carrier
from commtax.catalog.techniques import changes_of, kind_of, missed, technique, techniques, techniques_on
from commtax.judgement.gains import ALIKE
from commtax.statement import Refusal
from commtax.verbs.fitting import fit_of_step
from commtax.verbs.settling import resolve_question, settle
from commtax.verbs.worth import Scale
from tables import tables

DATA = tables(__file__)


@pytest.fixture(scope="module", params=DATA["steps"], ids=lambda step: f"{step[0]}-{step[1]}")
def weighed(request):
    model, cluster, options = request.param
    return commtax.worth(model, cluster, **options), request.param


def loop_of(model, cluster, options, **changes):
    """The closed loop that keeps a step's batch running, by hand."""
    asked = {name: value for name, value in options.items() if name not in ("phase", "batch", "context")}
    outputs = {"output_len": 1} if options.get("phase") == "prefill" else {}
    load = {"concurrency": options.get("batch", 1) * options.get("dp", 1), "input_len": options.get("context", 1024), **outputs}
    return commtax.simulate(model, cluster, **{**asked, **load, **changes})


def test_the_table_agrees_with_bills_and_closed_loops_to_the_digit(weighed):
    w, (model, cluster, options) = weighed
    plain, loop = commtax.bill(model, cluster, **options), loop_of(model, cluster, options)
    assert (float(plain.step_s), float(plain.tokens_per_s)) == (float(w.bill.step_s), float(w.bill.tokens_per_s))
    tpot = loop.tpot_s if loop.requests.output_len > 1 else pytest.approx(math.nan, nan_ok=True)
    assert (w.requests.ttft_s, w.requests.tpot_s, w.requests.tokens_per_s) == (loop.ttft_s, tpot, loop.tokens_per_s)
    for row in (*w.here, *w.idle):
        priced = commtax.bill(model, cluster, **{**options, "technique": row.asked})
        served = loop_of(model, cluster, options, technique=row.asked)
        assert (row.step_s, row.tokens_per_s) == (float(priced.step_s), float(served.tokens_per_s)), row.asked
        assert row.kv_tokens == fit_of_step(priced.question).kv_tokens
        bare, step = (
            (loop_of(model, cluster, options, technique=row.beside), commtax.bill(model, cluster, **options, technique=row.beside))
            if row.beside
            else (loop, plain)
        )
        per_gpu = step.num_gpus / priced.num_gpus
        assert row.gain == pytest.approx(float(served.tokens_per_s / bare.tokens_per_s) * per_gpu)
        assert row.step_gain == pytest.approx(float(priced.tokens_per_s / step.tokens_per_s) * per_gpu)


def test_every_technique_has_a_flag_or_a_reason_and_a_range(weighed):
    w, _ = weighed
    assert sorted(row.technique.key for row in w.rows) == sorted(techniques())
    able = [row for row in w.rows if not row.refused]
    assert [row.gain for row in able if row.fits] == sorted((row.gain for row in able if row.fits), reverse=True)
    assert all(row.flag for row in able)
    assert all(row.low <= row.gain <= row.high for row in able)
    # Half of a range: sqrt(least^2 + (share effect)^2) at the least, and nothing where nothing changes.
    w, _ = weighed
    for row in (*w.here, *w.idle):
        half = math.log(row.high / row.low) / 2
        if row.verdict == "changes nothing":
            assert half == pytest.approx(0, abs=1e-6)
        else:
            assert half >= missed(kind_of(row.technique.group), row.gain) - 1e-12


def test_no_technique_beats_its_bytes_and_it_pays_where_it_is_told_to(weighed):
    w, (model, cluster, options) = weighed
    for row in (*w.here, *w.idle):
        priced = commtax.bill(model, cluster, **{**options, "technique": row.asked})
        assert priced.step_s >= priced.least_s(priced.question.cluster.chip.memory_Bps) * (1 - 1e-9), row.asked
        assert all(float(np.max(x.hidden_s)) <= float(np.max(x.total_s)) * (1 + 1e-9) for x in priced.lines), row.asked
    w, (model, cluster, options) = weighed
    for row in w.here:
        for pays in row.pays:
            for at in (pays.low, pays.high):
                changed = {**options, {"prompt": "context"}.get(pays.axis, pays.axis): int(at)}
                sets = ({"technique": row.beside} if row.beside else {}, {"technique": row.asked})
                plain, other = (loop_of(model, cluster, changed, **on).tokens_per_s for on in sets)
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


def test_gains_name_what_they_rest_on_and_what_to_set():
    told = " ".join(run("worth", "llama-3.1-70b", "-c", "4xh100-sxm", "-tp", "4", "--concurrency", "16").stdout.split())
    assert "Undecided, measure first: eagle3=5 (+60%, TTFT 141 ms -> 201 ms), eagle=3 (+40%, TTFT " in told
    assert "), if drafts are accepted as often as with" in told
    assert "A loss once the KV cache is full: eagle=3 (-4.6%)." in told
    assert "for whole requests" not in told
    told = told_here("worth", "deepseek-v3", "-c", "8xh200-sxm", "-tp", "8", "--batch", "32")
    assert "pays" in told.stdout
    said = " ".join(told.stdout.split())
    assert "mtp=3 (+47%, TTFT 135 ms -> 199 ms), if drafts are accepted as often as with deepseek-r1." in said
    assert "Worth it only once the KV cache is full: fp8-kv (-2.3% here, +14% then), dcp=2 (-8.1% here, +8.4% then)." in said
    clients = "32 clients, who keep batch 32 per replica running"
    assert f"Gains are for whole requests: {clients}, 1,024 tokens in, 128 out (lengths ±50%)" in said
    assert "not in vLLM: sbo (SGLang)" in told.stdout
    assert "overlap" not in told.stdout, "each reason only for those who ask for details"
    assert {row["technique"] for row in json.loads(told.document)["weighed"]} == set(techniques())
    assert refusal(run("worth", "llama-3.1-8b", "-c", "8xh100-sxm", "--phase", "train"))
    plain, none = (settle(resolve_question("llama-3.1-8b", "8xh100-sxm", {"tp": 2, **on})) for on in ({}, {"technique": "none"}))
    assert (plain, list(techniques_on(plain))) == (none, [])


@pytest.mark.parametrize(("text", "said"), DATA["a_misspelt_technique_is_refused_in_one_line"])
def test_a_misspelt_technique_is_refused_in_one_line(text, said):
    if not said:
        assert changes_of(text)["speculative"] >= 1
        return
    with pytest.raises(Refusal, match=said):
        changes_of(text)


def test_a_batch_and_its_clients_have_one_verdict_on_a_step_or_on_requests():
    asked = ("llama-3.3-70b", "4xh100-sxm")
    batch, clients = (commtax.worth(*asked, tp=4, **load) for load in ({"batch": 64}, {"concurrency": 64}))
    for one, other in zip(batch.rows, clients.rows, strict=True):
        assert (one.asked, one.verdict, one.advice, one.refused) == (other.asked, other.verdict, other.advice, other.refused)
        assert (one.gain, one.low, one.high) == pytest.approx((other.gain, other.low, other.high), nan_ok=True)
    drafts = next(row for row in batch.rows if row.technique.key == "eagle3")
    assert (drafts.verdict, drafts.step_gain > 1.8, drafts.gain < 1.2) == ("undecided", True, True)
    w = commtax.worth("deepseek-v3", "8xh200-sxm", tp=8, concurrency=16, context=512, output_len=64)
    loop = commtax.simulate("deepseek-v3", "8xh200-sxm", tp=8, concurrency=16, input_len=512, output_len=64)
    assert w.requests
    assert (w.requests.tpot_s, w.requests.ttft_s) == (float(loop.tpot_s), float(loop.ttft_s))
    assert all(math.isfinite(row.tpot_s) for row in w.here)


@pytest.mark.parametrize(
    "text", ["mtp=abc", "mtp=1.5", "mtp=-1", "mtp=3:nan", "mtp=3:1.5", "sp=x", "eplb=x", "dcp=x", "dcp=0", "mtp=1,eagle3=3"]
)
def test_values_that_are_none_are_refused_with_exit_code_2(text):
    assert refusal(run("bill", "deepseek-v3", "-c", "8xh200-sxm", "-tp", "8", "--technique", text))


LIMITS = ({}, {"max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.85}, {"max_model_len": 32768, "max_num_seqs": 64})


@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: " ".join(limits) or "usual")
@pytest.mark.parametrize(("model", "cluster", "plan"), DATA["rooms"], ids=lambda x: x if isinstance(x, str) else "")
def test_room_is_what_fit_tells_at_any_length(model, cluster, plan, limits):
    told = commtax.fit(model, cluster, **plan, **limits, advise=False)
    for context in (512, 20_000):
        q = settle(resolve_question(model, cluster, {**plan, **limits, "batch": 2, "context": context}))
        scale = Scale(q, flips=False)
        assert scale.fit.kv_tokens == told.kv_tokens
        for key in ("fp8-kv", "mtp"):
            row = scale.row(technique(key))
            if not row.refused:
                changed = commtax.fit(model, cluster, **plan, **limits, technique=row.asked, advise=False)
                assert row.kv_tokens == changed.kv_tokens, row.asked


def test_steps_and_requests_do_not_mix_and_a_benchmark_asks_about_its_requests():
    with pytest.raises(Refusal, match="batch: belongs to a step"):
        commtax.worth("llama-3.1-8b", "8xh100-sxm", batch=4, concurrency=8)
    with pytest.raises(Refusal, match="output_len=64: requests of a step of prompts have one output token"):
        commtax.worth("llama-3.1-8b", "8xh100-sxm", phase="prefill", output_len=64)
    assert refusal(run("worth", "llama-3.1-8b", "-c", "8xh100-sxm", "--batch", "4", "--request-rate", "2"))
    pasted = "vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-num-batched-tokens 2048\nvllm bench serve --max-concurrency 16"
    pasted += " --random-input-len 512 --random-output-len 64"
    told = json.loads(run("worth", "-c", "8xh100-sxm", "--from", pasted, "--json").stdout)
    loop = json.loads(run("simulate", "-c", "8xh100-sxm", "--from", pasted, "--json").stdout)["runs"][0]
    assert (told["requests"]["tpot_s"], told["requests"]["ttft_s"]) == (loop["tpot_s"], loop["ttft_s"])
    assert told["batch"] > 1, "the step that these requests run"


def test_what_loses_or_takes_gpus_is_judged_with_what_it_needs():
    wide = {"dp": 16, "ep": 16, "batch": 64, "engine": "sglang"}
    rows = {row.technique.key: row for row in commtax.worth("deepseek-v3", "2x8xh100-sxm", **wide).rows}
    for key, flag in (("dbo", "--enable-two-batch-overlap"), ("sbo", "--enable-single-batch-overlap")):
        row = rows[key]
        assert (row.asked, row.name) == (f"{key},deepep-ll", f"{key} (on top of deepep-ll)")
        assert (flag in row.flag, "--moe-a2a-backend deepep" in row.flag) == (True, True)
        priced = commtax.bill("deepseek-v3", "2x8xh100-sxm", **wide, technique=row.asked)
        assert row.step_s == float(priced.step_s)
        assert row.gain == pytest.approx(row.tokens_per_s / rows["deepep-ll"].tokens_per_s)
    both = commtax.worth("deepseek-v3", "2x8xh100-sxm", **wide, technique="dbo,deepep-ll").rows
    assert not any(row.asked.startswith("dbo,") for row in both), "what is set is no pair with another exchange"
    helix = Scale(settle(resolve_question("deepseek-v3", "8xb200-sxm", {"tp": 8, "engine": "trtllm"})), flips=False)
    row = helix.weigh(technique("dcp"), "dcp=4")
    assert row.flag.startswith("--tp_size 2; context_parallel_size: 4"), row.flag
    # DeepEP's kernels gain a fifth; halving batches of 64 on top of them loses a seventeenth, a sixth of a step alone.
    asked = ("worth", "deepseek-v3", "-c", "4x8xh200-sxm", "-dp", "32", "-ep", "--batch", "64", "--output-len", "1024")
    told = json.loads(run(*asked, "--json").stdout)
    rows = {row["technique"]: row for row in told["weighed"]}
    assert (rows["dbo"]["on_top_of"], rows["dbo"]["advice"], rows["deepep-ll"]["advice"]) == ("deepep-ll", "no-gain", "measure")
    assert rows["dbo"]["gain"] == pytest.approx(rows["dbo"]["tokens_per_s"] / rows["deepep-ll"]["tokens_per_s"])
    assert rows["dbo"]["step_gain"] == pytest.approx(0.83, abs=0.01)
    assert "Undecided, no gain expected: dbo (-5.8% on top of deepep-ll)" in told["verdict"]
    w = commtax.worth("gpt-oss-120b", "8xb200-sxm", tp=1, batch=64)
    split = next(row for row in w.rows if row.technique.key == "pcp")
    assert split.tokens_per_s > w.requests.tokens_per_s
    assert (split.gain, split.verdict) == (pytest.approx(split.tokens_per_s / w.requests.tokens_per_s / 2), "loses")


@pytest.mark.parametrize("load", [{"batch": 64}, {"batch": 256}, {"concurrency": 512, "context": 512, "output_len": 64}], ids=str)
def test_a_technique_is_judged_by_what_it_adds_whether_what_it_needs_is_set_or_not(load):
    asked = ("deepseek-v3", "4x8xh200-sxm")
    bare = commtax.worth(*asked, dp=32, ep=32, **load)
    row = next(row for row in bare.rows if row.technique.key == "dbo")
    based = commtax.worth(*asked, dp=32, ep=32, technique=row.beside, **load)
    same = next(one for one in based.rows if one.technique.key == "dbo")
    assert (row.verdict, row.pays, row.never) == (same.verdict, same.pays, same.never)
    gains = [(x.gain, x.low, x.high, x.full_gain) for x in (row, same)]
    assert gains[0] == pytest.approx(gains[1], nan_ok=True)
    assert row.tokens_per_s == pytest.approx(same.tokens_per_s)


def test_requests_of_prompts_alone_are_told_as_simulate_tells_them():
    """No time between tokens where there is one, what the means leave out, and of hidden exchanges no more than all of them."""
    load = ("deepseek-v3", "-c", "2x8xh200-sxm", "-dp", "16", "-ep", "--technique", "deepep-ll")
    asked = ("worth", *load, "--phase", "prefill", "--context", "8192")
    done = told_here(*asked)
    told, text = json.loads(done.document), done.stdout
    loop = json.loads(run("simulate", *load, "--concurrency", "16", "--input-len", "8192", "--output-len", "1", "--json").stdout)
    dbo = next(row for row in told["weighed"] if row["technique"] == "dbo")
    assert (told["requests"]["tpot_s"], dbo["tpot_s"], loop["runs"][0]["tpot_s"]) == (None, None, None)
    assert "TPOT" not in text
    left_out = [note for note in loop["notes"] if "simulate with --num-prompts" in note]
    assert told["requests"]["notes"] == left_out != []
    assert all(f"· {note}" in text for note in left_out)
    bill = json.loads(run("bill", *load, "--phase", "prefill", "--context", "8192", "--json").stdout)
    assert 1 < dbo["step_gain"] < bill["step_s"] / (bill["step_s"] - bill["exposed_comm_s"])


def test_every_form_of_the_answer_has_the_same_verdicts(tmp_path):
    asked = ("worth", "llama-3.1-70b", "-c", "8xh100-sxm", "-tp", "8", "--concurrency", "64", "--context", "4096")
    told = json.loads(run(*asked, "--json", "--html", str(tmp_path / "page.html")).stdout)
    verdicts = {row["asked"]: row["verdict"] for row in told["weighed"]}
    assert "undecided" in verdicts.values()
    for row in told["weighed"]:
        both = row["verdict"] in ("gains", "loses", "undecided")
        assert not both or (row["verdict"] == "undecided") == (row["low"] <= 1 <= row["high"]), row["asked"]
    lines = run(*asked).stdout.splitlines()
    table = [line.split() for line in lines if line.split(" ")[0] in verdicts]
    shown = {cells[0]: cells[1] for cells in reversed(table) if cells[1] in verdicts.values()}
    assert shown == {name: verdict for name, verdict in verdicts.items() if verdict in ("gains", "loses", "undecided")}
    assert '"verdict": "undecided"' in (tmp_path / "page.html").read_text(encoding="utf8").replace('":"', '": "')
    assert lines[0].startswith("Worth setting here: async-tp (")
    assert "Undecided, measure first: eagle3=3 (" in lines[0]


@pytest.mark.parametrize("load", [{"batch": 4}, {"concurrency": 16}])
def test_techniques_that_are_set_are_weighed_against_the_question_without_them(load):
    """What one is worth does not depend on whether it is set already; others do not speak of what they do not change."""
    asked = {"tp": 4, "accepted_length": 2.5, **load}
    with_it = commtax.worth("llama-3.1-70b", "4xh100-sxm", technique="eagle3=3,fp8-kv", **asked)
    plain = commtax.worth("llama-3.1-70b", "4xh100-sxm", technique="fp8-kv", tp=4, **load)
    assert sorted(row.asked for row in with_it.on) == ["eagle3=3", "fp8-kv"]
    drafts = next(row for row in with_it.on if row.asked == "eagle3=3")
    assert drafts.gain == pytest.approx(with_it.requests.tokens_per_s / plain.requests.tokens_per_s)
    assert any("2.50 tokens" in note for note in drafts.notes)
    assert not any(row.notes for row in with_it.here if row.technique.group != "drafts")
    assert not commtax.worth("llama-3.1-70b", "4xh100-sxm", tp=4).on


def test_drafts_that_are_set_widen_no_range_and_stand_first():
    told = [commtax.worth("llama-3.1-70b", "4xh100-sxm", tp=4, **on) for on in ({}, {"technique": "eagle3"})]
    bare, drafted = (next(row for row in w.rows if row.asked == "fp8-kv") for w in told)
    assert drafted.high / drafted.low == pytest.approx(bare.high / bare.low, rel=0.1)
    asked = ("worth", "llama-3.1-70b", "-c", "4xh100-sxm", "-tp", "4", "--technique", "eagle3")
    done = told_here(*asked)
    told = json.loads(done.document)
    assert [row["asked"] for row in told["on"]] == ["eagle3=3"]
    assert told["verdict"].startswith(f"eagle3=3, which is set, gains: {told['on'][0]['gain'] - 1:+.0%} (")
    assert "on top of eagle3=3" in told["verdict"]
    assert "· async-tp:" not in done.stdout


def test_what_is_on_anyway_and_what_widens_a_gain_are_told():
    """Since when it is on, and what it brings against the same engine without it; one that is switched off is told."""
    switched = """vllm serve meta-llama/Llama-3.1-70B -tp 4 --compilation-config '{"pass_config": {"fuse_allreduce_rms": false}}'"""
    done = run("worth", "-c", "4xh100-sxm", "--from", switched, "--batch", "16", "--technique", "fused-allreduce")
    assert done.returncode == 0
    assert done.stdout.startswith("fused-allreduce is on by default in vLLM since 0.16, and is worth +")
    assert "fuse-allreduce-rms false (all-reduce, residual and norm in one kernel" in " ".join(done.stdout.split())
    newest, older = (commtax.bill("llama-3.1-70b", "4xh100-sxm", tp=4, batch=16, engine=e) for e in ("vllm", "vllm@0.15"))
    row = commtax.worth("llama-3.1-70b", "4xh100-sxm", tp=4, batch=16, technique="fused-allreduce").on[0]
    asked = commtax.bill("llama-3.1-70b", "4xh100-sxm", tp=4, batch=16, engine="vllm@0.15", technique="fused-allreduce")
    saved = float(older.step_s - asked.step_s)  # the same kernels, whichever version runs them
    assert float(newest.step_s) - row.step_s == pytest.approx(saved, rel=0.05)
    apart = commtax.worth("llama-3.1-70b", "4xh100-sxm", tp=4, technique="async-scheduling").on[0]
    assert (apart.refused != "", apart.verdict) == (True, "not here")
    own, other = (commtax.worth(name, "4xh100-sxm", tp=2, technique="eagle3=5").on[0] for name in ("llama-3.1-8b", "llama-3.1-70b"))
    assert (own.accepted, other.accepted) == ("on MT-Bench", "with llama-3.1-8b on MT-Bench")
    said = commtax.worth("llama-3.1-70b", "4xh100-sxm", tp=2, technique="eagle3=5", accepted_length=3.32).on[0]
    assert (said.accepted, said.gain) == ("", pytest.approx(other.gain))
    assert other.high / other.low > said.high / said.low
    # SGLang fuses up to 2,048 rows, and its kernel stops paying long before.
    rows = commtax.worth("llama-3.3-70b", "8xh100-sxm", tp=8, engine="sglang").rows
    row = next(row for row in rows if row.asked == "fused-allreduce")
    assert row.pays[0].high < 2048
    assert not row.pays[0].until


@pytest.mark.parametrize(("engine", "batch"), [("vllm", 4), ("vllm", 64), ("vllm@0.15", 4)])
def test_where_an_engine_stops_fusing_its_limit_is_named(engine, batch):
    """vLLM gives the fused kernel 512 KiB at the most on 8 Hopper GPUs: 32 rows of 8,192 numbers of 2 bytes."""
    asked = ("worth", "llama-3.3-70b", "-c", "8xh100-sxm", "-tp", "8", "--engine", engine, "--batch", batch)
    told = " ".join(run(*asked, *(("--technique", "fused-allreduce") if engine == "vllm" else ())).stdout.split())
    fused = {"engine": "vllm", "technique": "fused-allreduce"}
    limit = commtax.worth("llama-3.3-70b", "8xh100-sxm", tp=8, batch=batch, **fused).on[0].pays[0]
    assert (limit.high, limit.until) == (32, "vLLM fuses sums of up to 512 KiB on 8 GPUs, 32 tokens")
    if engine == "vllm":
        assert f"pays off: batch up to 32 ({limit.until})" in told
        assert ("changes nothing here" in told.split(".")[1]) == (batch > limit.high)
    else:
        rows = commtax.worth("llama-3.3-70b", "8xh100-sxm", tp=8, engine=engine).rows
        row = next(row for row in rows if row.pays and row.pays[0].until)
        assert (row.technique.key, row.pays[0]) == ("fused-allreduce", limit)
