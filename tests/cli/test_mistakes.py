"""The mistakes that newcomers make: each answer says what to type, and that works."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax.catalog.techniques import technique, techniques
from commtax.options import options
from commtax.statement import Refusal

SAID = {
    "fit lama-3.1-8b -c 8xh100-sxm": "did you mean llama-3.1-8b",
    "fit llama3-70b -c 8xh100-sxm": "did you mean llama-3.1-70b, llama-3.3-70b or llama-2-70b?",
    "fit R1 -c 8xh100-sxm": "did you mean deepseek-r1 ",
    "fit llama-3.1-8b --gpus 8": "write 8xh100-sxm",
    "fit llama-3.1-8b --num-gpus=4": "--cluster 4xh100-sxm",
    "fit llama-3.1-8b -c 8 h100": "--cluster 8xh100-sxm",
    "fit llama-3.1-8b -c 'dgx-h100 x8'": "write 8xdgx-h100 or dgx-h100",
    "fit llama-3.1-8b -c '2 h100 nodes'": "write 2x8xh100 or 2x1xh100",
    "fit llama-3.1-8b -c 2x3xdgx-spark": "write 2xdgx-spark or 2x3xgb10",
    "fit llama-3.1-8b 8xh100-sxm": "--cluster 8xh100-sxm",
    "fit llama-3.1-8b": "--cluster 8xh100-sxm",
    "fit llama-3.1-8b -c": "-c 8xh100-sxm",
    "fit llama-3.1-8b -c h100 -tp 8": "such as 8xh100-sxm",
    "fit llama-3.1-8b -c 8xmx325": "mi325x or mi355? Or describe it in a FILE.toml",
    "fit llama-3.1-8b -c 8xmtia-v2": "FILE.toml",
    "fit --from 'vllm serve meta-llama/Llama-3.1-8B -tp 4'": "needs 4 GPUs and does not say which",
    "simulate llama-3.1-8b -c 8xh100 --disaggregated --prefill-workers 1 --decode-workers 3": "give --concurrency 3 or more",
    "simulate llama-3.1-8b -c 1xh100 --concurrency 8 --shared-prefix 0.6": "a share is --prefix-cache 60%",
    "simulate llama-3.1-8b -c 1xh100 --concurrency 8 --speculative eagle3=5": "a technique: write --technique eagle3=5",
    "worth llama-3.1-8b -c 1xh100 --technique prefix-cache": "an option of simulate and plan: --prefix-cache\n",
    "simulate llama-3.1-8b -c 1xh100 --technique prefix_caching": "an option of simulate and plan: --prefix-cache\n",
    "worth llama-3.1-70b -c 4xh100 eagle=3": "--technique eagle=3",
    "bill llama-3.1-8b -c 1xh100 --batch 1,64": "'1,64' is not a whole number",
    "catalog l40z": "did you mean l40s",
    "catalog l40s h100": "commtax catalog chips l40s",
    "fit ./config.json -c 8xh100-sxm": "name a folder with config.json",
    "plan llama-3.1-8b -c 8xh100-sxm --tpot 30 ms": "30ms",
    "plan llama-3.1-8b -c 8xh100-sxm --ttft 500": "500ms or 500s",
    "bill llama-3.1-8b -c 8xh100-sxm --ttft 1s": "simulate and plan take it",
    "llama-3.1-8b": "commtax fit llama-3.1-8b --cluster 8xh100-sxm",
    "fitt llama-3.1-8b": "did you mean fit?",
}


@pytest.mark.parametrize("line", SAID)
def test_the_answer_says_what_to_type(line):
    done = run_here(*shlex.split(line))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert SAID[line] in done.stderr


@pytest.mark.parametrize(
    "line", ["fit llama-3.1-8b -c 8xh100 --tp=8", "fit llama-3.1-8b -c H100", "fit llama-3.1-8b --gpu h200", "catalog l40s"]
)
def test_what_newcomers_write_right(line):
    assert run_here(*shlex.split(line)).returncode == 0


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--think-time", "--request-rate"),
        ("--kv-offload", "--technique kv-offload=host"),
        ("--kv-offload=disk", "--technique kv-offload=disk"),
        ("--sessions", "--prefix-cache"),
        ("--power", "--price"),
        ("--mtbf", "prices failures"),
        ("--concurency", "Did you mean --concurrency?"),
        ("--far-fetched", "simulate --help lists all"),
    ],
)
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
