"""Outputs as launchers hand them over: prefixes of every kind, lists of ranks that are a part, and contradictions."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax.runs.audit import formats
from commtax.runs.calibrate.calibration import calibrate
from commtax.runs.evidence import prefixes
from commtax.runs.results import collective_tests
from made_nccl import SIZES, TRUE, noisy, output, written
from tables import tables

DATA = tables(__file__)

PREFIXES = DATA["prefixes"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A text without a prefix, and the libraries that are made of it."""
    text = output("all_reduce", 8, noisy(TRUE, 8, np.random.default_rng(1), SIZES[::2]))
    return text, calibrate([written(tmp_path_factory.mktemp("plain"), "a.txt", text)], "8xa100-80-sxm").profile.libraries


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_every_launcher_s_prefix_is_read_past(tmp_path, plain, prefix):
    """``calibrate`` took what begins with a bracket for JSON."""
    text, libraries = plain
    tagged = "\n".join(prefix + line for line in text.splitlines())
    assert collective_tests.parse_all(tagged) == collective_tests.parse_all(text)
    assert calibrate([written(tmp_path, "b.txt", tagged)], "8xa100-80-sxm").profile.libraries == libraries


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_log_behind_a_prefix_is_a_log(tmp_path, prefix):
    line = "(Worker_TP0 pid=7) INFO 09-03 16:28:08 [x.py:1] Model loading took 7.51 GiB and 1 seconds"
    assert formats.kinds(written(tmp_path, "x.log", prefix + line)) == ["log"]
    assert prefixes.strip_prefixes(prefix + line) == line


@pytest.mark.parametrize("text", DATA["what_is_no_prefix_stays"])
def test_what_is_no_prefix_stays(text):
    assert prefixes.strip_prefixes(text) == text


def test_hosts_that_ran_each_their_own(tmp_path):
    """pdsh over two hosts without MPI: two runs of eight ranks, line by line in turn."""
    texts = [output("all_reduce", 8, noisy(TRUE, 8, np.random.default_rng(s))).splitlines() for s in (1, 2)]
    mixed = "\n".join(f"host{i}: {line}" for pair in zip(*texts, strict=True) for i, line in enumerate(pair))
    assert collective_tests.parse_all(mixed) == tuple(r for t in texts for r in collective_tests.parse_all("\n".join(t)))


def without_ranks(text, keep=()):
    listed = [f"#  Rank {i:2d} " for i in keep]
    return "\n".join(x for x in text.splitlines() if "Rank" not in x or any(x.startswith(y) for y in listed))


def test_one_line_of_the_list_tells_the_size():
    """Rank 71 alone is of 72 ranks, not of one."""
    text = output("all_reduce", 72, noisy(TRUE, 72, np.random.default_rng(3)))
    assert collective_tests.parse_run(without_ranks(text, [71])).ranks == 72
    assert collective_tests.parse_run(without_ranks(text, [0, 1, 2, 3])).ranks == 72, "the list was cut; the bandwidths tell"


def test_a_list_that_the_bandwidths_contradict(tmp_path):
    text = output("all_reduce", 8, noisy(TRUE, 8, np.random.default_rng(3)))
    wrong = written(tmp_path, "x.txt", text.replace("Rank  7", "Rank 71"))
    with pytest.raises(ValueError, match=r"'x.txt': lists rank 71, and its busbw / algbw tell 8 ranks"):
        calibrate([wrong], "8xa100-80-sxm")


def test_groups_side_by_side_are_counted_apart():
    """NCCL_TESTS_SPLIT: eight ranks in two communicators."""
    text = output("all_reduce", 4, noisy(TRUE, 4, np.random.default_rng(3)))
    lines = [f"#  Rank {i:2d} Group {i % 2:2d} Pid 9 on host device {i} [0x00] GPU" for i in range(8)]
    assert collective_tests.parse_run("\n".join([*lines, without_ranks(text)])).ranks == 4


@given(
    ranks=st.integers(2, 300),
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "alltoall"]),
    fastest=st.floats(1, 900),
    keep=st.lists(st.integers(0, 299), max_size=4),
    prefix=st.sampled_from(list(PREFIXES.values())),
)
def test_no_part_of_a_list_gives_a_wrong_size(ranks, op, fastest, keep, prefix):
    """With the last rank's line the size is known; without any line it is right or not told."""
    factor = (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks
    rows = [f"{2**x} {2**x} float sum -1 1.0 {fastest / x:.2f} {fastest / x * factor:.2f} 0" for x in range(20, 4, -2)]
    lines = [f"# {op}_perf", *(f"#  Rank {i} Group 0 x" for i in {min(k, ranks - 1) for k in keep}), *rows]

    def size(found):
        return collective_tests.parse_run("\n".join(prefix + line for line in found)).ranks

    assert size([f"#  Rank {ranks - 1} Group 0 x", *lines]) == ranks
    assert size([line for line in lines if "Rank" not in line]) in (0, ranks)


def test_docker_s_own_files_are_unpacked(tmp_path):
    """One JSON object a line; the last was being written."""
    lines = ["INFO 09-03 16:28:08 [x.py:1] Model loading took 7.51 GiB and 1 seconds\n", "GPU KV cache size: 8,192 tokens\n"]
    packed = "".join(json.dumps({"log": line, "stream": "stderr", "time": "2024-11-04T12:00:00Z"}) + "\n" for line in lines)
    (log,) = formats.read(written(tmp_path, "x-json.log", packed + '{"log":"GPU KV ca'))
    assert (log.kv_tokens, len(log.weights_bytes)) == (8192, 1)


def test_a_table_s_first_cell_is_no_service():
    assert prefixes.strip_prefixes("synchronous  | 12 | 34") == "synchronous  | 12 | 34"
