"""``commtax calibrate --next``, ``--for`` and ``--check`` as people type them."""

import json

import pytest

from cli_run import run_here
from measured import LOADS, measured

ASKED = ("-m", "llama-3.1-70b", "-c", "8xh100-sxm", "-tp", "4")


def result(run):
    """A run as vllm bench writes it."""
    options, n = run.options, 10 * run.options["concurrency"]
    totals = {"total_input_tokens": n * options["input_len"], "total_output_tokens": n * options["output_len"], "completed": n}
    times = {f"mean_{m}_ms": 1e3 * s for m, s in run.measured.items()}
    head = {
        "model_id": run.model,
        "max_concurrency": options["concurrency"],
        "tp": options["tp"],
        "failed": 0,
        "request_rate": "inf",
    }
    return json.dumps({**head, **totals, **times, "duration": 60})


def test_before_anything_was_run():
    done = run_here("calibrate", "--next", 2, *ASKED, "--concurrency", 64, "--input-len", 8192, "--output-len", 1024)
    assert done.returncode == 0
    assert "nothing measured yet" in done.stdout
    assert "1. concurrency 64 at 8k/1k: TPOT range ±" in done.stdout
    assert "vllm bench serve" in done.stdout


def test_the_document_says_the_same():
    told = json.loads(run_here("calibrate", "--next", 1, *ASKED, "--concurrency", 8, "--json").stdout)
    assert told["schema"] == "commtax.calibrate-next/1"
    assert {load["concurrency"] for load in told["loads"]} == {8}
    (run,) = told["runs"]
    assert run["after"]["tpot"] < run["before"]["tpot"]
    assert run["command"].startswith("vllm bench serve")


def test_after_files_there_is_less_to_learn(tmp_path):
    files = []
    for i, run in enumerate(measured(LOADS[:3])):
        files.append(tmp_path / f"{i}.json")
        files[-1].write_text(result(run))
    asked = ("--next", 1, *ASKED, "--json")
    before, after = (json.loads(run_here("calibrate", *some, *asked).stdout) for some in ((), files))
    assert (before["known_times"], after["known_times"]) == (0, 6)
    assert after["runs"][0]["before"]["tpot"] < before["runs"][0]["before"]["tpot"]


def test_a_pasted_command_says_what_is_served():
    command = "vllm serve meta-llama/Llama-3.1-70B -tp 4"
    pasted = run_here("calibrate", "--next", 1, "-c", "8xh100-sxm", "--from", command, "--json")
    said = run_here("calibrate", "--next", 1, *ASKED, "--json")
    assert json.loads(pasted.stdout)["runs"] == json.loads(said.stdout)["runs"]


def test_a_decision_by_its_command():
    done = run_here("calibrate", "--for", "plan llama-3.1-8b -c 8xh100-sxm --tpot 10ms --no-disaggregated", "--json")
    told = json.loads(done.stdout)
    assert told["schema"] == "commtax.calibrate-for/1"
    assert told["settled"] == (not told["runs"])
    assert 0 <= told["probability_right"] <= 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--next", "2", "-c", "8xh100-sxm"), "model"),
        (("--next", "2", "-m", "llama-3.1-8b"), "cluster"),
        (("--next", "0", *ASKED), "at least 1"),
        (("--next", "99", *ASKED), "nearest valid: 20"),
        (("--next", "1", *ASKED, "--out", "other.json"), "belongs to a profile that is written"),
        (("--for", "bill llama-3.1-8b -c 8xh100-sxm"), "a plan command is needed"),
        (("--for", "plan llama-3.1-8b -c 8xh100-sxm --tpot 10us"), "no plan keeps the limits"),
        (("--for", "plan llama-3.1-8b -c 8xh100-sxm", "-tp", "2"), "is said by the plan command"),
        (("--check", "-c", "8xh100-sxm"), "at least one file"),
        ((), "at least one file"),
    ],
)
def test_what_cannot_be_advised_is_refused_in_one_line(words, says):
    done = run_here("calibrate", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def written(folder, name, runs):
    files = [folder / f"{name}-{i}.json" for i in range(len(runs))]
    for file, run in zip(files, runs, strict=True):
        file.write_text(result(run))
    return files


def test_checks_end_with_the_codes_of_ci(tmp_path):
    """0 the same, 1 drifted, 3 cannot be told."""
    own, place = tmp_path / "box.toml", ("-c", "8xh100-sxm")
    assert run_here("calibrate", *written(tmp_path, "then", measured(scatter=0.01)), *place, "--out", own).returncode == 0
    kernels = dict.fromkeys(("pace_products", "pace_decoding", "pace_prompting", "pace_small"), 1.3)
    other = measured(LOADS[:2], model="llama-3.1-8b", tp=1)
    for name, runs, code in (("same", measured(scatter=0.01, seed=3), 0), ("slow", measured(**kernels), 1), ("other", other, 3)):
        done = run_here("calibrate", "--check", *written(tmp_path, name, runs), "--profile", own, *place)
        assert done.returncode == code, done.stdout
        assert ("clock: kernels take" in done.stdout) == (code == 1)
