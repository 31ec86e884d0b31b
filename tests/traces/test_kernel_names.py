"""Names of kernels as people meet them in traces: what each does, whether it computes too, and how it sends."""

import json
from time import perf_counter

from hypothesis import given
from hypothesis import strategies as st

from commtax.runs.evidence.collective_names import algorithm_of, kernel_op, operator_op
from each import each
from paths import FIXTURES

NAMES = json.loads((FIXTURES / "audit" / "kernel-names.json").read_text())
"""Found in public sources and profiles; each says where."""


def test_enough_names_of_both_kinds():
    assert len(NAMES) >= 60
    assert sum(not n["op"] for n in NAMES) >= 25
    assert all(n["source"] for n in NAMES)


@each("found", NAMES, ids=lambda n: n["name"][:60])
def test_what_a_name_tells(found):
    name = found["name"]
    assert (kernel_op(name), algorithm_of(name)) == (found["op"], found["algorithm"])


@given(st.sampled_from(NAMES), st.sampled_from(["<float, 8>(float*, int)", "(x)", ".kd", " [clone .kd]", "<(int)8>"]))
def test_arguments_do_not_change_what_a_bare_name_tells(found, tail):
    """A profiler adds template arguments and parameters to the function's own name."""
    name = found["name"]
    if not set("<( ") & set(name):
        assert kernel_op(name + tail) == found["op"]


@given(st.text(max_size=40))
def test_only_what_communicates_has_an_algorithm(text):
    if not kernel_op(text):
        assert algorithm_of(text) == ""


def test_long_names_take_no_time():
    began = perf_counter()
    for name in ("ncclDevKernel_" + "AllReduce" * 200_000, "oneshotAllreduceFusionKernel<" + "a, " * 500_000, "cub::" * 400_000):
        kernel_op(name), algorithm_of(name), operator_op(name)
    assert perf_counter() - began < 1
