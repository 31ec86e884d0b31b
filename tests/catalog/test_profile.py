"""A machine's own constants: read strictly, used where they speak, written as they were, several files as one."""

import copy
import json
import math
import tomllib
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here
from commtax import catalog
from commtax.catalog import physics, profile, profile_files
from commtax.catalog.profile_files import document, join, load_profile, parse, profile_comment, profile_text, runs_of, write_profile
from commtax.spec import Deployment, Path, Profile, RunLesson
from each import each
from profiles import profiles
from tables import tables

DATA = tables(__file__)
PLAIN = {"kl": 0, "kc": 1, "mk": 1, "k0": 0, "p": 4, "q": 0, "tile_m": 1, "tile_n": 1}
PATH = {"op": "all-reduce", "algorithm": "ring", "bandwidth_Bps": 1e9}
TABLE = DATA["table"]


def written(tmp_path, **changes):
    file = tmp_path / "p.json"
    file.write_text(json.dumps({**TABLE, **changes}))
    return str(file)


def line(bill, what):
    return next(x for x in bill.items if x.item.what == what)


def test_what_a_profile_has_is_used_and_what_it_lacks_stays(tmp_path):
    bill = commtax.bill("llama-3.2-1b", "2xcpu", tp=2, profile=written(tmp_path))
    assert bill.question.engine.key == "builtin"
    rows, inner = 128256 // 2, 2048
    assert line(bill, "head").each_s == pytest.approx(4 * (rows * inner + rows + inner) / 5e9, rel=1e-3), "bytes at half of 10 GB/s"
    assert line(bill, "attention output").each_s == pytest.approx(1e-3 + 2048 * 4 / 1e9), "a millisecond and 8 KiB at 1 GB/s"
    assert line(bill, "attention output").source == "calibrated: bench"
    assert line(bill, "logits").source.startswith("assumed"), "the profile has no all-gather"
    file = tmp_path / "few.json"
    file.write_text(json.dumps({"commtax_profile": 1, "library": {"name": "vllm", "paths": []}}))
    with_it = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, profile=str(file), engine="vllm")
    assert with_it.step_s == commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, engine="vllm").step_s


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *DATA["bad_profiles_are_refused_in_one_line"],
        ({"libraries": [{"name": "x", "paths": []}] * 2}, r"libraries\[1\].name='x': was given before"),
        ({"libraries": [None]}, r"libraries\[0\]=None: a table"),
        ({"chip": None}, "chip=None: a table"),
        ({"host_s": None}, "host_s=None: seconds from 0 to 3600"),
        ({"host_s": 10**400}, "host_s=1000000000"),
    ],
)
def test_bad_profiles_are_refused_in_one_line(tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        profile.load(written(tmp_path, **changes))


def test_files_of_other_chips_and_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        profile.load(tmp_path / "none.json")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        profile.load(bad)
    with pytest.raises(ValueError, match="measured on cpu, and the cluster has h100-sxm"):
        commtax.bill("llama-3.2-1b", "2xh100-sxm", tp=2, profile=written(tmp_path))


def test_types_and_shares_of_a_profile_are_bounded(tmp_path):
    plain = commtax.traffic("llama-3.1-8b", "2xcpu", tp=2, engine="builtin")
    wide = commtax.traffic("llama-3.1-8b", "2xcpu", tp=2, engine="builtin", dtype="fp32")
    assert wide.sent_bytes_per_rank == 2 * plain.sent_bytes_per_rank
    table = dict(TABLE["kernels"]["tables"]["gemm.fp32"], ep=100)
    with pytest.raises(ValueError, match=r"kernels.tables.gemm.fp32.ep=100: an attained share .* nearest valid: 1$"):
        profile.load(written(tmp_path, kernels={"tables": {"gemm.fp32": table}}))


def ring(**constants):
    return {"name": "nccl", "paths": [{"op": "all-reduce", "algorithm": "ring", "bandwidth_Bps": 4e11, **constants}]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *DATA["impossible_physics_is_refused_by_every_command"],
        ({"libraries": [ring(contention=[[2, 1.0], [8, -1e9]])]}, "contention=-1e+09: how many times slower bytes move from 1e-06"),
        ({"libraries": [ring(contention=[[8, 1.0], [2, 2.0]])]}, "group sizes rise from pair to pair"),
        ({"libraries": [ring(contention=[[2, 1.0], [8, 1e-3]])]}, "bandwidth_Bps=4e+14: more than nvlink4 can do (1.8 TB/s"),
        (
            {"libraries": [ring(bandwidth_Bps=1e12), {**ring(bandwidth_Bps=1e15), "name": "rccl"}]},
            "libraries[1].paths[0].bandwidth_Bps=1e+15",
        ),
        ({"libraries": [ring(bandwidth_Bps=9e12)]}, "more than nvlink4 can do (1.8 TB/s, 4 times one direction: NVIDIA"),
    ],
)
def test_impossible_physics_is_refused_by_every_command(tmp_path, changes, says):
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"commtax_profile": 1, "links": {"intra": "nvlink4"}, **changes}))
    assert says in refusal(run_here("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", 8, "--engine", "vllm", "--profile", file))


def test_what_ships_obeys_the_rules():
    """The catalogue's own constants lie within the ranges that a profile's must."""
    for engine in map(catalog.engine, catalog.keys("engines")):
        for chip in map(catalog.chip, catalog.keys("chips")):
            for name, table in catalog.kernel_constants(engine, chip).tables.items():
                for key, value in table.items():
                    physics.KERNEL[key].read(value, f"{chip.key} {name}.{key}")
            physics.check_chip({"memory_Bps": chip.memory_Bps, "flops_per_s": chip.flops_per_s}, chip)
    for cluster in map(catalog.cluster, catalog.keys("clusters")):
        for library in ("nccl", "vllm", "trtllm", "sglang"):
            for op, mine in catalog.fabric(library, cluster).paths.items():
                for path in mine:
                    physics.check_path(path, cluster.intra, f"{cluster.key} {library} {op}")


H100 = catalog.chip("h100-sxm")
WHOLE = {
    "commtax_profile": 1,
    "name": "whole",
    "chip": {"key": "h100-sxm", "memory_Bps": 3e12, "flops_per_s": {"bf16": 9e14}, "memory_bytes": 80e9, "num_sms": 132},
    "kernels": {"tables": {k: dict(v) for k, v in catalog.kernel_constants(catalog.engine("vllm"), H100).tables.items()}},
    "libraries": [ring(launch_s=1e-5, hop_s=1e-6, contention=[[2, 1.0], [8, 2.0]], max_bytes=[[8, 1e6]], turn=0), ring(turn=1)],
    "network": {"efficiency": 0.9, "hops": 3, "pipelining": 0.1, "norm": 8, "spread": 0.3, "least_ranks": 8, "most_ranks": 64},
    "links": {"intra": "nvlink4"},
    "host_s": 1e-3, "host_s_per_doubling": 1e-4, "host_s_per_seq": 1e-5, "request_s": 1e-2, "sigma_tpot": 0.1,
}  # fmt: skip
WHOLE["libraries"] = [{"name": "nccl", "paths": [*WHOLE["libraries"][0]["paths"], *WHOLE["libraries"][1]["paths"]]}]


def leaves(table, way=()):
    """Every place of a profile that holds a value."""
    items = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in items:
        yield (*way, key)
        yield from leaves(value, (*way, key))


LINEAR = 6.9e9

"""Weights of llama-3.1-8b's layers: each row of a step multiplies and adds all of them."""

PLACES = [way for way in leaves(WHOLE) if way[0] not in ("commtax_profile",)]
WRONG = st.sampled_from([None, True, "x", "", [], {}, [1], {"a": 1}, math.nan, math.inf, -math.inf, -1, 0, 10**400, 1e300, 1e-300])
VALUES = st.one_of(WRONG, st.floats(-1e3, 1e3), st.floats(-20, 20).map(lambda x: 10**x), st.integers(-5, 300))


def rule_of(way):
    """The range of a place, where it has one."""
    last = way[-1]
    if way[0] == "libraries" and len(way) == 7:
        return physics.BY_SIZE[way[4]] if last == 1 else None
    tables = {"kernels": physics.KERNEL, "network": physics.NETWORK, "chip": physics.CHIP, "libraries": physics.PATH}
    return tables.get(way[0], physics.HOST).get(last)


def within(way):
    """A place and a value of its range, the ends among them."""
    rule = rule_of(way)
    inner = st.floats(-18, math.log10(rule.high)).map(lambda x: max(rule.low, min(rule.high, 10**x)))
    value = st.one_of(st.sampled_from([rule.low, rule.high]), inner)
    return st.tuples(st.just(way), value.map(round) if rule.whole else value)


RANGED = st.sampled_from([way for way in PLACES if rule_of(way)]).flatmap(within)


def mutated(changes):
    table = copy.deepcopy(WHOLE)
    for way, value in changes:
        inner = table
        for key in way[:-1]:
            inner = (
                inner[key] if (isinstance(inner, dict) and key in inner) or (isinstance(inner, list) and key < len(inner)) else {}
            )
        if isinstance(inner, dict) or (isinstance(inner, list) and way[-1] < len(inner)):
            inner[way[-1]] = value
    return table


def parsed(table):
    try:
        return profile.parse(table), ""
    except ValueError as error:
        return None, str(error)


@settings(max_examples=120)
@given(st.one_of(st.lists(RANGED, max_size=6), st.lists(st.tuples(st.sampled_from(PLACES), VALUES), max_size=3)))
@example([])
@example([(("libraries", 0, "paths", 0, "contention", 1, 1), -1e9)])
@example([(("kernels", "tables", "gemm.bf16", "ep"), 100)])
def test_what_is_accepted_prices_within_physics(changes):
    own, said = parsed(mutated(changes))
    if own is None:
        assert "\n" not in said
        assert len(said) < 400
        return
    model, peak = catalog.model("llama-3.1-8b"), H100.flops_per_s["bf16"]
    for words in ({"phase": "decode", "batch": 4}, {"phase": "prefill", "batch": 1, "context": 2048}):
        step = commtax.bill(model, "2x8xh100-sxm", tp=16, engine="vllm", profile=own, **words)
        assert all(math.isfinite(float(x.total_s)) and float(x.total_s) >= 0 for x in step.items)
        read = sum(float(x.item.nbytes * x.item.count) for x in step.items if x.kind == "compute" and x.item.op == "gemm")
        flops = 2 * LINEAR * words["batch"] * words.get("context", 1) / 16
        assert math.isfinite(step.step_s)
        assert step.step_s >= max(read / H100.memory_Bps, flops / peak)
    trained = commtax.train_bill(model, "8xh100-sxm", tp=2, dp=4, batch=2, profile=own)
    assert 0 < trained.mfu <= 1
    assert math.isfinite(trained.step_s)


SERVED = Deployment("vllm", "0.12", "h100-sxm", "LlamaForCausalLM", "llama-3.1-8b", "bf16", tp=2)


def taught(deployment=SERVED, metric="tpot", clients=8.0, seconds=0.01, **facts):
    slopes = {"host_s": 0.25, "pace_products": 0.5}
    return RunLesson(deployment, metric, clients, 1024.0, 128.0, seconds, 0.009, 0.1, slopes, **facts)


def grouped(runs):
    """Runs as a file has them, deployment by deployment."""
    order = list(dict.fromkeys(run.deployment for run in runs))
    return sorted(runs, key=lambda run: order.index(run.deployment))


LEARNT = Profile("learnt", lessons=(taught(), taught(metric="ttft", seconds=0.1)), written="2026-11-17")


@settings(max_examples=30)
@given(profiles())
def test_what_is_written_is_read_as_it_was_and_joined_with_itself(own):
    """Every part, in both forms; writing once more changes no sign."""
    text = profile_text(own)
    again = parse(tomllib.loads(text))
    assert (profile_text(again), again) == (text, parse(json.loads(profile_text(own, as_json=True))))
    assert len(again.lessons) == len(own.lessons)
    assert [run.deployment for run in runs_of(again.lessons)] == [run.deployment for run in grouped(runs_of(own.lessons))]
    joined = join([own, own])
    assert replace(joined, name=own.name, lessons=()) == replace(own, lessons=())
    assert len(joined.lessons) <= len(own.lessons)
    assert all(lesson in own.lessons for lesson in joined.lessons)


@given(profiles())
def test_a_file_is_read_whatever_its_name_is(tmp_path_factory, own):
    folder = tmp_path_factory.mktemp("named")
    made = []
    for name in ("own.toml", "own.json", "own"):
        write_profile(folder / name, own)
        made.append(profile.load(folder / name))
    assert made[0] == made[1] == made[2]
    assert (folder / "own.json").read_text().startswith("{")
    assert (folder / "own.toml").read_text().startswith("# ")


def test_a_written_file_reads_well(tmp_path):
    write_profile(tmp_path / "a.toml", replace(LEARNT, host={"host_s": 0.00123456789}))
    text = (tmp_path / "a.toml").read_text()
    assert text.startswith(f"# {profile_comment(LEARNT)[0]}\n")
    assert "\n# vllm 0.12, llama-3.1-8b on h100-sxm, TP 2: what 1 run taught (80% range; before any run)\n#   host_s " in text
    assert 'commtax_profile = 2\nname = "learnt"\nwritten = "2026-11-17"\nhost_s = 0.00123457\n' in text
    assert "\n    slopes = { host_s = 0.25, pace_products = 0.5 }\n" in text
    assert "pp" not in tomllib.loads(text)["deployment"][0]
    assert "noise" not in text
    write_profile(tmp_path / "a.toml", LEARNT, ["moved: host_s 2 -> 3 ms"])
    assert (tmp_path / "a.toml").read_text().startswith("# moved: host_s 2 -> 3 ms\n\ncommtax_profile")


def test_what_no_profile_may_hold_is_not_written(tmp_path):
    for wrong in (replace(LEARNT, host={"host_s": -1.0}), replace(LEARNT, lessons=(taught(seconds=0.0),))):
        with pytest.raises(ValueError, match="nearest valid"):
            write_profile(tmp_path / "wrong.toml", wrong)
        assert not list(tmp_path.iterdir())
    # A chip at its datasheet to the last digit: six digits of it are more, and are read.
    chip = catalog.chip("h100-sxm")
    rate = chip.memory_Bps * (1 - 1e-9)
    own = Profile("x", chip={"key": chip.key, "memory_Bps": rate, "memory_bytes": chip.memory_bytes})
    assert parse(tomllib.loads(profile_text(own))).chip["memory_bytes"] == chip.memory_bytes
    sixth = Path("all-reduce", "ring", 4 * catalog.link("nvlink4").bandwidth_Bps * (1 - 1e-7) + 0.5)
    profile_text(Profile("x", libraries={"nccl": (sixth,)}, links={"intra": "nvlink4"}))


WHOLE_FILE = {**document(LEARNT)}


def changed(way, value):
    """The document with another value in one place."""
    whole = json.loads(json.dumps(WHOLE_FILE))
    inner = whole
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return whole


RUN = ("deployment", 0, "run", 0)


@each(
    ("way", "value", "says"),
    [
        *DATA["what_is_wrong_is_named_by_its_place"],
        (("deployments",), [], "unknown key 'deployments'; did you mean deployment"),
        (("deployment", 0, "run"), [], r"deployment\[0\] lacks run"),
        ((*RUN, "tpot"), None, r"run\[0\].tpot=None: a table"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(way, value, says):
    with pytest.raises(ValueError, match=says):
        parse(changed(way, value))


def test_a_refusal_names_the_file_and_its_bound(tmp_path, monkeypatch):
    file = tmp_path / "own.toml"
    file.write_text("commtax_profile = 2\nhost_s = -1\n")
    with pytest.raises(ValueError, match=r"^.*own\.toml: host_s=-1: seconds from 0 to 3600; nearest valid: 0$"):
        profile.load(file)
    for text in ("commtax_profile = 2\nname", "a = " + "[" * 5000, "a = " + "9" * 5000):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"^profile '.*own.toml': not valid TOML \(.{1,120}\)$"):
            profile.load(file)
    monkeypatch.setattr(profile_files, "MOST_TOML", 2**20)
    long = replace(LEARNT, sources={"x": "y" * 2**20})
    with pytest.raises(ValueError, match="longer than 1 Mi signs of TOML"):
        profile_text(long)
    (tmp_path / "long.toml").write_text("#" * (2**20 + 1))
    with pytest.raises(ValueError, match=r"long\.toml': longer than 1 Mi signs of TOML"):
        profile.load(tmp_path / "long.toml")


def test_many_runs_are_refused_and_each_has_one_latency_of_a_metric():
    many = [taught(clients=float(n + 1)) for n in range(1001)]
    with pytest.raises(ValueError, match="deployment: more than the 1,000 latencies"):
        parse(document(replace(LEARNT, lessons=tuple(many))))
    assert len(parse(document(replace(LEARNT, lessons=tuple(many[1:])))).lessons) == 1000
    assert parse(tomllib.loads("commtax_profile = 2\nwritten = 2026-11-17")).written == "2026-11-17"
    # Two of the same load are two runs, however they are ordered.
    slow, fast = taught(seconds=0.02), taught()
    runs = runs_of([slow, fast, taught(metric="ttft")])
    assert [sorted(run.lessons) for run in runs] == [["tpot", "ttft"], ["tpot"]]
    assert runs[0].lessons["tpot"] is slow


# Several profiles.


def ring_paths(rate=1e11):
    return (Path("all-reduce", "ring", rate),)


HOST = Profile("host", chip={"key": "h100-sxm", "memory_Bps": 3e12}, host={"host_s": 1e-3, "request_s": 1e-2}, engine="vllm")
FABRIC = Profile("fabric", {"key": "h100-sxm"}, libraries={"nccl": ring_paths()}, links={"intra": "nvlink4"}, network={"hops": 4.0})


def test_parts_of_several_are_one_profile(tmp_path):
    files = []
    for own in (HOST, FABRIC, LEARNT):
        write_profile(tmp_path / f"{own.name}.toml", own)
        files.append(tmp_path / f"{own.name}.toml")
    joined = load_profile([str(files[0]), files[1], LEARNT])
    assert (joined.name, joined) == ("host + fabric + learnt", replace(join([HOST, FABRIC, LEARNT])))
    assert (joined.chip, joined.host, joined.network) == (HOST.chip, HOST.host, FABRIC.network)
    assert (joined.libraries, joined.links, joined.lessons) == (FABRIC.libraries, FABRIC.links, LEARNT.lessons)
    assert joined.written == "2026-11-17"
    several = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=2, library="nccl", profile=files)
    assert several.step_s == commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=2, library="nccl", profile=joined).step_s
    assert load_profile([]) is None


def test_of_two_profiles_the_later_wins_and_links_are_not_mixed():
    other = replace(HOST, name="b", host={"host_s": 2e-3}, chip={"key": "h100-sxm", "flops_per_s": {"bf16": 8e14}})
    joined = join([HOST, other])
    assert joined.host == {"host_s": 2e-3}, "times of one fit stay together"
    assert joined.chip == {"key": "h100-sxm", "memory_Bps": 3e12, "flops_per_s": {"bf16": 8e14}}
    slower = replace(FABRIC, libraries={"nccl": ring_paths(9e10), "vllm": ring_paths()}, network={})
    joined = join([FABRIC, slower])
    assert (joined.libraries, joined.network) == (slower.libraries, FABRIC.network)
    other = replace(FABRIC, libraries={"vllm": ring_paths()}, links={"intra": "nvlink3"})
    joined = join([FABRIC, other])
    assert (list(joined.libraries), joined.links) == (["vllm"], {"intra": "nvlink3"})
    assert list(join([FABRIC, replace(other, links=FABRIC.links)]).libraries) == ["vllm", "nccl"]


def test_host_times_and_facts_stay_with_their_engine_and_chip():
    sglang = Profile("s", engine="sglang", lessons=(taught(replace(SERVED, engine="sglang")),))
    assert (join([HOST, sglang]).engine, join([HOST, replace(sglang, host={"host_s": 3e-3})]).engine) == ("vllm", "sglang")
    assert join([LEARNT, sglang]).engine == "sglang"
    other = replace(HOST, name="b", chip={"key": "h200-sxm", "memory_Bps": 4e12})
    with pytest.raises(ValueError, match="profiles 'host' and 'b' tell of two chips, h100-sxm and h200-sxm"):
        join([HOST, other])
    for plain in (replace(other, chip={"key": "h200-sxm"}), replace(LEARNT, chip={"key": "h200-sxm"})):
        assert join([HOST, plain]).chip == join([plain, HOST]).chip == HOST.chip


@given(st.permutations([HOST, FABRIC, LEARNT]))
def test_parts_that_do_not_meet_join_in_any_order(order):
    assert replace(join(order), name="") == replace(join([HOST, FABRIC, LEARNT]), name="")


# On another chip.


def test_what_was_not_seen_is_noted_and_links_keep_their_collectives():
    kernels = {"gemm.bf16": dict(catalog.kernel_constants(catalog.engine("vllm"), catalog.chip("h100-sxm")).tables["gemm.bf16"])}
    own = replace(LEARNT, chip={"key": "h100-sxm"}, tables=kernels, host={"host_s": 1.0})
    here, there = (commtax.bill("llama-3.1-8b", place, tp=2, profile=own) for place in ("8xh100-sxm", "8xh200-sxm"))
    assert any("its kernels were measured on h100-sxm: on h200-sxm their ranges are widened" in note for note in there.notes)
    assert any("did not see chip h200-sxm (seen h100-sxm)" in note for note in there.notes)
    assert not any("did not see" in note for note in here.notes)
    assert "h200-sxm keeps the catalogue's" in " ".join(there.notes), "a host's times are not another's"
    kinds = [next(x for x in step.items if x.item.op == "gemm").source.kind for step in (here, there)]
    assert kinds == ["calibrated", "transferred"]
    assert there.step_s < 1.0 < here.step_s
    asked = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, profile=LEARNT)
    assert any("its runs did not see model llama-3.1-70b (seen llama-3.1-8b), tp 8 (seen 2)" in note for note in asked.notes)
    own = replace(FABRIC, network={})
    there = commtax.expect("all-reduce", "8xh200-sxm", nbytes=2**20, library="nccl", profile=own)
    assert there.source == "calibrated: fabric"
    with pytest.raises(ValueError, match="measured on h100-sxm"):
        commtax.expect("all-reduce", "8xh200-sxm", nbytes=2**20, library="nccl", profile=replace(own, links={}))


@each("own", [HOST, replace(HOST, lessons=LEARNT.lessons), replace(HOST, chip={"key": "h100-sxm"})])
def test_facts_of_another_chip_are_refused(own):
    with pytest.raises(ValueError, match="measured on h100-sxm, and the cluster has h200-sxm"):
        commtax.bill("llama-3.1-8b", "8xh200-sxm", tp=2, profile=own)
