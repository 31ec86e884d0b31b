"""Pages of metrics: what two of them have between them, who was restarted, and what a load is made of."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from commtax.runs.results.exposition import Exposition, bounds_text, quantile_bounds, read_exposition, requests_in_flight, run_of
from metrics_pages import BOUNDS, RECORDED_APART_S, histogram, recorded

PAGES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["page"]
times = some.lists(some.floats(0.0005, 60), max_size=20)


def page_of(values, **more):
    return read_exposition("\n".join([*histogram("e2e_request_latency_seconds", values), *(f"{k} {v}" for k, v in more.items())]))


@given(times, times)
def test_between_two_pages_is_what_came_between(before, between):
    first, last = page_of(before), page_of([*before, *between])
    assert not last.restarted_since(first)
    made, alone = last.since(first), page_of(between)
    assert made.totals.keys() == alone.totals.keys()
    assert all(made.totals[name] == pytest.approx(value, abs=1e-9) for name, value in alone.totals.items())
    assert made.buckets == alone.buckets
    low, high = quantile_bounds(made.buckets["e2e_request_latency_seconds"], 0.99)
    assert not between or low <= sorted(between)[-1] * 1.000001
    assert not between or high in (*BOUNDS, float("inf"))


@given(times, times, some.booleans())
def test_a_smaller_total_or_a_later_start_is_another_process(before, after, told):
    first = page_of(before, process_start_time_seconds=1000.0)
    last = page_of(after, process_start_time_seconds=2000.0 if told else 1000.0)
    assert last.restarted_since(first) == (told or sum(after) < sum(before) or len(after) < len(before))


def test_the_load_of_a_recorded_server():
    """Six clients that never pause, 160 tokens of which 128 are shared, 32 to answer."""
    first, last = (read_exposition(recorded(n)) for n in (1, 2))
    run = run_of(last.since(first), RECORDED_APART_S)
    assert requests_in_flight(last.since(first), RECORDED_APART_S) == pytest.approx(6, rel=0.02)
    assert requests_in_flight(last, None) == pytest.approx(6, rel=0.06)  # since its start, by tokens per step
    assert (run.input_len, run.output_len, run.hit_rate, run.accepted) == (160, 32, 0.8, 1)
    assert run.requests_per_s * run.seconds("e2el") == pytest.approx(6, rel=0.05)  # Little's law, by other histograms
    assert run.facts["p99 TTFT"] == "100 ms to 250 ms"
    assert (run.facts["running"], run.facts["preemptions"]) == ("6", "0")
    assert last.started_s is not None


def test_a_recorded_restart_is_noticed():
    first, last, again = (read_exposition(recorded(n)) for n in (1, 2, 3))
    assert [again.restarted_since(first), again.restarted_since(last), last.restarted_since(first)] == [True, True, False]


@pytest.mark.parametrize("page", PAGES, ids=[p["engine"] for p in PAGES])
def test_documented_names_of_engines(page):
    run = run_of(read_exposition(page["lines"]), page["window_s"])
    assert run.facts["engine"] == page["engine"]
    assert run.concurrency == pytest.approx(page["in_flight"])
    assert list(run.lengths) == page["lengths"]
    assert (run.hit_rate, run.seconds("ttft")) == (page["hit_rate"], page["ttft_s"])
    assert page["facts"].items() <= run.facts.items()


def test_drafts_are_told_by_tokens_that_come_at_once():
    lines = [f"vllm:{name} {value}" for name, value in (
        ("spec_decode_num_drafts_total", 400), ("generation_tokens_total", 1000), ("time_to_first_token_seconds_count", 10),
        ("inter_token_latency_seconds_count", 390), ("iteration_tokens_total_count", 100),
    )]  # fmt: skip
    page = read_exposition("\n".join(lines))
    assert run_of(page).accepted == 2.5
    assert requests_in_flight(page, None) == 4


@pytest.mark.parametrize("text", ["", "# nothing\n", "node_cpu_seconds_total 1\n", "<html>vllm</html>", "vllm:x NaN\n"])
def test_pages_without_a_metric_of_an_engine_are_empty(text):
    assert not read_exposition(text)


def test_what_is_above_all_bounds_has_no_upper_one():
    assert bounds_text(*quantile_bounds({1.0: 0.0, float("inf"): 5.0}, 0.99)) == "above 1 s"
    assert bounds_text(0.25, 0.5) == "250 ms to 500 ms"
    assert not Exposition()
