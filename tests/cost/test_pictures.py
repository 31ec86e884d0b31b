"""Pictures in prompts: what a vision tower costs, and how tp ranks share it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax.catalog import model
from commtax.statement import Refusal
from tables import tables

DATA = tables(__file__)

GEMMA = {"phase": "prefill", "context": 4096, "images": 4, "image_size": "896x896"}


def tower(priced):
    return [line for line in priced.lines if line.item.part == "tower"]


def test_patches_fill_whole_tokens():
    t = model("gemma-3-27b").tower  # 14 pixels a patch, 16 patches a token
    assert t.patches(896, 896) == 64 * 64
    assert t.patches(897, 896) == 68 * 64  # another column of tokens


def test_flops_of_a_tower_are_those_of_its_matrices():
    """27 layers of SigLIP on 4,096 patches: 2 FLOPs a weight and patch, and 4 n^2 d for attention."""
    priced = commtax.bill("gemma-3-27b", "8xh100-sxm", **GEMMA | {"images": 1})
    total = sum(float(line.flops * line.item.count) for line in tower(priced))
    patches, layer = 4096, 4 * 1152**2 + 2 * 1152 * 4304
    wanted = 27 * (2 * patches * layer + 4 * patches**2 * 1152) + 2 * patches * 1152 * 3 * 14 * 14 + 2 * 256 * 1152 * 5376
    assert total == pytest.approx(wanted, rel=1e-3)


@given(st.integers(1, 4), st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_weights_or_pictures(images, tp):
    """Cut weights add up two sums a layer; whole towers add up nothing and hand their tokens to all."""
    cut, whole = (
        commtax.traffic("gemma-3-27b", "8xh100-sxm", tp=tp, tower=how, **GEMMA | {"images": images}) for how in ("weights", "data")
    )
    counts = [{item.what: float(item.count) for item in items if item.part == "tower"} for items in (cut.items, whole.items)]
    several = tp > 1
    assert counts[0] == {"tower output": 54.0 * several, "tower tokens": 0.0}
    assert counts[1] == {"tower output": 0.0, "tower tokens": 1.0 * several}


def test_a_tower_is_whole_on_every_rank_that_looks_at_its_own_pictures():
    held = [commtax.fit("gemma-3-27b", "8xh100-sxm", tp=4, tower=how).weights for how in ("weights", "data")]
    cut, whole = (next(float(w.nbytes) for w in lines if w.part == "tower") for lines in held)
    assert 3.9 < whole / cut < 4.0  # biases and norms are whole in both


@pytest.mark.parametrize("how", ["weights", "data"])
def test_many_plans_at_once_cost_what_they_cost_alone(how):
    degrees = np.array([1, 2, 4, 8])
    together = commtax.bill("gemma-3-27b", "8xh100-sxm", tp=degrees, tower=how, **GEMMA).step_s
    alone = [commtax.bill("gemma-3-27b", "8xh100-sxm", tp=int(tp), tower=how, **GEMMA).step_s for tp in degrees]
    assert together == pytest.approx(alone, rel=1e-12)


def test_no_pictures_no_tower():
    assert not tower(commtax.bill("gemma-3-27b", "8xh100-sxm", phase="prefill", context=4096))


def test_a_first_token_waits_for_the_pictures():
    loop = {"tp": 4, "concurrency": 4, "input_len": 2048, "output_len": 64}
    plain, seen = (commtax.simulate("gemma-3-27b", "8xh100-sxm", **loop, images=n) for n in (0, 4))
    assert seen.ttft_s > plain.ttft_s * 1.02
    assert np.isfinite(seen.tpot_s)


@pytest.mark.parametrize(("options", "argument"), DATA["what_is_refused"])
def test_what_is_refused(options, argument):
    with pytest.raises(Refusal) as refused:
        commtax.bill("gemma-3-27b", "8xh100-sxm", **options)
    assert refused.value.argument == argument


def test_a_model_without_a_tower_has_no_pictures():
    with pytest.raises(Refusal, match="no vision tower"):
        commtax.bill("llama-3.1-8b", "8xh100-sxm", phase="prefill", images=1)


def test_the_command_says_it_and_the_launch_command_too():
    words = "bill gemma-3-27b --cluster 8xh100-sxm -tp 4 --phase prefill --context 4096 --images 2 --emit vllm"
    words += " --mm-encoder-tp-mode data"
    said = run_here(*words.split())
    assert said.returncode == 0, said.stderr
    assert "2 pictures of 1024x1024 per prompt" in said.stdout
    assert "--mm-encoder-tp-mode data" in said.stdout
