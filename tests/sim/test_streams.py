"""Requests as they come: arrivals and lengths that keep their distributions, spellings, and traces of all forms and of none."""

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax import catalog
from commtax.catalog.distributions import COLUMNS, data_set, quantile_lengths, rank_correlation
from commtax.sim.arrivals import read, write
from commtax.sim.streams import arrival_times, draw_lengths, draw_pairs, draw_stream
from commtax.spec.stream import MOST_TOKENS, Z90, Lengths, RequestStream, lognormal_with_mean
from commtax.statement import Refusal
from each import each
from paths import SHARED
from tables import tables
from texts import put

DATA = tables(__file__)

OPEN_LOOP = SHARED / "open_loop"
needs_shared = pytest.mark.skipif(not OPEN_LOOP.is_dir(), reason="the shared open-loop runs are not here")
MANY = 20_000
SETS = catalog.keys("lengths")
SPELLINGS = DATA["spellings"]
OWN = "arrival_s,input_tokens,output_tokens"
HOSTILE = DATA["hostile"] | {
    "other bytes": (bytes(range(128, 256)) * 4, "line 1: no header"),
    "cut gzip": (gzip.compress(OWN.encode() * 99)[:-9], "damaged or cut off"),
}


def random(seed=0):
    return np.random.default_rng(seed)


def same(a, b):
    columns = ("arrival_s", "input_len", "output_len")
    return all(getattr(a, c).tobytes() == getattr(b, c).tobytes() for c in columns) and a.prefixes == b.prefixes


# Arrivals
@given(st.floats(0.01, 1e4), st.integers(1, 500), st.sampled_from([0.1, 0.5, 1.0, 4.0, math.inf]), st.integers(0, 99))
def test_the_last_request_arrives_when_the_rate_says(rate, count, burstiness, seed):
    times = arrival_times(rate, count, burstiness, random(seed))
    assert len(times) == count
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] == pytest.approx(count / rate)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_spread_as_a_gamma_distribution(burstiness):
    gaps = np.diff(arrival_times(2.0, MANY, burstiness, random()))
    assert gaps.mean() == pytest.approx(0.5, rel=0.01)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.1)


def test_a_duration_holds_what_arrives_within_it_and_an_infinite_rate_sends_all_at_once():
    one = Lengths("constant", 8)
    counts = []
    for seed in range(30):
        stream = draw_stream(rate=20, duration_s=10, inputs=one, outputs=one, seed=seed)
        assert stream.arrival_s[-1] <= 10
        counts.append(len(stream))
    assert np.mean(counts) == pytest.approx(200, abs=5 * math.sqrt(200 / 30))
    assert np.std(counts) == pytest.approx(math.sqrt(200), rel=0.5)
    assert len(draw_stream(rate=20, duration_s=10, count=7, inputs=one, outputs=one)) == 7
    assert len(draw_stream(rate=2, duration_s=10, burstiness=math.inf, inputs=one, outputs=one)) == 20
    stream = draw_stream(rate=math.inf, count=5, inputs=Lengths("constant", 8), outputs=Lengths("constant", 4))
    assert stream.arrival_s.tolist() == [0.0] * 5


@each(
    ("given", "argument"),
    [
        ({"rate": 0, "count": 1}, "request_rate"),
        ({"rate": math.nan, "count": 1}, "request_rate"),
        ({"rate": 1, "count": 0}, "num_prompts"),
        ({"rate": 1, "count": 10**9}, "num_prompts"),
        ({"rate": 1}, "num_prompts"),
        ({"rate": 1, "duration_s": -1.0}, "duration"),
        ({"rate": 1e9, "duration_s": 1e9}, "duration"),
        ({"rate": math.inf, "duration_s": 1.0}, "duration"),
        ({"rate": 1e-9, "duration_s": 1.0}, "duration"),
        ({"rate": 1, "count": 1, "burstiness": 0}, "burstiness"),
    ],
)
def test_impossible_streams_are_refused(given, argument):
    with pytest.raises(Refusal) as refused:
        draw_stream(**given, inputs=Lengths("constant", 8), outputs=Lengths("constant", 8))
    assert refused.value.argument == argument


# Lengths
@pytest.mark.parametrize("text", SPELLINGS)
def test_means_are_those_asked_for(text):
    lengths = catalog.lengths(text)
    values = draw_lengths(lengths, MANY, random())
    assert values.dtype == np.int64
    assert values.min() >= 1
    assert values.mean() == pytest.approx(lengths.mean, abs=5 * values.std() / math.sqrt(MANY) + 0.5)


@given(st.sampled_from(SPELLINGS), st.integers(1, 600), st.integers(0, 3000))
def test_least_and_most_hold(text, low, more):
    spelled = catalog.lengths(text)
    bounded = Lengths(spelled.kind, spelled.mean, low, low + more, spelled.sigma, spelled.quantiles)
    values = draw_lengths(bounded, 200, random())
    assert low <= values.min() <= values.max() <= low + more


@given(st.floats(2, 1e5), st.floats(0.01, 1.2))
def test_a_lognormal_is_found_again_from_its_figures(mean, sigma):
    p50 = mean * math.exp(-(sigma**2) / 2)
    p90 = p50 * math.exp(Z90 * sigma)
    for figures in ({"p50": p50}, {"p90": p90}, {"p50": p50, "p90": p90}):
        assert lognormal_with_mean(mean, **figures).sigma == pytest.approx(sigma, rel=1e-3)
        assert lognormal_with_mean(mean, **figures).mean == mean


def test_figures_of_no_lognormal_give_the_nearest():
    assert (lognormal_with_mean(100, p50=200).sigma, lognormal_with_mean(100, p90=900).sigma) == (0, pytest.approx(Z90))
    assert lognormal_with_mean(100).sigma == 0
    both = lognormal_with_mean(100, p50=50, p90=150)
    assert lognormal_with_mean(100, p90=150).sigma < both.sigma < lognormal_with_mean(100, p50=50).sigma


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=300))
def test_a_table_of_a_sample_keeps_its_mean_and_its_order(sample):
    points = np.array(quantile_lengths(np.array(sample, dtype=float)).quantiles)
    assert (np.diff(points) >= 0).all()
    assert points[0] >= min(sample)
    assert points[-1] <= max(sample)
    if len(points) > 2:
        assert np.interp(np.linspace(0, 1, 64_001), np.linspace(0, 1, len(points)), points).mean() == pytest.approx(
            np.mean(sample), 1e-2
        )


@each("name", SETS)
def test_a_data_set_draws_its_own_quantiles(name):
    known = data_set(name)
    assert known.key == name
    assert known.source
    assert known.licence
    for side in ("inputs", "outputs") if known.outputs else ("inputs",):
        lengths = catalog.lengths(name, side)
        values = draw_lengths(lengths, MANY, random(3))
        shares = np.array([8, 16, 32, 48, 56]) / 64
        below = [(values <= round(lengths.quantiles[int(share * (len(lengths.quantiles) - 1))])).mean() for share in shares]
        assert (np.array(below) >= shares - 0.02).all()
        assert values.mean() == pytest.approx(lengths.mean, rel=0.03)


def test_pairs_of_one_data_set_go_together_and_keep_both_sides():
    sides = [catalog.lengths("sharegpt", side) for side in ("inputs", "outputs")]
    prompt, answer = draw_pairs(*sides, MANY, random())
    assert rank_correlation(prompt, answer) == pytest.approx(sides[0].correlation, abs=0.03)
    for values, lengths in ((prompt, sides[0]), (answer, sides[1])):
        alone = draw_lengths(lengths, MANY, random(9))
        assert np.quantile(values, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(alone, [0.1, 0.5, 0.9]), rel=0.08)
    others = draw_pairs(sides[0], catalog.lengths("azure-conv", "outputs"), MANY, random())
    assert rank_correlation(*others) == pytest.approx(0, abs=0.03)


@needs_shared
@pytest.mark.parametrize("name", [name for name in SETS if name.startswith(("mlperf", "azure"))])
def test_tables_that_ship_are_those_of_the_shared_files(name):
    kind, _, rest = name.partition("-")
    path = (
        OPEN_LOOP
        / ("mlperf_lengths" if kind == "mlperf" else "arrivals")
        / f"{rest if kind == 'mlperf' else f'azure_2023_{rest}'}.csv.gz"
    )
    with gzip.open(path, "rt") as file:
        header = file.readline()
    for side in ("inputs", "outputs"):
        if COLUMNS[side] in header:
            whole, ships = catalog.lengths(f"file:{path}", side), catalog.lengths(name, side)
            assert ships.mean == pytest.approx(whole.mean, rel=1e-5)
            assert ships.correlation == pytest.approx(whole.correlation, abs=1e-3)
            assert ships.quantiles[32] == pytest.approx(whole.quantiles[512], rel=1e-3)


# Streams
@given(st.integers(0, 2**32), st.sampled_from([0, 3, 50]), st.sampled_from([0, 40]))
@settings(max_examples=20)
def test_the_same_seed_gives_the_same_bytes_and_another_rate_the_same_requests(seed, unique, shared):
    sides = {side: catalog.lengths("azure-conv", side) for side in ("inputs", "outputs")}
    asked = {"count": 60, "seed": seed, "unique_prompts": unique, "shared_prefix": shared, **sides}
    one, again, faster = (draw_stream(rate=rate, **asked) for rate in (2, 2, 50))
    assert same(one, again)
    assert one.input_len.tobytes() == faster.input_len.tobytes()
    assert not same(one, draw_stream(rate=2, **{**asked, "seed": seed + 1}))


@given(st.integers(1, 40), st.integers(0, 300), st.integers(1, 64))
def test_prompts_come_again_and_share_what_is_common(unique, shared, block):
    lengths = catalog.lengths("uniform:1-400")
    stream = draw_stream(
        rate=1, count=40, inputs=lengths, outputs=lengths, unique_prompts=unique, shared_prefix=shared, block=block
    )
    for column in (stream.input_len, stream.output_len):
        assert (column[unique:] == column[:-unique]).all()
    if stream.prefixes is None:
        assert unique == 40
        assert shared < block
        return
    assert len(stream.prefixes) == 40
    for i, prefix in enumerate(stream.prefixes):
        whole = int(stream.input_len[i]) // block
        assert prefix is stream.prefixes[i % unique]
        assert len(prefix) == (whole if unique < 40 else min(whole, shared // block))
        other = stream.prefixes[(i + 1) % 40] if unique > 1 else ()
        common = min(whole, int(stream.input_len[(i + 1) % 40]) // block, shared // block)
        if unique > 1 and (i + 1) % 40 % unique != i % unique:
            assert (len(set(prefix) & set(other)), prefix[:common]) == (common, other[:common])


# Spellings
@each(("text", "says"), DATA["a_bad_spelling_is_refused_with_the_nearest"])
def test_a_bad_spelling_is_refused_with_the_nearest(text, says):
    with pytest.raises(Refusal) as refused:
        catalog.lengths(text, "outputs", "output_len")
    assert says in str(refused.value)
    assert "output_len" in str(refused.value)


@given(st.text(max_size=30) | st.tuples(st.sampled_from(SPELLINGS), st.text(max_size=4)).map("".join))
@settings(max_examples=25)
def test_any_text_is_a_distribution_or_refused(text):
    try:
        lengths = catalog.lengths(text)
    except Refusal:
        return
    assert draw_lengths(lengths, 3, random()).min() >= 1


def test_lengths_are_scaled_or_come_from_a_file(tmp_path):
    plain = catalog.lengths("mlperf-llama2-70b", "outputs")
    assert catalog.lengths("mlperf-llama2-70b*1.35", "outputs").mean == pytest.approx(1.35 * plain.mean)
    scaled = catalog.lengths("mlperf-llama2-70b:mean=290,max=1024", "outputs")
    values = draw_lengths(scaled, MANY, random())
    assert values.mean() == pytest.approx(290, rel=0.02)
    assert values.max() <= 1024
    assert scaled.source == plain.source
    column = put(tmp_path, "column.txt", "tokens\n10\n20\n\n30\n")
    assert catalog.lengths(f"file:{column}").mean == 20
    both = put(tmp_path, "both.csv", "input_tokens,output_tokens\n10,5\n20,4\n30,3\n")
    assert (catalog.lengths(f"file:{both}", "outputs").mean, catalog.lengths(f"file:{both}").correlation) == (4, -1)
    column.write_text("10\nten\n")
    with pytest.raises(Refusal, match="line 2: 'ten' is not 1 to"):
        catalog.lengths(f"file:{column}")
    values = draw_lengths(catalog.lengths("uniform:3-6"), MANY, random())
    assert np.bincount(values)[3:] == pytest.approx([MANY / 4] * 4, rel=0.06)


# Traces
def trace(folder, text, name="trace.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


@given(st.integers(1, 30), st.sampled_from([0, 2, 7]), st.sampled_from([16, 512]), st.sampled_from(["x.csv", "x.csv.gz"]))
@settings(max_examples=20)
def test_what_is_written_is_read_again(tmp_path_factory, count, unique, block, name):
    path = tmp_path_factory.mktemp("trace") / name
    lengths = catalog.lengths("azure-conv")
    stream = draw_stream(rate=3, count=count, inputs=lengths, outputs=lengths, unique_prompts=unique, block=block)
    write(stream, path)
    again = read(path)
    assert same(stream, again)
    assert again.block == (block if stream.prefixes else 16)
    before = path.read_bytes()
    write(again, path)
    assert path.read_bytes() == before


def test_azure_mooncake_and_benchmarks_tell_their_requests(tmp_path):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n"
    )
    stream = trace(tmp_path, text)
    assert (stream.arrival_s, stream.input_len.tolist()) == (pytest.approx([0, 4.314579], abs=1e-5), [374, 396])
    zoned = trace(tmp_path, text.replace("900,", "900+00:00,").replace("690,", "690+01:00,"))
    assert zoned.arrival_s[-1] == pytest.approx(3600 - 4.314579, abs=1e-5)
    assert [note.code for note in zoned.notes] == ["unsorted"]
    rows = [{"timestamp": 27, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}]
    rows += [{"timestamp": 3000, "input_length": 600, "output_length": 9, "hash_ids": [0, 7]}]
    stream = trace(tmp_path, "\n".join(map(json.dumps, rows)) + "\n\n")
    assert (stream.arrival_s.tolist(), stream.prefixes, stream.block) == ([0.027, 3.0], ((0, 1, 2), (0, 7)), 512)
    assert same(stream, trace(tmp_path, json.dumps(rows)))
    run = {"duration": 3, "completed": 2, "input_lens": [9, 8, 7], "output_lens": [4, 0, 2], "start_times": [105.5, 104.0, 103.5]}
    stream = trace(tmp_path, json.dumps(run, indent=1))
    assert (stream.arrival_s.tolist(), stream.input_len.tolist()) == ([0.0, 2.0], [7, 9])
    assert [note.code for note in stream.notes] == ["failed", "unsorted"]
    stream = trace(tmp_path, f"{OWN},hash_ids_16\n2,20,1,5\n1,10,1,6\n1,11,1,7\n".encode("utf-16"))
    assert (stream.arrival_s.tolist(), stream.input_len.tolist()) == ([1, 1, 2], [10, 11, 20])
    assert (stream.prefixes, stream.block, [note.code for note in stream.notes]) == (((6,), (7,), (5,)), 16, ["unsorted"])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_traces_are_refused_by_line_and_rule(name, tmp_path):
    text, says = HOSTILE[name]
    with pytest.raises(Refusal) as refused:
        trace(tmp_path, text)
    assert says in str(refused.value)
    assert "trace '" in str(refused.value)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda t: f"{OWN},hash_ids\n{t}".encode()))
def test_any_file_is_a_trace_or_refused(tmp_path_factory, raw):
    try:
        stream = trace(tmp_path_factory.mktemp("any"), raw)
    except Refusal:
        return
    assert stream.input_len.min() >= 1
    assert stream.input_len.max() <= MOST_TOKENS


@needs_shared
@pytest.mark.parametrize(("name", "count", "last_s", "block"), DATA["shared_traces_are_read_whole"])
def test_shared_traces_are_read_whole(name, count, last_s, block):
    stream = read(OPEN_LOOP / f"{name}.csv.gz")
    assert isinstance(stream, RequestStream)
    assert (len(stream), stream.arrival_s[-1], stream.block) == (count, last_s, block)
    assert not stream.notes
    if stream.prefixes:
        assert [len(prefix) for prefix in stream.prefixes] == (-(-stream.input_len // block)).tolist()
