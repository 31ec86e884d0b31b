"""Plans side by side: the same work, break-evens that hold, table, CSV, JSON, heat maps."""

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax.judgement.margins import ratio_error
from commtax.report.comparisons import flip_words
from commtax.verbs.comparing import compare_plans, parse_plan
from each import each

WORDS = ("llama-3.1-8b", "--cluster", "8xh100-sxm", "--plans", "tp1,tp8,tp4dp2,tp3", "--batches", "1,64")


def run(*words):
    return run_here("compare", *words)


@given(st.permutations(["tp", "pp", "dp", "ep", "cp"]), st.lists(st.integers(1, 64), min_size=5, max_size=5))
def test_sizes_in_any_order(names, sizes):
    told = parse_plan("".join(f"{n}{s}" for n, s in zip(names, sizes, strict=True)))
    assert told == {**dict(zip(names, sizes, strict=True)), "replicas": 1}


@each("text", ["", "tp", "tp0", "8", "tp2tp4", "xp3", "tp2 pp2x", f"tp{10**20}"])
def test_what_is_no_plan(text):
    with pytest.raises(ValueError, match="plans"):
        parse_plan(text)


def test_a_batch_is_shared_out_over_replicas():
    found = compare_plans("llama-3.1-8b", "8xh100-sxm", ["tp8", "dp8", "tp4dp2"], batches=[64])
    rows = {r.plan: r for r in found.rows}
    assert rows["dp8"].bill.step_s == commtax.bill("llama-3.1-8b", "8xh100-sxm", dp=8, batch=8).step_s
    assert rows["dp8"].tokens_per_s == pytest.approx(64 / float(rows["dp8"].bill.step_s))
    few = compare_plans("llama-3.1-8b", "8xh100-sxm", ["dp8"], batches=[2]).rows[0]
    assert few.tokens_per_s == pytest.approx(2 / float(few.bill.step_s)), "idle replicas earn nothing"


@given(st.sampled_from(["llama-3.1-8b", "qwq-32b", "mixtral-8x7b"]), st.sampled_from(["8xh100-sxm", "8xl40s"]), st.integers(1, 64))
@settings(max_examples=8, deadline=None)
def test_the_order_flips_where_it_is_said_to(model, cluster, batch):
    found = compare_plans(model, cluster, ["tp1", "tp4", "tp8", "tp4dp2"], batches=[batch])
    for flip in found.break_evens:
        a, b = parse_plan(flip.first), parse_plan(flip.then)

        def step(sizes, at, axis=flip.axis):
            total = np.asarray(at if axis == "sequences" else batch, dtype=int)
            words = {"context": int(at)} if axis == "context" else {}
            return commtax.bill(model, cluster, **{**sizes, "batch": -(-total // sizes["dp"])}, **words).step_s

        if flip.axis == "bandwidth":
            continue
        assert step(b, flip.at) < step(a, flip.at)
        assert step(a, 1) < step(b, 1)
        if flip.axis == "sequences":
            after = np.arange(int(flip.at), 1025, 37)
            assert np.all(step(b, after) < step(a, after))


def test_bandwidth_break_even_holds_on_a_link_of_that_rate():
    found = compare_plans("llama-3.1-8b", "8xl40s", ["tp1", "tp8"], batches=[16])
    flips = [f for f in found.break_evens if f.axis == "bandwidth"]
    assert [(f.first, f.then) for f in flips] == [("tp1", "tp8")]
    factor = flips[0].at / catalog_rate("8xl40s")
    below, above = (commtax.bill("llama-3.1-8b", "8xl40s", tp=8, batch=16, bandwidth_scale=factor * x).step_s for x in (0.95, 1.05))
    assert above < commtax.bill("llama-3.1-8b", "8xl40s", batch=16).step_s < below


def catalog_rate(name):
    from commtax import catalog

    return catalog.cluster(name).intra.bandwidth_Bps


def test_table_csv_and_json_agree():
    document = json.loads(run(*WORDS, "--json").stdout)
    lines = list(csv.DictReader(io.StringIO(run(*WORDS, "--csv").stdout)))
    assert [float(x["step_s"]) for x in lines if x["step_s"]] == pytest.approx(
        [r["step_s"] for r in document["rows"] if r["step_s"]]
    )
    assert {f["axis"] for f in document["break_even"]} <= {"sequences", "context", "bandwidth"}
    text = run(*WORDS).stdout
    assert "32 attention heads of llama-3.1-8b" in " ".join(text.split())
    assert "plan x global batch" in text
    assert "████" in text
    assert "break-even by global batch: tp8 is faster below" in text


def test_links_and_a_picture(tmp_path):
    file = tmp_path / "heat.svg"
    done = run(*WORDS[:-2], "--batches", "1,8", "--links", "nvlink4,10gbe", "--plot", str(file))
    assert done.returncode == 0, done.stderr
    assert "plan x link, global batch 1" in done.stdout
    assert file.read_bytes().startswith(b"<?xml")


def test_training_plans():
    words = ("llama-3.1-8b", "--cluster", "8xh100-sxm", "--phase", "train", "--batches", "64", "--zero", "1")
    found = json.loads(run(*words, "--plans", "tp8,tp2dp4,dp8", "--json").stdout)["rows"]
    assert [r["gpus"] for r in found] == [8, 8, 8]
    assert found[2]["tokens_per_s"] > found[0]["tokens_per_s"]


def test_mistakes():
    for words, says in (
        (("--plans", "tp3,tp5"), "none of them is legal"),
        (("--plans", "tp2", "--over", "tp=1"), "one of them"),
        ((), "one of them"),
        (("--plans", "tp2", "--batches", "0"), "at least 1"),
        (("--plans", "tp2", "--links", "nvlink9"), "unknown link"),
    ):
        done = run("llama-3.1-8b", "--cluster", "8xh100-sxm", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert says in done.stderr


def test_a_dense_model_has_no_experts_to_spread():
    """As ``bill`` says it, not as if nothing had been asked for."""
    spread = compare_plans("llama-3.1-8b", "8xh100-sxm", ["tp4", "tp4ep"], batches=[16]).rows[1]
    assert (spread.bill, "is dense" in spread.refused) == (None, True)


def test_where_the_lead_changes_back_and_forth_is_said():
    """Below the first batch one leads, from the last on the other, and no other order is claimed in between."""
    found = compare_plans("gpt-oss-120b", "8xh100-sxm", ["tp8", "2xtp4"], batches=[1])
    flip = next(f for f in found.break_evens if f.axis == "sequences")
    assert flip.earliest < flip.at
    words = flip_words(flip)
    assert f"tp8 is faster below {flip.earliest:.0f}, 2xtp4 from {flip.at:.0f} on; in between the lead changes" in words


@settings(max_examples=6, deadline=None)
@given(
    pair=st.sampled_from((("gpt-oss-120b", "tp8", "2xtp4"), ("llama-3.1-8b", "tp8", "8xtp1"), ("qwq-32b", "tp8", "2xtp4"))),
    batch=st.integers(1, 1024),
)
def test_a_break_even_and_the_verdict_at_a_batch_are_one_judgement(pair, batch):
    """Where a break-even calls a plan faster, the table at that batch does; where it is too close, neither does."""
    model, *names = pair
    found = compare_plans(model, "8xh100-sxm", names, batches=[batch])
    flip, within = next(f for f in found.break_evens if f.axis == "sequences"), ratio_error(found.question)
    below, above = flip.sure(within)
    rates = {row.plan: row.rate for row in found.rows}
    lead = rates[flip.then] / rates[flip.first]
    if below and batch < below:
        assert 1 / lead > 1 + within
    elif above and batch >= above:
        assert lead > 1 + within
    else:
        assert 1 / lead <= 1 + flip.leads(within)[0] + 1e-9
        assert lead <= 1 + flip.leads(within)[1] + 1e-9


def test_whole_requests_of_plans_are_those_of_simulate():
    clients, lengths = [1, 64, 256], {"input_len": 512, "output_len": 64}
    found = compare_plans("gpt-oss-120b", "8xh100-sxm", ["tp8", "2xtp4"], concurrency=clients, context=512, output_len=64)
    assert [(row.plan, row.clients) for row in found.served] == [(plan, n) for plan in ("tp8", "2xtp4") for n in clients]
    for row in found.served:
        sizes = {name: parse_plan(row.plan)[name] for name in ("tp", "replicas")}
        alone = commtax.simulate("gpt-oss-120b", "8xh100-sxm", **sizes, concurrency=max(row.clients, sizes["replicas"]), **lengths)
        assert (row.ttft_s, row.tpot_s) == (pytest.approx(float(alone.ttft_s)), pytest.approx(float(alone.tpot_s)))
        assert row.tokens_per_s == pytest.approx(row.clients * 64 / float(alone.e2e_s)), (
            "Little's law; an idle server earns nothing"
        )


def test_whole_requests_are_the_first_answer_where_clients_are_given():
    words = ("gpt-oss-120b", "--cluster", "8xh100-sxm", "--plans", "tp8,2xtp4")
    said = " ".join(run(*words, "--batches", "8,256").stdout.split())
    assert "--concurrency 8,256 also compares whole requests" in said
    whole = run(*words, "--concurrency", "8,256").stdout
    assert " ".join(whole.split()).startswith("Most tokens/s of whole requests of 1,024 tokens in, 128 out (lengths ±50%): ")
    assert "2xtp4 at concurrency 256" in " ".join(whole.split("plan ")[0].split())
    for wrong in (("--output-len", "64"), ("--concurrency", "0"), ("--phase", "prefill", "--concurrency", "8")):
        assert run(*words, *wrong).returncode == 2
    assert "does not fit" in run("llama-3.1-70b", "--cluster", "8xh100-sxm", "--plans", "tp1,tp4", "--concurrency", "8").stdout


def test_help_tells_two_servers_from_two_ranks():
    said = " ".join(run("--help").stdout.split())
    assert "2xtp4 is two servers of TP 4, tp4dp2 one server with two data-parallel ranks" in said
    assert (parse_plan("2xtp4")["replicas"], parse_plan("tp4dp2")["dp"]) == (2, 2)
