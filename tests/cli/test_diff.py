"""``commtax diff``: the figures are those of the answers, rules decide the exit code, and Markdown stays Markdown."""

import json
import re
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax.report.answer_changes import (
    AnswerSide,
    compare_answers,
    compared_figures,
    difference_document,
    look_up,
    rules_of,
    with_money,
)
from commtax.report.figures import UNITS
from commtax.report.markdown import code, difference_markdown, plain
from commtax.statement import Refusal
from commtax.units import format_figure
from each import each
from paths import ROOT

WIDE, NARROW = (f"vllm serve Qwen/Qwen3-32B -tp {tp}" for tp in (4, 2))
LOAD = ("--cluster", "4xh100-sxm", "--concurrency", 16, "--input-len", 512, "--output-len", 64)


def answered(*words):
    done = run_here(*words, "--json")
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def served(tpot_s, **others):
    """The document of a simulated launch, as far as it is compared."""
    run = {"concurrency": 8, "ttft_s": 0.1, "tpot_s": tpot_s, "tokens_per_s": 8 / tpot_s}
    return {"schema": "commtax.simulate/1", "plan": {"tp": 2}, "gpus": 2, "fits": True, "runs": [run], **others}


def side(*documents, name="launch.yaml"):
    return AnswerSide(name, documents)


def test_figures_are_those_of_the_answers():
    found = answered("diff", WIDE, NARROW, *LOAD)
    for number, (when, launch) in enumerate((("before", WIDE), ("after", NARROW))):
        own = [answered(verb, "--from", launch, *words) for verb, words in (("simulate", LOAD), ("fit", LOAD[:2]))]
        values = {row["key"]: row[when] for row in found["figures"]}
        assert values["tpot"] == own[0]["runs"][0]["tpot_s"]
        assert values["ttft"] == own[0]["runs"][0]["ttft_s"]
        assert values["kv_cache_tokens"] == own[1]["kv_tokens"]
        assert values["tokens_per_s_per_gpu"] == own[0]["runs"][0]["tokens_per_s"] / own[0]["gpus"]
        assert found[when]["plan"] == f"{4 // (number + 1)} GPUs = TP {4 // (number + 1)}"
    assert found["summary"][0].startswith("4 GPUs = TP 4 -> 2 GPUs = TP 2: slower")


def test_cost_follows_from_the_price():
    row = {}
    for price in (2, 6):
        found = answered("diff", WIDE, NARROW, *LOAD, "--price", price)
        row[price] = next(r for r in found["figures"] if r["key"] == "usd_per_million_tokens")
    assert isclose(row[6]["after"], 3 * row[2]["after"])
    run = next(r for r in found["figures"] if r["key"] == "tokens_per_s")
    assert isclose(row[2]["before"], 2 * 4 / 3600 / run["before"] * 1e6)


@each(
    ("rules", "code"),
    [("slower=1%", 1), ("slower=900%", 0), ("dearer=5%", 0), ("never", 0), ("does-not-fit,slower=0.01", 1), ("does-not-fit", 0)],
)
def test_rules_decide_the_exit_code(rules, code):
    """The narrow launch is slower and cheaper, and fits."""
    assert run_here("diff", WIDE, NARROW, *LOAD, "--fail-on", rules).returncode == code


def test_what_does_not_fit_fails_unless_never():
    alone = "vllm serve Qwen/Qwen3-32B -tp 1 --gpu-memory-utilization 0.6"
    done = run_here("diff", NARROW, alone, *LOAD)
    assert done.returncode == 1
    assert "It no longer fits" in done.stdout
    assert run_here("diff", NARROW, alone, *LOAD, "--fail-on", "never").returncode == 0


def test_an_overloaded_server_that_fits_is_called_overloaded():
    served, load = "vllm serve meta-llama/Llama-3.1-8B-Instruct", ("--cluster", "1xh100", "--input-len", 4096, "--output-len", 64)
    words = (served, f"{served} --max-num-seqs 1", *load, "--num-prompts", 200, "--request-rate", 3)
    done, found = run_here("diff", *words), answered("diff", *words)
    assert (done.returncode, found["after"]["fits"], found["after"]["overloaded"], found["before"]["overloaded"]) == (
        1,
        True,
        True,
        False,
    )
    capacity = next(row["after"] for row in found["figures"] if row["key"] == "capacity")
    assert found["broken"] == [f"overloaded: {format_figure(capacity)} requests/s is the capacity, and 3 arrive"]
    assert f"Not allowed: {found['broken'][0]}" in done.stdout
    assert "not fit" not in done.stdout
    back = run_here("diff", words[1], words[0], *words[2:])
    assert back.returncode == 0
    assert "It still fits" in back.stdout
    assert "No longer overloaded" in back.stdout
    same = run_here("diff", words[1], words[1], *words[2:])
    assert same.returncode == 1
    assert f"Nothing changes: 1 GPU = TP 1, with the same figures. Not allowed: {found['broken'][0]}" in same.stdout
    assert "Overloaded, as before: " in run_here("diff", words[1], words[1], *words[2:], "--fail-on", "never").stdout


def test_command_lines_and_saved_answers_are_compared_alike(tmp_path):
    asked = "commtax plan llama-3.1-8b --cluster 2xh100-sxm --tpot 20ms --no-disaggregated"
    saved, command = tmp_path / "before.json", tmp_path / "question"
    saved.write_text(json.dumps(answered(*asked.split()[1:])))
    command.write_text(f"# what we run\n{asked} \\\n  --ttft 200ms\n")
    assert answered("diff", saved, asked)["same"]
    found = answered("diff", saved, command)
    assert {row["key"] for row in found["figures"]} >= {"ttft", "tpot", "tokens_per_s_per_gpu", "usd_per_million_tokens"}


def test_a_launch_that_trains_is_billed(tmp_path):
    def script(tp):
        return f"torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size {tp} {sizes}"

    sizes = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu "
        "--untie-embeddings-and-output-weights --padded-vocab-size 128256 --use-distributed-optimizer"
    )
    found = answered("diff", script(1), script(2), "--cluster", "8xh100-sxm")
    assert {row["key"] for row in found["figures"]} >= {"step", "mfu", "tokens_per_s"}


@each(
    ("words", "says"),
    [
        ((WIDE, NARROW, "--cluster", "4xh100-sxm"), "before: load: say how many requests there are"),
        ((WIDE, "vllm serve Qwen/Qwen3-32B -tp 3", *LOAD), "after: heads-divisible: "),
        ((WIDE, "/dev/null", *LOAD), "after: "),
        ((WIDE, NARROW, *LOAD, "--fail-on", "worse"), "fail_on 'worse': rules are does-not-fit, never, dearer=10%, slower=10%"),
        (
            (WIDE, NARROW, *LOAD[:2], "--concurrency", "64,256"),
            "concurrency '64,256': one load at a time is compared",
        ),
        (("commtax catalog chips", NARROW), "before: commtax catalog: answers of plan, simulate, bill, fit are compared"),
        (("commtax plan llama-3.1-8b -c 2xh100-sxm", NARROW, *LOAD), "before: cluster: a commtax command line says it itself"),
        ((WIDE,), "AFTER"),
    ],
)
def test_refusals_name_the_side_and_the_rule(words, says):
    done = run_here("diff", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_new_launch_has_no_before():
    done = run_here("diff", "/dev/null", NARROW, *LOAD)
    assert done.returncode == 0
    assert done.stdout.startswith("New: 2 GPUs = TP 2.\n")
    assert "It fits: " in done.stdout


seconds = st.floats(1e-3, 10)


@given(seconds, seconds, st.floats(0, 2))
def test_a_rule_is_broken_exactly_where_the_loss_is_larger(before, after, share):
    a, b = side(served(before)), side(served(after))
    found = compare_answers(a, b, {"slower": share})
    worst = max(change.loss for change in found.changes if change.figure.rule == "slower")
    assert bool(found.broken) == (worst > share)
    back = compare_answers(b, a, {})
    for there, again in zip(found.changes, back.changes, strict=True):
        if there.relative is not None and again.relative is not None:
            assert isclose((1 + there.relative) * (1 + again.relative), 1)
    assert compare_answers(a, a, {"slower": 0.0}).is_same


@given(st.text(max_size=40))
def test_rules_are_read_or_refused(text):
    try:
        rules = rules_of(text)
    except Refusal:
        return
    assert set(rules) <= {"does-not-fit", *(figure.rule for figure in compared_figures())}


hostile = st.text("a|<>@`#*_[]()!\\\n&-\x1b\u202e", max_size=30)


@given(hostile, hostile)
def test_markdown_cannot_be_left(name, model):
    """Whatever a pull request writes into names: the table keeps its columns, nobody is mentioned and no tag is opened."""
    text = difference_markdown(compare_answers(side(served(0.01)), side(served(0.02, model=model, notes=[name]), name=name), {}))
    shown, _, folded = text.partition("<details>")
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {6}
    assert "<" not in re.sub(r"`[^`\n]*`", "", shown)
    assert folded.count("```") in (0, 2)
    assert not re.search(r"@\w", plain(model))
    assert code(name).count("`") == 2
    assert "\x1b" not in text


def test_an_audit_is_told_as_markdown():
    runs = ROOT / "examples" / "three-runs"
    words = ("audit", runs / "serve-32.json", "--from", runs / "launch.sh", "--cluster", "4xh100-sxm")
    done = run_here(*words, "--markdown")
    assert done.returncode == 0
    assert done.stdout.startswith("### ✅ qwen3-32b on 4xh100-sxm, TP 4: the run agrees")
    assert "| TPOT (mean) |" in done.stdout
    assert run_here(*words, "--markdown", "--diff").returncode == 2


@pytest.mark.parametrize("figure", compared_figures(), ids=lambda figure: figure.key)
def test_every_figure_has_a_place_and_ranges_in_step(figure):
    assert figure.at
    assert len(figure.ends("low")) == len(figure.ends("high")) == len(figure.at)
    assert figure.described.unit in UNITS
    assert bool(figure.rule) <= figure.judged
    assert bool(figure.line) == bool(figure.brief)
    assert look_up({}, figure.at[0]) is None


KEYS = sorted(
    {"tp", "replicas", "workers", "metric"}
    | {part for figure in compared_figures() for path in (*figure.at, *figure.low) for part in path.split(".") if part}
)
odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=12,
)
saved_documents = st.fixed_dictionaries(
    {"schema": st.just("commtax.simulate/1")},
    optional=dict.fromkeys((*KEYS, "plan", "fits", "notes", "prompt_workers", "shortfall_bytes", "overloaded", "model"), odd),
)


@given(saved_documents, saved_documents)
def test_whatever_a_saved_answer_holds_it_is_compared_or_refused(before, after):
    """Files of others are no reason for a traceback."""
    try:
        found = compare_answers(side(with_money(before, 2.0)), side(with_money(after, None)), {"slower": 0.1})
    except Refusal:
        return
    assert difference_markdown(found)
    assert json.dumps(difference_document(found))


def test_flags_that_worth_prints_are_compared():
    """dbo needs DeepEP's kernels, which fit has no price for, and reads all the same."""
    before = "vllm serve deepseek-ai/DeepSeek-V3 -dp 16 --enable-expert-parallel --all2all-backend deepep_high_throughput"
    done = run_here("diff", before, f"{before} --enable-dbo", "-c", "2x8xh200-sxm", "--concurrency", "256", "--input-len", "4096")
    assert (done.returncode, done.stderr) == (0, "")
