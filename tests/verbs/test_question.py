"""The question: its parts, and what changing one of their fields does."""

from collections import Counter
from dataclasses import replace

import commtax
from cli_run import run_here
from commtax.question import PARTS, PHASES
from commtax.report.view.state import State
from commtax.verbs.settling import resolve_question


def test_no_two_parts_have_a_field_of_one_name():
    """``but`` gives a name to the part that has it: of two, one would be lost."""
    counts = Counter(name for names in PARTS.values() for name in names)
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_change_reaches_its_part_and_nothing_else():
    q = resolve_question("llama-3.1-8b", "8xh100-sxm", {"tp": 2})
    changed = q.but(tp=4, request_rate=8.0, concurrency=3)
    assert (changed.plan.tp, changed.offered.request_rate, changed.requests.concurrency) == (4, 8.0, 3)
    assert replace(changed, plan=q.plan, offered=q.offered, requests=q.requests) == q


def test_lengths_that_nobody_says_are_one_set():
    """… for every verb, every function and the page; a training step has its own."""
    place, usual = "1xh100-sxm", (1024, 128)
    asked = {
        "plan": commtax.plan("llama-3.1-8b", place, max_concurrency=4).question.requests,
        "simulate": commtax.simulate("llama-3.1-8b", place, concurrency=2).question.requests,
        "fleet": commtax.plan_fleet("llama-3.1-8b", place, request_rate=1, num_prompts=100).question.requests,
    }
    assert {name: (int(r.input_len), int(r.output_len)) for name, r in asked.items()} == dict.fromkeys(asked, usual)
    table = commtax.compare_plans("llama-3.1-8b", "2xh100-sxm", ["tp1", "tp2"])
    steps = [commtax.bill("llama-3.1-8b", place).question.context, table.context, PHASES["prefill"].length]
    assert steps == [usual[0]] * 3
    page = State().keys
    assert (page["il"], page["ol"]) == usual
    for words in (["plan"], ["plan", "--request-rate", "1", "--num-prompts", "100"], ["simulate", "--concurrency", "2"]):
        said = run_here(words[0], "llama-3.1-8b", "-c", place, *words[1:]).stdout
        assert "1,024 tokens in" in said
        assert "128 out" in said


def test_stages_without_a_request_idle_and_requests_do_not_wait():
    said = run_here("plan", "llama-3.1-70b", "-c", "8xh100-sxm", "--max-concurrency", "7", "--no-disaggregated").stdout
    assert "of them wait" not in said
    assert "8 stages share 7 requests, so 1 stage idles" in said
