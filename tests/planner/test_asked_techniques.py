"""Techniques that a search is asked to use: plans that cannot have one say so, and where none can, the search says why."""

import json

import pytest

import commtax
from cli_run import run_here as run
from commtax.statement import Refusal
from tables import tables

DATA = tables(__file__)


def ranked(*words):
    done = run("plan", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["plans"]


def can(model, cluster, row, **options):
    """Whether a step of a listed plan can be had so."""
    own = {"ep_backend": row["ep_backend"], "redundant_experts": row["redundant_experts"]} if "ep_backend" in row else {}
    sizes = {axis: row[axis] for axis in ("tp", "pp", "dp", "ep")}
    try:
        commtax.bill(model, cluster, **sizes, **own, **options)
    except Refusal:
        return False
    return True


@pytest.mark.parametrize(
    ("model", "cluster", "technique", "engine"),
    [("deepseek-v3", "8xh200-sxm", "dbo", "vllm"), ("llama-3.1-70b", "8xh100-sxm", "fused-allreduce", "vllm@0.10")],
)
def test_a_plan_says_what_it_is_without_exactly_where_a_bill_refuses_it(model, cluster, technique, engine):
    asked = (model, "-c", cluster, "--engine", engine, "--no-disaggregated", "--top", "40")
    rows, plain = ranked(*asked, "--technique", technique), ranked(*asked)
    lacking = [row for row in rows if row.get("without_techniques") == [technique]]
    assert 0 < len(lacking) < len(rows)
    for row in rows:
        assert can(model, cluster, row, engine=engine, technique=technique) == (row not in lacking), row["verdict"]
        assert (f"without {technique}" in row["verdict"]) == (row in lacking)
    before = {row["verdict"]: row["tpot_s"] for row in plain}
    for row in lacking:  # off, it changes no digit
        assert row["tpot_s"] == before.get(row["verdict"].replace(f", without {technique}", ""), row["tpot_s"])


@pytest.mark.parametrize(("words", "why"), DATA["where_no_plan_can_have_it_one_line_says_why"])
def test_where_no_plan_can_have_it_one_line_says_why(words, why):
    done = run("plan", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert why in done.stderr


def test_techniques_of_a_rate_are_chosen_first_and_then_simulated():
    asked = ("llama-3.1-8b", "-c", "1xh100-sxm", "--request-rate", "2", "--num-prompts", "100", "--p99-itl", "30ms")
    chosen = ranked(*asked, "--techniques", "auto")
    named = chosen[0]["techniques"]
    assert any(text.startswith("eagle3=") for text in named)
    told = ranked(*asked, "--technique", ",".join(named))
    assert [row["p99_itl_s"] for row in told] == [row["p99_itl_s"] for row in chosen]
