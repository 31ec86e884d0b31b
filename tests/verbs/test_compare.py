"""Comparisons: one or two axes, legal cells priced, the rest with their rule; table, CSV, JSON and picture."""

import csv
import io
import json

import pytest

import commtax
from cli_run import run_here
from commtax.verbs.comparing import parse_over


def run(*words):
    return run_here("compare", *words)


def test_cells_are_bills():
    found = commtax.compare("llama-3.1-8b", "8xh100-sxm", ["tp=1,2,3,4,8"])
    cells = {row.at[0]: row for row in found.rows}
    assert "heads-divisible" in cells[3].refused
    assert float(cells[8].bill.step_s) == float(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8).step_s)
    assert found.values("tp") == [1, 2, 3, 4, 8]


def test_comm_fraction_against_batch_for_each_link():
    found = commtax.compare("llama-3.1-8b", "8xh100-sxm", ["batch=1:64", "link=nvlink4,pcie5,ib-ndr,10gbe"], tp=2)
    share = {row.at: float(row.bill.comm_fraction) for row in found.rows}
    for batch in (1, 8, 64):
        assert share[batch, "nvlink4"] < share[batch, "pcie5"] < share[batch, "10gbe"]
    assert share[64, "10gbe"] > 0.4, "a larger batch does not save Ethernet"


def test_expert_all_to_all_stands_beside_tensor_parallel():
    found = commtax.compare("deepseek-v3", "8x8xh200-sxm", ["batch=32,128"], tp=8, dp=8, ep=64)
    assert all(row.bill.exposed_on("ep") > row.bill.exposed_on("tp") > 0 for row in found.rows)


@pytest.mark.parametrize(
    ("text", "values"),
    [("batch=1:256", [1, 2, 4, 8, 16, 32, 64, 128, 256]), ("context=1k:6k", [1000, 2000, 4000, 6000]), ("tp=8", [8])],
)
def test_ranges(text, values):
    assert parse_over(text)[1] == values


@pytest.mark.parametrize("text", ["batch", "batch=", "tp=a", "batch=8:1", "speed=1,2", "link=nvlink9", "batch=0:4"])
def test_bad_ranges(text):
    with pytest.raises(ValueError, match=r"over|tp|unknown link"):
        parse_over(text)


def test_table_csv_and_json_agree():
    words = ("llama-3.1-8b", "--cluster", "8xh100-sxm", "--over", "tp=1,2,4,8", "--over", "batch=1,64")
    rows = json.loads(run(*words, "--json").stdout)["rows"]
    lines = list(csv.DictReader(io.StringIO(run(*words, "--csv").stdout)))
    assert len(rows) == len(lines) == 8
    assert [float(x["step_s"]) for x in lines] == pytest.approx([x["step_s"] for x in rows])
    assert "tokens/s" in run(*words).stdout


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot(tmp_path, suffix):
    file = tmp_path / f"out.{suffix}"
    done = run("llama-3.1-8b", "--cluster", "8xh100-sxm", "--over", "tp=1,2,4,8", "--plot", str(file))
    assert done.returncode == 0, done.stderr
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        assert b"ideal" in content or b"tensor-parallel size" in content or len(content) > 10_000


def test_mistakes():
    for words, says in (
        (("--over", "tp=3,5"), "nothing on this range is legal"),
        (("--over", "tp=1", "--over", "tp=2"), "two different axes"),
        (("--over", "batch=1:4", "--plot", "x.txt"), "must end in"),
    ):
        done = run("llama-3.1-8b", "--cluster", "8xh100-sxm", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert says in done.stderr


def test_prefill_is_compared_by_prompts():
    """Outputs of prompts are one token each: tokens/s of prompts and the first token's time tell plans apart."""
    words = ("llama-3.1-405b", "-c", "8xh100-sxm", "--phase", "prefill", "--context", "131072")
    plans = ("compare", *words, "--plans", "tp4,tp8")
    rows = json.loads(run_here(*plans, "--json").stdout)["rows"]
    for row in rows:
        assert row["prompt_tokens_per_s"] == pytest.approx(131072 / row["step_s"])
        assert row["ttft_s"] >= row["step_s"]
    told = run_here(*plans).stdout
    assert "TTFT" in told
    assert f"{rows[1]['prompt_tokens_per_s']:,.0f}" in told
    over = json.loads(run_here("compare", *words, "--over", "tp=4,8", "--json").stdout)["rows"]
    assert [row["prompt_tokens_per_s"] for row in over] == pytest.approx([row["prompt_tokens_per_s"] for row in rows])


@pytest.mark.parametrize("over", [("--plans", "tp1,tp2"), ("--over", "tp=1,2")])
def test_drafts_that_are_not_counted_are_told(over):
    told = [run_here("compare", "llama-3.1-8b", "-c", "8xh100-sxm", *over, *more).stdout for more in ((), ("--speculative", "3"))]
    assert ["tokens/s ignore accepted drafts" in text for text in told] == [False, True]
