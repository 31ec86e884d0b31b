"""The command: answers, JSON, spellings, and one clear line for every mistake; some of each as a whole process."""

import json
import os
import re
import subprocess
import sys

import pytest

from cli_run import refusal, run_here, told_here
from commtax import catalog
from commtax.spelling import normalise
from tables import tables

DATA = tables(__file__)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "170")


def run(*words):
    """As a process of its own; ``run_here`` gives the same in a hundredth of the time."""
    return subprocess.run([sys.executable, "-m", "commtax", *words], capture_output=True, text=True, check=False)


def document(*words, code=0, ran=run_here):
    done = ran(*words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_fit_in_json_in_words_and_by_its_code():
    found = document("fit", "llama-3.1-70b", "--cluster", "8xh100-sxm")
    keys = {
        "schema", "fits", "tp", "pp", "weights_bytes_per_rank", "kv_bytes_per_token_per_rank", "kv_tokens", "kv_blocks_per_rank",
        "block_size", "max_concurrency", "shortfall_bytes",
    }  # fmt: skip
    assert keys <= found.keys()
    assert (found["fits"], found["tp"], found["pp"], found["shortfall_bytes"]) == (True, 4, 1, 0)
    assert found["kv_bytes_per_token_per_rank"] == 2 * 80 * 2 * 128 * 2
    assert found["kv_tokens"] == found["kv_blocks_per_rank"] * found["block_size"]
    assert sum(w["bytes"] for w in found["weights"]) == pytest.approx(found["weights_bytes_per_rank"])
    found = document("fit", "llama-3.1-405b", "--cluster", "8xh100-sxm", code=1, ran=run)
    assert not found["fits"]
    assert found["shortfall_bytes"] > 0
    assert found["advice"]
    assert "does not fit" in run_here("fit", "llama-3.1-405b", "--cluster", "8xh100-sxm").stdout
    text = run_here("fit", "llama-3.1-8b", "--cluster", "h100-sxm", "--max-model-len", "8K").stdout
    for words in ("Model loading took 14.9888 GiB", "Available KV cache memory:", "GPU KV cache size:", " blocks of 16 tokens; "):
        assert words in text
    assert "Maximum concurrency for 8,192 tokens per request" in text


def test_bill_json_exact_and_of_training():
    found = document("bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "-tp", "8", ran=run)
    keys = {
        "schema", "model", "cluster", "plan", "phase", "batch", "context", "engine", "step_s", "compute_s", "comm_s",
        "exposed_comm_s", "comm_fraction", "tokens_per_s", "fits", "idle_gpus", "items", "verdict", "counterfactuals", "sources",
    }  # fmt: skip
    assert keys <= found.keys()
    assert (found["phase"], found["batch"], found["context"], found["engine"].split("@")[0]) == ("decode", 1, 1024, "vllm")
    item = {"kind", "axis", "op", "nbytes", "ranks", "count", "link", "algorithm", "each_s", "total_s", "hidden_s", "exposed_s"}
    assert all(item <= i.keys() for i in found["items"])
    assert sum(i["exposed_s"] for i in found["items"]) == pytest.approx(found["step_s"])
    what = [c["what"] for c in found["counterfactuals"]]
    assert {"collective latency / 2", "collective bandwidth x 2", "prefill instead"} <= set(what)
    exact = document("bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "-tp", "8", "--exact")
    sent = [(i["what"], i["nbytes"], i["count"]) for i in found["items"] if i["kind"] == "comm"]
    assert sorted(sent) == sorted((i["what"], i["nbytes"], i["count"]) for i in exact["items"]), "the bill prices what is sent"
    assert exact["schema"] == "commtax.bill-exact/1"
    items = {(i["what"], i["op"]): i for i in exact["items"]}
    assert {"axis", "op", "nbytes", "ranks", "count"} <= items["attention output", "all-reduce"].keys()
    assert (items["attention output", "all-reduce"]["nbytes"], sum(i["count"] for i in exact["items"])) == (8192, 66)
    found = document(
        "bill", "llama-3.1-70b", "--cluster", "8x8xh100-sxm", "--phase", "train", "-tp", "8", "-pp", "4", "-dp", "2",
        "--global-batch", "32", "--seq", "4096", "--zero", "1", "--sequence-parallel",
    )  # fmt: skip
    assert (found["plan"]["microbatches"], {"tp", "pp", "dp"}) == (16, {i["axis"] for i in found["items"]} - {""})


def test_bill_tells_its_defaults_and_draws_layers():
    words = ("bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "-tp", "8")
    text = run_here(*words).stdout
    for told in ("decode: batch 1 per replica, 1,024 cached tokens per request", "vllm@", "to scale", "what if", "fewer ranks"):
        assert told in text
    assert "custom one-shot over nvlink4" in text
    *same, held = text.splitlines()
    whole = run_here(*words, "--details").stdout.splitlines()
    assert (held, whole[: len(same)]) == (f"· {len(whole) - len(same)} more notes with --details", same)
    assert any("least certain" in line for line in whole[len(same) :])
    # A drawn layer is as long as a layer of the step, also where halves of a batch hide each other's exchanges.
    load = ("deepseek-v3", "-c", "2x8xh200-sxm", "-dp", "16", "-ep", "--phase", "prefill", "--technique", "deepep-ll,dbo")
    done = told_here("bill", *load)
    drawn = re.search(r"one layer, ([\d.]+) ms \(drawn one after the other: ([\d.]+) ms\)", done.stdout)
    left, whole = (float(ms) / 1e3 for ms in drawn.groups())
    assert 0.9 < 61 * left / json.loads(done.document)["step_s"] < 1 < whole / left


def test_catalog_json():
    found = document("catalog", "models", "mixtral-8x7b")
    assert (found["params"], found["active_params"]) == (46_702_792_704, 12_879_925_248)
    assert document("catalog", "chips", "h100")["memory_Bps"] == 3.35e12
    assert "h100-sxm" in document("catalog", "chips")["chips"]
    assert len(document("catalog")["models"]) >= 30
    assert document("catalog", "clusters", "2x8xh100-sxm")["nics_per_host"] == 8
    assert document("catalog", "engines", "vllm")["order"] == ["tp", "cp", "pp", "dp"]


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        (("catalog",), run),
        (("catalog", "chips", "gb200"), run_here),
        (("catalog", "models", "glm-5"), run_here),
        (("claims",), run_here),
        (("--help",), run),
    ],
)
def test_readable_output(words, ran):
    done = ran(*words)
    assert done.returncode == 0
    assert len(done.stdout) > 200
    assert not done.stderr


def test_spellings_of_the_engines():
    ours = document("bill", "mixtral-8x7b", "-c", "8xh100-sxm", "-tp", "4", "-dp", "2", "-ep")
    for words in (
        ("--tensor-parallel-size", "4", "--data-parallel-size", "2", "--enable-expert-parallel"),
        ("--tensor_parallel_size=4", "--data_parallel_size=2", "--enable_expert_parallel"),
        ("--tp", "4", "--dp", "2", "--ep", "8"),
        ("--ep-size", "8", "--tp-size", "4", "--dp-size", "2"),
    ):
        assert document("bill", "mixtral-8x7b", "-c", "8xh100-sxm", *words) == ours
    assert ours["plan"]["ep"] == 8


@pytest.mark.parametrize(("typed", "read"), DATA["normalise"])
def test_normalise(typed, read):
    assert normalise(list(typed)) == list(read)


GOOD = ("--cluster", "8xh100-sxm")
MISTAKES = DATA["mistakes"] | {"endless number": (f"fit llama-3.1-8b --cluster {'9' * 5000}xh100-sxm", "cluster")}


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_mistakes_get_one_clear_line(name):
    words, says = MISTAKES[name]
    done = (run if name in sorted(MISTAKES)[::6] else run_here)(*words.split())  # some as whole processes
    assert (done.returncode, done.stdout, done.stderr[:7], done.stderr.count("\n")) == (2, "", "error: ", 1)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_config_gets_one_clear_line(tmp_path):
    file = tmp_path / "config.json"
    for text, says in (
        ('{"architectures": ["Llama', "not valid JSON"),
        ('{"architectures": ["RwkvForCausalLM"]}', "RwkvForCausalLM is not supported"),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}', "lacks"),
        ("[]", "not a JSON object"),
    ):
        file.write_text(text)
        assert says in refusal(run_here("fit", str(tmp_path), *GOOD))


def test_answers_reach_readers_that_leave_and_plain_terminals():
    shell = f"{sys.executable} -m commtax catalog | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("0", "141")
    assert not done.stderr
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "0"}
    words = [sys.executable, "-m", "commtax", "fit", "llama-3.1-8b", "--cluster", "h100-sxm"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    assert "GPU KV cache size" in done.stdout
    assert "Will it fit?" in run().stdout


@pytest.mark.parametrize("engine", catalog.keys("engines"))
def test_every_engine_is_shown(engine):
    """An engine without a limit has infinity in its record, which no document can hold."""
    assert json.loads(run_here("catalog", "engines", engine, "--json").stdout)["key"] == engine
    assert engine in run_here("catalog", "engines", engine).stdout
