"""What people type first: other names of options, units behind numbers, models and plans as they are spoken of."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax.catalog.loader import find, stems
from commtax.cli.options import KINDS
from commtax.verbs.comparing import parse_plan
from each import each
from paths import ROOT


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


def test_a_model_is_found_by_its_own_name_and_by_no_other_s():
    assert all(find("models", stem) == stem for stem in stems("models"))
    assert find("models", "qwen3-30b") == "qwen3-30b-a3b"
    assert not find("models", "llama"), "a family is no model"


def test_other_names_of_options_ask_the_same():
    asked = ("bill", "llama-3.2-1b", "--cluster", "2xh100-sxm", "-tp", "2")
    assert answered("bill", "--model", "llama-3.2-1b", "--gpus", "2xh100", "-tp", "2") == answered(*asked)
    fitted = answered("fit", "llama-3.2-1b", "-c", "1xh100", "--max-model-len", "8k")
    assert answered("fit", "llama-3.2-1b", "--gpu", "1xh100", "--context", "8k") == fitted
    twice = run_here("bill", "llama-3.2-1b", "--model", "llama-3.1-8b", "-c", "1xh100")
    assert (twice.returncode, "named already" in twice.stderr) == (2, True)


@each("share", [0.0, 0.5, 0.9])
def test_a_plan_with_prefixes_in_the_cache_is_what_simulate_says(share):
    words = ("llama-3.2-1b", "-c", "1xh100", "--input-len", "2048", "--prefix-cache", str(share))
    row = answered("plan", *words, "--tpot", "10ms", "--no-disaggregated")["recommended"]
    (run,) = answered("simulate", *words, "--concurrency", str(row["concurrency"]))["runs"]
    assert (run["ttft_s"], run["tpot_s"]) == pytest.approx((row["ttft_s"], row["tpot_s"]), rel=1e-6)


def test_prefixes_in_the_cache_help_prompt_workers_too():
    words = ("plan", "llama-3.1-8b", "-c", "2xh100", "--input-len", "8192", "--tpot", "15ms", "--ttft", "1s")
    rate = {
        share: max(p["tokens_per_s"] for p in answered(*words, "--prefix-cache", share)["plans"] if p["mode"] == "disaggregated")
        for share in ("0", "0.8")
    }
    assert rate["0.8"] > 1.2 * rate["0"]


def test_formats_are_an_axis():
    rows = answered("compare", "llama-3.2-1b", "-c", "1xh100", "--over", "dtype=auto,fp8", "--over", "kv-dtype=auto,fp8")["rows"]
    plain = answered("bill", "llama-3.2-1b", "-c", "1xh100", "--dtype", "fp8", "--kv-dtype", "fp8")
    assert rows[-1]["step_s"] == pytest.approx(plain["step_s"])
    assert rows[0]["step_s"] == pytest.approx(answered("bill", "llama-3.2-1b", "-c", "1xh100")["step_s"])


def test_engines_side_by_side_are_each_one_alone():
    words = ("plan", "llama-3.2-1b", "--phase", "train", "-c", "2xh100", "--global-batch", "16", "--seq", "2048", "--engine")
    both = answered(*words, "fsdp,megatron")
    assert both["answers"] == [answered(*words, one) for one in ("fsdp", "megatron")]
    assert answered(*words, "fsdp", "--engine", "megatron") == both, "given twice it names both, as --cluster does"
    serving = run_here("plan", "llama-3.2-1b", "-c", "1xh100", "--engine", "vllm,sglang")
    assert (serving.returncode, "name one here" in serving.stderr) == (2, True)


def test_a_manifest_names_its_cluster_and_an_option_another():
    file = str(ROOT / "examples" / "deployments" / "kubernetes.yaml")
    assert answered("fit", "--from", file)["cluster"] == "8xh100-sxm"
    assert answered("fit", "--from", file, "-c", "8xh200")["cluster"] == "8xh200-sxm"


def test_nccl_tests_say_how_far_they_are_from_what_their_devices_should_reach():
    done = run_here("audit", str(ROOT / "examples" / "all-reduce-8xh100.txt"))
    assert (done.returncode, "1.90 x" in done.stdout.splitlines()[0]) == (1, True), "eight of these are joined by NVSwitch"
