"""Requests are no longer than a server takes: too long ones are refused, and a spread of lengths ends where the limit does."""

import csv
import re
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax.catalog import engine, model
from commtax.launch.writing import benchmark_command
from commtax.question import Question
from commtax.statement import Refusal
from commtax.verbs.loads import longest_of, stream_of
from commtax.verbs.settling import ask

ASKED = ("simulate", "llama-3.1-70b", "--cluster", "4xh100", "-tp", "4", "--concurrency", "2")


@pytest.mark.parametrize("more", [(), ("--num-prompts", "20")])
def test_requests_that_are_all_too_long_are_refused(more: tuple[str, ...]) -> None:
    result = run_here(*ASKED, "--input-len", "200000", *more)
    assert result.returncode == 2
    assert "with output_len it makes 200,128 tokens, more than the 131,072 positions of llama-3.1-70b" in result.stderr
    assert run_here(*ASKED, "--input-len", "130944", "--spread", "0").returncode == 0, "the nearest valid length is valid"


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "llama-3.1-8b", "--input-len", "8k"),
        ("worth", "llama-3.1-8b", "--context", "8k", "--concurrency", "2"),
        ("worth", "llama-3.1-8b", "--context", "8k"),
        ("compare", "llama-3.1-8b", "--plans", "tp1,tp2", "--context", "8k", "--concurrency", "2"),
        ("diff", "vllm serve llama-3.1-8b", "vllm serve llama-3.1-8b -tp 2", "--input-len", "8k", "--concurrency", "2"),
    ],
)
def test_all_that_price_whole_requests_hold_them_to_the_limit(words: tuple[str, ...]) -> None:
    asked = (*words, "--cluster", "2xh100", "--output-len", "100", "--max-model-len")
    refused = run_here(*asked, "8000")
    assert (refused.returncode, "max_model_len=8000: fewer than input_len + output_len = 8,100" in refused.stderr) == (2, True)
    assert run_here(*asked, "8100").returncode == 0


def test_a_comparison_of_steps_has_no_longest_request() -> None:
    asked = ("compare", "llama-3.1-8b", "-c", "2xh100", "--plans", "tp1,tp2")
    assert "belongs to whole requests" in run_here(*asked, "--max-model-len", "8000").stderr
    assert run_here(*asked, "--from", "vllm serve meta-llama/Llama-3.1-8B --max-model-len 512").returncode == 0


def test_a_longer_limit_that_was_set_is_taken_at_its_word() -> None:
    assert "are more than the 131,072 positions" in run_here(*ASKED, "--input-len", "200000", "--max-model-len", "262144").stdout


def test_only_the_tail_of_the_lengths_is_cut(tmp_path) -> None:
    saved = tmp_path / "requests.csv"
    result = run_here(*ASKED, "--input-len", "100000", "--num-prompts", "60", "--save", str(saved))
    rows = list(csv.DictReader(saved.read_text().splitlines()))
    assert result.returncode == 0
    assert 125_000 < max(int(row["input_tokens"]) + int(row["output_tokens"]) for row in rows) <= 131_072
    said = run_here(*ASKED, "--input-len", "100000").stdout
    assert "lengths vary by ±30.9% only, so that none is longer than the 131,072 tokens" in " ".join(said.split())


@settings(max_examples=200)
@given(
    limit=st.integers(2, 131_072),
    share=st.floats(0.01, 1),
    prompts=st.floats(0.01, 0.99),
    spread=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_no_request_and_no_check_goes_beyond_the_limit(limit, share, prompts, spread, seed) -> None:
    tokens = max(2, int(limit * share))
    ins = min(tokens - 1, max(1, int(tokens * prompts)))
    load = {"input_len": ins, "output_len": tokens - ins, "spread": spread, "num_prompts": 50, "concurrency": 2}
    q = ask("llama-3.1-8b", "1xh100", max_model_len=limit, **load).but(seed=seed)
    assert longest_of(stream_of(q)) <= limit
    bare = Question(model("llama-3.1-8b"), q.cluster, engine("vllm")).but(max_model_len=limit, **load)
    ratio = float(re.search(r"--random-range-ratio (\S+)", benchmark_command(bare, "vllm"))[1])
    assert ceil(ins * (1 + ratio)) + ceil((tokens - ins) * (1 + ratio)) <= limit


def test_python_refuses_alike() -> None:
    with pytest.raises(Refusal, match="nearest valid input_len: 130944"):
        commtax.simulate("llama-3.1-70b", "4xh100", tp=4, input_len=200_000)
