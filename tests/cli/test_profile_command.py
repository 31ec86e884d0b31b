"""``commtax profile`` and what ``calibrate`` advises: several profiles on a command line, ``--next``, ``--for``, ``--check``."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cli_run import refusal, run_here
from commtax import catalog
from commtax.catalog import profile
from commtax.catalog.profile_files import write_profile
from commtax.spec import Deployment, Path, Profile, RunLesson
from each import each
from made_nccl import TRUE, noisy, output, written
from measured import LOADS, measured
from tables import tables

DATA = tables(__file__)
SERVED = Deployment("vllm", "0.12", "h100-sxm", "LlamaForCausalLM", "llama-3.1-8b", "bf16", tp=2)


def lessons(deployment, factor=1.1):
    return tuple(
        RunLesson(
            deployment, metric, clients, 1024.0, 128.0, seconds * factor, seconds, 0.1, {"host_s": 0.2}, label=f"c{clients:g}.json"
        )
        for clients, tpot in ((1.0, 0.006), (64.0, 0.012))
        for metric, seconds in (("tpot", tpot), ("ttft", 9 * tpot))
    )


BOX = Profile(
    "box", chip={"key": "h100-sxm", "memory_Bps": 3.1e12},
    libraries={"nccl": (Path("all-reduce", "ring", 3e11, 1e-5, ranks=(2, 8)),)}, network={"hops": 4.0},
    host={"host_s": 1.0e-3, "request_s": 1e-2}, links={"intra": "nvlink4", "inter": "ib-ndr"}, engine="vllm",
    sources={"nccl": "48 rows of a.txt"}, lessons=(*lessons(SERVED), *lessons(replace(SERVED, tp=4))), written="2026-11-17",
)  # fmt: skip
AGAIN = lessons(replace(SERVED, version="0.13"), 1.32)
LATER = replace(BOX, name="later", host={"host_s": 1.5e-3}, lessons=AGAIN, written="2026-12-01")


@pytest.fixture
def files(tmp_path):
    for own in (BOX, LATER, Profile("empty")):
        write_profile(tmp_path / f"{own.name}.toml", own)
    return tmp_path


def told(*words):
    done = run_here("profile", *words, "--json")
    return done.returncode, json.loads(done.stdout)


def test_show_says_when_where_and_how_far_off(files):
    text = run_here("profile", "show", files / "box.toml", "--details").stdout
    for words in (
        "profile box, written 2026-11-17",
        "llama-3.1-8b in bf16 on h100-sxm, TP 4: vllm 0.12",
        "48 rows of a.txt",
        "ib-ndr",
    ):
        assert words in text
    row = next(line.split() for line in text.splitlines() if line.startswith("c64.json"))
    assert row == ["c64.json", "64", "1,024", "128", "13.2", "ms", "12", "ms", "+10.0%", "118.8", "ms", "108", "ms", "+10.0%"]
    code, document = told("show", files / "box.toml")
    assert (code, document["written"], len(document["runs"])) == (0, "2026-11-17", 4)
    assert document["runs"][1]["tpot"]["off"] == pytest.approx(0.1)
    assert profile.parse(document["profile"]) == profile.load(files / "box.toml"), "the whole profile is in it"


def test_a_profile_and_itself_pair_runs_whatever_the_version(files):
    code, document = told("diff", files / "box.toml", files / "box.toml")
    assert (code, document["told"], document["constants"]) == (0, [], [])
    assert {x["change"] for x in document["latencies"]} == {0}
    code, document = told("diff", files / "box.toml", files / "later.toml")
    changes = {x["name"]: (x["before"], x["after"], x["change"]) for x in document["constants"]}
    assert (changes, code) == ({"host_s": (0.001, 0.0015, pytest.approx(0.5)), "request_s": (0.01, None, None)}, 0)
    both = [x["change"] for x in document["latencies"] if x["change"] is not None]
    assert both == [pytest.approx(0.2, rel=1e-4)] * 4
    assert [x["deployment"]["tp"] for x in document["latencies"] if x["after_s"] is None] == [4] * 4
    text = run_here("profile", "diff", files / "box.toml", files / "later.toml").stdout
    assert "1 constant changed, 1 constant in the first only, 4 latencies measured in both, 4 latencies in the first only" in text
    assert "vllm 0.12   vllm 0.13" in text
    assert "+20.0%" in text
    backwards = told("diff", files / "later.toml", files / "box.toml")[1]
    assert sum(x["before_s"] is None for x in backwards["latencies"]) == 4


def test_check_says_what_was_not_seen_by_runs_that_are_alike(files):
    done = run_here("profile", "check", files / "box.toml", "-c", "8xh100-sxm", "-m", "llama-3.1-8b", "-tp", 8, "-e", "vllm@0.13")
    assert done.returncode == 0
    for words in (
        "can be read, and nothing in it beats the hardware",
        "not seen: version 0.13 (seen 0.12)",
        "not seen: tp 8 (seen 2 and 4)",
    ):
        assert words in done.stdout
    assert "seen: chip h100-sxm, link inside nvlink4, engine vllm, model llama-3.1-8b" in done.stdout
    # TP 8 of another model is not TP 8 of this one.
    other = lessons(replace(SERVED, model="llama-3.1-70b", tp=8))
    write_profile(files / "both.toml", replace(BOX, lessons=(*lessons(SERVED), *other)))
    _, document = told("check", files / "both.toml", "-m", "llama-3.1-8b", "-tp", 8)
    assert document["topics"][-1] == {"name": "tp", "asked": "8", "seen": ["2"], "told": False}


@each(
    ("name", "words", "code", "used"),
    [
        ("box", (), 0, {"chip", "collectives", "network", "host times", "runs"}),
        ("box", ("-c", "2x8xh100-sxm"), 0, {"chip", "collectives", "network", "host times", "runs"}),
        ("box", ("-c", "2x8xh100-sxm", "--inter", "10gbe", "-e", "sglang"), 0, {"chip", "collectives"}),
        ("box", ("-c", "8xh200-sxm"), 1, set()),
        ("runs", ("-c", "8xh200-sxm"), 0, {"runs"}),
        ("runs", ("-e", "sglang"), 1, set()),
        ("empty", (), 1, set()),
    ],
)
def test_check_says_which_parts_are_used(name, words, code, used, files):
    write_profile(files / "runs.toml", Profile("runs", lessons=BOX.lessons))
    found, document = told("check", files / f"{name}.toml", *words)
    assert (found, set(document["used"]), document["tells"]) == (code, used, code == 0)


def test_check_and_the_bill_agree_by_the_cluster_s_physics(files, tmp_path):
    asked = ("-c", "8xh200-sxm")
    assert run_here("bill", "llama-3.1-8b", *asked, "--profile", files / "box.toml").returncode == 2
    assert told("check", files / "box.toml", *asked)[0] == 1
    write_profile(tmp_path / "fast.toml", Profile("fast", chip={"memory_Bps": 4e12}))
    assert run_here("profile", "check", tmp_path / "fast.toml").returncode == 0
    assert "more than h100-sxm can do" in refusal(run_here("profile", "check", tmp_path / "fast.toml", "-c", "8xh100-sxm"))


@each(("text", "says"), DATA["what_cannot_be_read_is_one_line_and_exit_2"])
def test_what_cannot_be_read_is_one_line_and_exit_2(text, says, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text(text)
    for words in (
        ("profile", "show", bad),
        ("profile", "check", bad),
        ("profile", "diff", bad, bad),
        ("bill", "gpt2", "--profile", bad),
    ):
        assert says in refusal(run_here(*words))


@each("words", DATA["every_verb_takes_several"])
def test_every_verb_takes_several(words, tmp_path):
    """A fabric's and a host's; the chip is the profile's where no cluster is named."""
    chip = {"key": "h100-sxm", "memory_bytes": catalog.chip("h100-sxm").memory_bytes}
    for own in (replace(BOX, host={}, chip=chip, lessons=()), replace(BOX, name="host", libraries={}, links={}, network={})):
        write_profile(tmp_path / f"{own.name}.toml", own)
    done = run_here(*words, "--profile", tmp_path / "box.toml", "--profile", tmp_path / "host.toml", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert words[0] == "compare" or '"box + host"' in done.stdout


def test_calibrate_writes_toml_or_json_by_its_name(tmp_path):
    file = written(tmp_path, "nccl.txt", output("all_reduce", 2, noisy(TRUE, 2, np.random.default_rng(3))))
    read = []
    for name in ("own.toml", "own.json"):
        done = run_here("calibrate", file, "-c", "2xh100-sxm", "--name", "own", "-o", tmp_path / name)
        assert done.returncode == 0, done.stderr
        read.append(profile.load(tmp_path / name))
    assert read[0] == read[1]
    assert "\n[[libraries]]\n" in (tmp_path / "own.toml").read_text()
    assert json.loads((tmp_path / "own.json").read_text())["commtax_profile"] == 2
    assert read[0].written


ASKED = ("-m", "llama-3.1-70b", "-c", "8xh100-sxm", "-tp", "4")


def result(run):
    """A run as vllm bench writes it."""
    options, n = run.options, 10 * run.options["concurrency"]
    totals = {"total_input_tokens": n * options["input_len"], "total_output_tokens": n * options["output_len"], "completed": n}
    times = {f"mean_{m}_ms": 1e3 * s for m, s in run.measured.items()}
    head = {
        "model_id": run.model, "max_concurrency": options["concurrency"], "tp": options["tp"], "failed": 0, "request_rate": "inf",
    }  # fmt: skip
    return json.dumps({**head, **totals, **times, "duration": 60})


def test_calibrate_advises_before_and_after_files(tmp_path):
    done = run_here("calibrate", "--next", 2, *ASKED, "--concurrency", 64, "--input-len", 8192, "--output-len", 1024)
    assert done.returncode == 0
    assert "nothing measured yet" in done.stdout
    assert "1. concurrency 64 at 8k/1k: TPOT range ±" in done.stdout
    assert "vllm bench serve" in done.stdout
    told = json.loads(run_here("calibrate", "--next", 1, *ASKED, "--concurrency", 8, "--json").stdout)
    assert (told["schema"], {load["concurrency"] for load in told["loads"]}) == ("commtax.calibrate-next/1", {8})
    (run,) = told["runs"]
    assert run["after"]["tpot"] < run["before"]["tpot"]
    assert run["command"].startswith("vllm bench serve")
    files = []
    for i, run in enumerate(measured(LOADS[:3])):
        files.append(tmp_path / f"{i}.json")
        files[-1].write_text(result(run))
    asked = ("--next", 1, *ASKED, "--json")
    before, after = (json.loads(run_here("calibrate", *some, *asked).stdout) for some in ((), files))
    assert (before["known_times"], after["known_times"]) == (0, 6)
    assert after["runs"][0]["before"]["tpot"] < before["runs"][0]["before"]["tpot"]


def test_a_pasted_command_and_a_decision_by_its_command():
    command = "vllm serve meta-llama/Llama-3.1-70B -tp 4"
    pasted = run_here("calibrate", "--next", 1, "-c", "8xh100-sxm", "--from", command, "--json")
    said = run_here("calibrate", "--next", 1, *ASKED, "--json")
    assert json.loads(pasted.stdout)["runs"] == json.loads(said.stdout)["runs"]
    done = run_here("calibrate", "--for", "plan llama-3.1-8b -c 8xh100-sxm --tpot 10ms --no-disaggregated", "--json")
    told = json.loads(done.stdout)
    assert (told["schema"], told["settled"]) == ("commtax.calibrate-for/1", not told["runs"])
    assert 0 <= told["probability_right"] <= 1


@pytest.mark.parametrize(("words", "says"), DATA["what_cannot_be_advised_is_refused_in_one_line"])
def test_what_cannot_be_advised_is_refused_in_one_line(words, says):
    assert says in refusal(run_here("calibrate", *words))


def written_file(folder, name, runs):
    files = [folder / f"{name}-{i}.json" for i in range(len(runs))]
    for file, run in zip(files, runs, strict=True):
        file.write_text(result(run))
    return files


def test_checks_end_with_the_codes_of_ci(tmp_path):
    """0 the same, 1 drifted, 3 cannot be told."""
    own, place = tmp_path / "box.toml", ("-c", "8xh100-sxm")
    assert run_here("calibrate", *written_file(tmp_path, "then", measured(scatter=0.01)), *place, "--out", own).returncode == 0
    kernels = dict.fromkeys(("pace_products", "pace_decoding", "pace_prompting", "pace_small"), 1.3)
    other = measured(LOADS[:2], model="llama-3.1-8b", tp=1)
    for name, runs, code in (("same", measured(scatter=0.01, seed=3), 0), ("slow", measured(**kernels), 1), ("other", other, 3)):
        done = run_here("calibrate", "--check", *written_file(tmp_path, name, runs), "--profile", own, *place)
        assert done.returncode == code, done.stdout
        assert ("clock: kernels take" in done.stdout) == (code == 1)
