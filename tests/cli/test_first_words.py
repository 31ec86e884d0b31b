"""What people type first: other names, newcomers' mistakes, the Tab key, and questions at the edge that are answered soon."""

import itertools
import json
import os
import shlex
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import refusal, run_here
from commtax import catalog
from commtax.catalog.loader import find, stems
from commtax.catalog.techniques import technique, techniques
from commtax.cli.completing import FILES, answer, offered
from commtax.cli.help import helps
from commtax.cli.options import KINDS
from commtax.cost.schedules import SCHEDULES, fewest_microbatches
from commtax.options import options, taken_by
from commtax.planner.columns import ServingColumns
from commtax.planner.ranking import family
from commtax.shipped_tables import table
from commtax.statement import Refusal
from commtax.verbs import fit_advice, fitting, kv_caches
from commtax.verbs.comparing import parse_plan
from commtax.verbs.expecting import OPS
from commtax.verbs.settling import resolve_question, settle
from each import each
from paths import ROOT
from tables import tables


def answered(*words):
    done = run_here(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@given(st.floats(0.01, 1e4), st.sampled_from(["", "rps", " rps", "/s", " req/s", " requests per second", " QPS"]))
def test_a_rate_may_carry_its_unit(rate, unit):
    assert KINDS["rate"].convert(f"{rate!r}{unit}", None, None) == rate


@given(st.floats(0.01, 100), st.sampled_from(["{}", "${}", "{}$", "${}/h", "{} USD", "$ {} per hour"]))
def test_a_price_may_carry_its_unit(price, form):
    assert KINDS["prices"].convert(form.format(price), None, None) == price


@each("value", ["20 apples", "rps", "", "20/min"])
def test_other_units_are_refused(value):
    with pytest.raises(ValueError, match="number"):
        KINDS["rate"].convert(value, None, None)


@given(st.integers(1, 64), st.integers(1, 64))
def test_servers_may_be_counted_before_their_plan(count, tp):
    assert parse_plan(f"{count} x TP {tp}") == parse_plan(f"tp{tp}r{count}")


def test_models_and_options_by_their_names():
    assert all(find("models", stem) == stem for stem in stems("models"))
    assert find("models", "qwen3-30b") == "qwen3-30b-a3b"
    assert not find("models", "llama"), "a family is no model"
    asked = ("bill", "llama-3.2-1b", "--cluster", "2xh100-sxm", "-tp", "2")
    assert answered("bill", "--model", "llama-3.2-1b", "--gpus", "2xh100", "-tp", "2") == answered(*asked)
    fitted = answered("fit", "llama-3.2-1b", "-c", "1xh100", "--max-model-len", "8k")
    assert answered("fit", "llama-3.2-1b", "--gpu", "1xh100", "--context", "8k") == fitted
    assert "named already" in refusal(run_here("bill", "llama-3.2-1b", "--model", "llama-3.1-8b", "-c", "1xh100"))


@each("share", [0.0, 0.5, 0.9])
def test_a_plan_with_prefixes_in_the_cache_is_what_simulate_says(share):
    words = ("llama-3.2-1b", "-c", "1xh100", "--input-len", "2048", "--prefix-cache", str(share))
    row = answered("plan", *words, "--tpot", "10ms", "--no-disaggregated")["recommended"]
    (run,) = answered("simulate", *words, "--concurrency", str(row["concurrency"]))["runs"]
    assert (run["ttft_s"], run["tpot_s"]) == pytest.approx((row["ttft_s"], row["tpot_s"]), rel=1e-6)


def test_cached_prefixes_formats_and_engines_are_axes():
    words = ("plan", "llama-3.1-8b", "-c", "2xh100", "--input-len", "8192", "--tpot", "15ms", "--ttft", "1s")
    rate = {
        share: max(p["tokens_per_s"] for p in answered(*words, "--prefix-cache", share)["plans"] if p["mode"] == "disaggregated")
        for share in ("0", "0.8")
    }
    assert rate["0.8"] > 1.2 * rate["0"]
    rows = answered("compare", "llama-3.2-1b", "-c", "1xh100", "--over", "dtype=auto,fp8", "--over", "kv-dtype=auto,fp8")["rows"]
    plain = answered("bill", "llama-3.2-1b", "-c", "1xh100", "--dtype", "fp8", "--kv-dtype", "fp8")
    assert rows[-1]["step_s"] == pytest.approx(plain["step_s"])
    assert rows[0]["step_s"] == pytest.approx(answered("bill", "llama-3.2-1b", "-c", "1xh100")["step_s"])
    words = ("plan", "llama-3.2-1b", "--phase", "train", "-c", "2xh100", "--global-batch", "16", "--seq", "2048", "--engine")
    both = answered(*words, "fsdp,megatron")
    assert both["answers"] == [answered(*words, one) for one in ("fsdp", "megatron")]
    assert answered(*words, "fsdp", "--engine", "megatron") == both, "given twice it names both, as --cluster does"
    assert "name one here" in refusal(run_here("plan", "llama-3.2-1b", "-c", "1xh100", "--engine", "vllm,sglang"))


def test_manifests_name_their_cluster_and_nccl_tests_how_far_they_are():
    file = str(ROOT / "examples" / "deployments" / "kubernetes.yaml")
    assert answered("fit", "--from", file)["cluster"] == "8xh100-sxm"
    assert answered("fit", "--from", file, "-c", "8xh200")["cluster"] == "8xh200-sxm"
    done = run_here("audit", str(ROOT / "examples" / "all-reduce-8xh100.txt"))
    assert (done.returncode, "1.90 x" in done.stdout.splitlines()[0]) == (1, True), "eight of these are joined by NVSwitch"


DATA = tables(__file__)
SAID = DATA["said"]


@pytest.mark.parametrize("line", SAID)
def test_the_answer_says_what_to_type(line):
    assert SAID[line] in refusal(run_here(*shlex.split(line)))


@pytest.mark.parametrize(
    "line", ["fit llama-3.1-8b -c 8xh100 --tp=8", "fit llama-3.1-8b -c H100", "fit llama-3.1-8b --gpu h200", "catalog l40s"]
)
def test_what_newcomers_write_right(line):
    assert run_here(*shlex.split(line)).returncode == 0


@pytest.mark.parametrize(("flag", "says"), DATA["what_does_not_exist_names_what_does"])
def test_what_does_not_exist_names_what_does(flag, says):
    done = run_here("simulate", "llama-3.1-8b", "-c", "1xh100", flag)
    assert done.returncode == 2
    assert says in done.stderr
    assert "--inter" not in done.stderr


@given(st.sampled_from(sorted(name for name, one in options().items() if any("(" not in verb for verb in one.verbs))))
def test_an_option_asked_for_as_a_technique_is_named(name):
    if name.replace("_", "-") not in {also for one in techniques().values() for also in (one.key, *one.also)}:
        with pytest.raises(Refusal, match=f"no technique, but an option of .*: {options()[name].spellings[0]}$"):
            technique(name)


GENEROUS_S = 6.0  # each takes less than a second; before, they took 9 to 44


@pytest.mark.parametrize(("command", "code"), DATA["a_refusal_takes_no_longer_than_an_answer"])
def test_a_refusal_takes_no_longer_than_an_answer(command, code):
    began_s = time.process_time()
    done = run_here(*command.split())
    assert done.returncode == code, done.stderr
    assert time.process_time() - began_s < GENEROUS_S


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.sampled_from([1, 256, 4096, 65_536]),
        "gpu_memory_utilization": st.sampled_from([0.01, 0.3, 0.6, 0.95]),
        "kv_cache_memory_bytes": st.sampled_from([1.0, 1e7, 1e9, 4e9, 4e10]),
        "max_model_len": st.sampled_from([1, 4096, 100_000, 10_000_000]),
    },
)
PLACES = st.sampled_from(["4x8xa100-40-sxm", "2x8xl4", "8x8xh100-sxm"])


@settings(max_examples=40)
@given(st.sampled_from(["llama-3.1-70b", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3", "opt-1.3b"]), PLACES, LIMITS)
def test_what_is_ruled_out_at_a_look_does_not_fit(model, place, limits):
    """Every plan that the screen leaves out, judged: none fits."""
    put = resolve_question(model, place, limits)
    asked = settle(put)
    asked = asked.but(limits=kv_caches.limits_of(asked))
    may = fitting.screen(asked, auto_ep=False)
    out = [c for c in fitting.candidates(put) if not may(int(c.plan.tp), int(c.plan.pp))]
    for candidate in out[:: max(1, len(out) // 12)]:
        assert not fitting.judge(candidate.but(limits=asked.limits)).fits


def test_advice_is_looked_for_only_where_it_is_read(monkeypatch):
    """A plan's refusal reads how much is missing; what would fit is told once, for the whole search."""
    asked = []
    monkeypatch.setattr(fit_advice, "_advice", lambda failed: asked.append(failed) or [])
    assert run_here("plan", "opt-1.3b", "-c", "p5", "--gpu-memory-utilization", "0.01").returncode == 1
    assert not asked


@each("kind", SCHEDULES.values(), ids=lambda k: k.name)
def test_the_fewest_microbatches_are_those_that_counting_finds(kind):
    for p, v, budget in itertools.product((1, 2, 4, 7, 16), (1, 3), (0.0123, 0.2, 0.5, 1.0)):
        if not any(kind.legal(p, m, v) for m in range(1, 4 * p + 1)):
            continue
        times = (1.0, 1.0, 1.0)
        within = (m for m in itertools.count(1) if kind.idle(p, *times) <= budget * kind.total(p, m, v, *times) * (1 + 1e-12))
        assert fewest_microbatches(kind, p, v, times, budget) == next(m for m in within if kind.legal(p, m, v))


def test_impossible_budgets_are_refused_and_tables_name_what_is_there():
    assert "nearest legal stages: 14" in refusal(run_here("pipeline", "-p", 13, "--schedule", "dualpipe", "--budget", 0.1))
    known = {name for verb in helps()["command"] for name in taken_by(verb.replace(" ", "-"))} | options().keys()
    assert set(TABLE["options"]) <= known
    assert set(TABLE["arguments"]) <= helps()["command"].keys()
    assert "one of bash, zsh, fish" in refusal(run_here("completion", "tcsh"))


@pytest.mark.parametrize(("command", "says"), DATA["what_would_take_minutes_is_refused_with_what_would_not"])
def test_what_would_take_minutes_is_refused_with_what_would_not(command, says):
    assert says in refusal(run_here(*command.split()))


def test_families_are_told_apart_and_every_chip_has_a_first_answer():
    """Digits in a mixed base, also where they do not fit into one number."""
    import numpy as np

    rows = np.random.default_rng(0).integers(0, 1_000_000, (200, 9))
    rows = np.concatenate([rows, rows[:50]])
    names = ("mode", "dtype", "tp", "pp", "dp", "ep", "replicas", "prefill_tp", "prefill_replicas")
    plain = dict.fromkeys(ServingColumns.names(), np.zeros(len(rows)))
    found = family(ServingColumns(**{**plain, **dict(zip(names, rows.T, strict=True))}))
    order = {row: i for i, row in enumerate(sorted(set(map(tuple, rows.tolist()))))}
    assert found.tolist() == [order[tuple(row)] for row in rows.tolist()]
    # The screen looks at one tp with any chip and any engine that serves.
    for engine in (key for key in catalog.keys("engines") if "decode" in catalog.engine(key).phases):
        assert fit_advice.fit("llama-3.2-1b", "8xh100-sxm", engine=engine, max_model_len=128).fits


TABLE = table("cli/completion.toml")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A folder for PATH with the command in it, as an installation has it."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "commtax"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m commtax "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}


def test_shells_complete_in_their_own_way_without_heavy_imports(program):
    """Several lines in one bash: starting it, and commtax, takes longer than the answers."""
    lines = [["commtax", "pl"], ["commtax", "fit", "x", "-c", "8xh200-s"], ["commtax", "fit", "--engine", "=", "sg"]]
    shell = ['eval "$(commtax completion bash)"', "compopt() { :; }"]  # which bash has while the key is pressed alone
    for words in lines:
        quoted = " ".join(f"'{word}'" for word in words)
        shell += [f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _commtax", 'echo "${COMPREPLY[*]}"']
    shell += ["complete -p commtax"]
    done = subprocess.run(["bash", "-c", "\n".join(shell)], env=program, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["plan", "8xh200-sxm", "sglang", "complete -F _commtax commtax"]
    assert answer("zsh", ["fit", "--engin"]).startswith("--engine:")
    assert answer("fish", ["fit", "--engin"]).startswith("--engine\t")
    assert answer("zsh", ["fit", "--engine=sgl"]) == answer("fish", ["fit", "--engine=sgl"]) == "--engine=sglang\n"
    assert answer("bash", ["fit", "--engine=sgl"]) == "sglang\n"
    assert answer("zsh", ["audit", ""]) == answer("bash", ["audit", ""]) == f"{FILES}\n"
    code = "import sys; from commtax.cli import completing; completing.offered(['fit', 'llama']); print(*sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "click", "rich", "commtax.catalog", "commtax.cli.app"} & set(seen)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([""], {name for name in helps()["command"] if " " not in name}),
        (["profile", ""], {"show", "diff", "check"}),
        (["fit", ""], set(catalog.keys("models"))),
        (["fit", "x", "--cluster", ""], {*catalog.keys("clusters"), *catalog.keys("chips"), "8xh100-sxm"}),
        (["fit", "x", "-c", "2x8x"], {f"2x8x{chip}" for chip in catalog.keys("chips")}),
        (["fit", "x", "--intra", ""], set(catalog.keys("links"))),
        (["fit", "x", "-e", ""], set(catalog.keys("engines"))),
        (["bill", "x", "--technique", "dbo,"], {f"dbo,{name}" for name in techniques()}),
        (["expect", ""], set(OPS) - {"fused-all-reduce"}),
        (["catalog", "engines", ""], set(catalog.keys("engines"))),
        (["fit", "meta-llama/Llama-3.1-8B"], {"meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"}),
        (["bill", "x", "--router"], set()),
    ],
)
def test_what_is_offered(words, wanted):
    assert wanted <= offered(words).keys() or words[0] == "expect"


@pytest.mark.parametrize("name", ["phase", "kv_dtype", "dtype", "sampling", "ep_backend", "recompute", "schedule"])
def test_offered_words_are_taken(name):
    """Each is either taken or refused for what it does here, never as a word that is not known."""
    for word in TABLE["options"][name]:
        flag = f"--{name.replace('_', '-')}"
        extra = ["--phase", "train"] if name in ("recompute", "schedule") else []
        done = run_here("bill", "qwen3-30b-a3b", "--cluster", "8xh100-sxm", "-tp", "2", *extra, flag, word)
        assert f"{name} '{word}': one of" not in done.stderr, done.stderr


@given(st.lists(st.text(max_size=8), max_size=6))
def test_whatever_is_typed_there_is_an_answer(words):
    for shell in ("bash", "zsh", "fish"):
        answer(shell, words or [""])
    for verb in ("plan", "measure", "catalog"):
        offered([verb, *(words or [""])])
