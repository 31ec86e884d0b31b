"""Techniques of collectives: fused with their norm, quantised, in symmetric memory, over PCIe, by AITER."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.fabric import fusion, library
from commtax.cost.collectives import choose, path_parts
from commtax.cost.overlap import FUSED_FORM, FUSED_OP, fused_fabric, most_fused_bytes
from commtax.statement import Refusal
from each import each
from tables import tables

DATA = tables(__file__)

KIB, MIB = 1 << 10, 1 << 20
OLD = "flashinfer@0.2.11"
ROW = 8192 * 2  # bytes of a token of hidden 8192 in bf16

FUSED = [  # published times: two H100 in vLLM 22086, four and eight GPUs of a rack in FlashInfer 5178
    ("2xh100-sxm", 32 * ROW, OLD, "one-shot", 10e-6),
    ("2xh100-sxm", 128 * ROW, OLD, "one-shot", 30e-6),
    ("2xh100-sxm", 64 * ROW, OLD, "two-shot", 85e-6),
    ("4xgb300", 10240, "", "auto", 4.09e-6),
    ("4xgb300", 128 * 10240, "", "auto", 9.31e-6),
    ("8xgb300", 32 * 10240, "", "auto", 7.57e-6),
    ("8xgb300", 8192 * 10240, "", "auto", 304.85e-6),
]


@each(("cluster", "nbytes", "name", "algorithm", "seconds"), FUSED)
def test_a_fused_all_reduce_takes_what_was_published(cluster, nbytes, name, algorithm, seconds):
    found = commtax.expect("all-reduce", cluster, nbytes=nbytes, library=name, technique=f"fused-allreduce={algorithm}")
    assert found.op == FUSED_OP
    assert found.seconds == pytest.approx(seconds, rel=0.15)


@each(("tokens", "seconds"), [(32, 10e-6), (64, 12e-6), (128, 17e-6)])
def test_an_all_reduce_and_a_compiled_norm_take_what_was_published(tokens, seconds):
    """'Standard, compiled' on two H100 (vLLM 22086)."""
    assert commtax.expect(FUSED_OP, "2xh100-sxm", nbytes=tokens * ROW, library="vllm").seconds == pytest.approx(seconds, rel=0.1)


def test_the_first_fused_kernel_lost_from_64_tokens_on_and_the_present_one_wins():
    tokens = np.array([1.0, 16.0, 64.0, 128.0])
    apart, first, present = (
        commtax.expect(FUSED_OP, "2xh100-sxm", nbytes=tokens * ROW, library=name).seconds for name in ("vllm", OLD, "flashinfer")
    )
    assert (first < apart).tolist() == [True, True, False, False]
    assert np.all(present < apart)


def test_a_one_shot_kernel_pushes_the_tensor_to_every_other_rank():
    """By hand, eight H100 and 64 KiB: 2.8 us and seven hops, seven tensors at 302 GB/s, three passes over 3.35 TB/s."""
    found = commtax.expect(FUSED_OP, "8xh100-sxm", nbytes=64 * KIB, library="flashinfer")
    by_hand = 2.8e-6 + 7 * 6.732e-8 + 7 * 65536 / 3.018e11 + 3 * 65536 / 3.35e12
    assert found.seconds == pytest.approx(by_hand)


def test_the_bytes_of_quantised_all_reduces_are_their_values_and_scales():
    """32 values share 16 bits: 16, 8.5, 6.5 and 4.5 bits of 16; twice 3/4 of that leaves each of four ranks."""
    for level, bits in {"fp": 16, "int8": 8.5, "int6": 6.5, "int4": 4.5}.items():
        path = catalog.fabric(f"quickreduce-{level}", catalog.cluster("8xmi300x")).kernels["all-reduce"][0]
        bare = replace(path, beside_s=0.0, contention=())
        wire = path_parts(bare, 1e9, 4)[1]
        assert wire == pytest.approx(2 * 3 / 4 * 1e9 * bits / 16 / (path.bandwidth_Bps * 3 / 7))


QUICK = [(32, 7.58, 23.81, 21.27), (256, 14.39, 26.78, 22.85), (1024, 22.91, 29.43, 24.72), (2048, 36.64, 40.97, 28.49),
         (4096, 63.86, 66.95, 37.49), (8192, 118.31, 126.43, 64.23)]  # fmt: skip


@each(("size", "plain", "int8", "int4"), QUICK)
def test_quickreduce_is_priced_for_sizes_that_no_engine_gives_it(size, plain, int8, int4):
    """Four MI300X, microseconds by KiB (vLLM 19744): small tensors lose by three times, INT4 wins from 2 MiB on."""
    for name, measured in (("vllm", plain), ("quickreduce-int8", int8), ("quickreduce-int4", int4)):
        found = commtax.expect("all-reduce", "8xmi300x", ranks=4, nbytes=size * KIB, library=name)
        assert found.seconds * 1e6 == pytest.approx(measured, rel=0.16)


def test_a_bill_leaves_to_the_engine_what_is_below_its_limits():
    plain, quick = (commtax.bill("llama-3.1-8b", "8xmi300x", tp=4, batch=8, technique=t) for t in ("", "quickreduce=int4"))
    assert float(plain.step_s) == float(quick.step_s)
    long = [commtax.bill("llama-3.1-8b", "8xmi300x", tp=4, phase="prefill", context=8192, technique=t) for t in ("", "quickreduce")]
    assert float(long[1].step_s) < float(long[0].step_s)
    own = catalog.fabric("quickreduce-int4", catalog.cluster("8xmi355x"), behind="sglang").paths["all-reduce"]
    assert [p.name for p in own][1].startswith("aiter")


GATHERS = [(2, 1, 4.08), (2, 16, 6.12), (2, 128, 24.96), (2, 1024, 175.9), (2, 8192, 1415.86), (4, 1, 5.2), (4, 2, 5.3)]


@each(("ranks", "rows", "us"), GATHERS)
def test_pcie_gathers_take_what_was_published(ranks, rows, us):
    """Rows of 8 KiB per rank (FlashInfer 5023)."""
    found = commtax.expect(
        "all-gather", "8xrtx-pro-6000-server", ranks=ranks, nbytes=ranks * rows * 8192, library="flashinfer-pcie"
    )
    assert found.seconds * 1e6 == pytest.approx(us, rel=0.12)


@each(("size", "us"), [(0.5, 13), (1, 16), (2, 21), (4, 31)])
def test_symmetric_memory_on_six_gpus_takes_what_was_published(size, us):
    """vLLM 24111."""
    found = commtax.expect("all-reduce", "8xh100-sxm", ranks=6, nbytes=size * MIB, library="symm-mem")
    assert found.seconds * 1e6 == pytest.approx(us, rel=0.08)


CHIPS = {key: (catalog.cluster(key), fusion(catalog.cluster(key))) for key in ("8xh100-sxm", "8xb200-sxm", "8xgb300")}


@settings(max_examples=25)
@given(st.sampled_from(list(CHIPS)), st.sampled_from(["auto", "one-shot", "two-shot"]), st.sampled_from([2, 4, 8]), st.floats(2, 9))
def test_a_fused_all_reduce_is_never_faster_than_its_link_nor_cheaper_for_more(chip, algorithm, ranks, size):
    cluster, kernel = CHIPS[chip]
    paths = fused_fabric(kernel, algorithm).paths[FUSED_OP]
    sizes = 10**size * np.array([1.0, 1.01, 2.0, 64.0])
    together = choose(paths, sizes, ranks).seconds
    assert np.all(np.diff(together) >= 0)
    assert together == pytest.approx([float(choose(paths, n, ranks).seconds) for n in sizes])
    least = min(2 * (ranks - 1) / ranks, 1 + 1 / ranks) * sizes / cluster.intra.bandwidth_Bps
    assert np.all(together > least)


@settings(max_examples=15)
@given(
    st.sampled_from(["quickreduce-int4", "quickreduce-fp", "flashinfer-pcie", "symm-mem", "vllm-custom", "aiter"]), st.floats(2, 9)
)
def test_kernels_are_never_faster_than_their_link_nor_cheaper_for_more(name, size):
    family = library(name).path[0].families[0]
    chip = {"cdna3": "8xmi300x", "blackwell-rtx": "8xrtx-pro-6000", "hopper": "8xh100-sxm", "ampere": "8xa100-80-sxm"}[family]
    share = min(p.path.wire_share for p in library(name).path)
    for ranks in (2, 4, 8):
        one, more = (commtax.expect("all-reduce", chip, ranks=ranks, nbytes=10**size * n, library=name) for n in (1, 1.5))
        assert one.seconds <= more.seconds
        assert one.seconds >= one.floor_s * share


def _step(engine, technique="", **asked):
    return commtax.bill("llama-3.1-70b", "8xb200-sxm", engine=engine, technique=technique, **{"tp": 4, "batch": 16, **asked})


def test_a_fused_step_launches_one_norm_less_for_each_sum():
    plain, fused = _step("sglang"), _step("sglang", "fused-allreduce")
    norms = [sum(float(x.item.count) for x in b.items if x.item.part == "norms") for b in (plain, fused)]
    sums = sum(float(x.item.count) for x in fused.items if x.item.form == FUSED_FORM)
    assert (norms, sums) == ([160.0, 0.0], 160.0)
    each_plain = next(x for x in plain.items if x.item.part == "norms").total_s + sum(
        x.total_s for x in plain.items if x.kind == "comm" and x.item.part in ("attention", "feed-forward")
    )
    each_fused = sum(x.total_s for x in fused.items if x.item.form == FUSED_FORM)
    assert float(plain.step_s - fused.step_s) == pytest.approx(float(each_plain - each_fused))
    sent = [sum(float(x.item.sent_bytes_per_rank) for x in b.items if x.kind == "comm") for b in (plain, fused)]
    assert sent[0] == sent[1], "the same tensors are summed"


def test_engines_fuse_up_to_their_limits():
    """vLLM 8 ranks of Hopper: 0.5 MiB, 32 tokens of hidden 8192; SGLang 2,048 rows."""
    engine, chip = catalog.engine("vllm"), catalog.cluster("8xh100-sxm").chip
    assert most_fused_bytes(engine, chip, np.array([2, 3, 4, 8])).tolist() == [64 * MIB, 0, 2 * MIB, MIB / 2]
    old = {"engine": "vllm@0.12", "cluster": "8xh100-sxm", "tp": 8}
    steps = {
        (b, t): float(commtax.bill("llama-3.1-70b", batch=b, technique=t, **old).step_s)
        for b in (32, 33)
        for t in ("", "fused-allreduce")
    }
    assert steps[32, "fused-allreduce"] != steps[32, ""]
    assert steps[33, "fused-allreduce"] == steps[33, ""]
    long = {"phase": "prefill", "batch": 1, "context": 2049}
    assert float(_step("sglang", "fused-allreduce", **long).step_s) == float(_step("sglang", **long).step_s)


def test_an_array_of_plans_is_fused_as_each_of_them_is():
    widths = np.array([1, 2, 4, 8])
    together = _step("sglang", "fused-allreduce", tp=widths[1:]).step_s
    assert together == pytest.approx([float(_step("sglang", "fused-allreduce", tp=int(n)).step_s) for n in widths[1:]], rel=1e-12)


REFUSED = DATA["refused"]


@each(("cluster", "engine", "technique", "why"), REFUSED)
def test_what_is_on_already_or_not_to_be_had_is_refused(cluster, engine, technique, why):
    with pytest.raises(Refusal, match=why):
        commtax.bill("llama-3.1-70b", cluster, tp=8, engine=engine, technique=technique)


def test_a_bill_names_a_fused_all_reduce_only_with_its_own_figure():
    from commtax.verbs.explain import counterfactuals, verdict

    b = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, batch=1, engine="sglang")
    tried = counterfactuals(b)
    saved = next(-c.delta_s / float(b.step_s) for c in tried if c.code == "fused")
    assert f"a fused all-reduce {saved:.0%}" in verdict(b, tried)
    default = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, batch=1)
    assert "fused" not in verdict(default, counterfactuals(default))
