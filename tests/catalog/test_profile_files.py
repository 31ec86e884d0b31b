"""Files of profiles: what is written is read again as it was, several are one, and what a file may not hold is refused by key."""

import json
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog import profile, profile_files
from commtax.catalog.profile_files import document, join, load_profile, parse, profile_comment, profile_text, runs_of, write_profile
from commtax.spec import Deployment, Path, Profile, RunLesson
from each import each
from profiles import profiles

SERVED = Deployment("vllm", "0.12", "h100-sxm", "LlamaForCausalLM", "llama-3.1-8b", "bf16", tp=2)


def taught(deployment=SERVED, metric="tpot", clients=8.0, seconds=0.01, **facts):
    slopes = {"host_s": 0.25, "pace_products": 0.5}
    return RunLesson(deployment, metric, clients, 1024.0, 128.0, seconds, 0.009, 0.1, slopes, **facts)


def grouped(runs):
    """Runs as a file has them, deployment by deployment."""
    order = list(dict.fromkeys(run.deployment for run in runs))
    return sorted(runs, key=lambda run: order.index(run.deployment))


LEARNT = Profile("learnt", lessons=(taught(), taught(metric="ttft", seconds=0.1)), written="2026-11-17")


@settings(max_examples=25)
@given(profiles())
def test_what_is_written_is_read_as_it_was(own):
    """Every part, in both forms; writing once more changes no sign."""
    text = profile_text(own)
    again = parse(tomllib.loads(text))
    assert profile_text(again) == text
    assert again == parse(json.loads(profile_text(own, as_json=True)))
    assert len(again.lessons) == len(own.lessons)
    assert [run.deployment for run in runs_of(again.lessons)] == [run.deployment for run in grouped(runs_of(own.lessons))]


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


def test_rounding_lifts_nothing_over_its_ceiling():
    """A chip at its datasheet to the last digit: six digits of it are more, and are read."""
    chip = catalog.chip("h100-sxm")
    rate = chip.memory_Bps * (1 - 1e-9)
    own = Profile("x", chip={"key": chip.key, "memory_Bps": rate, "memory_bytes": chip.memory_bytes})
    assert parse(tomllib.loads(profile_text(own))).chip["memory_bytes"] == chip.memory_bytes
    sixth = Path("all-reduce", "ring", 4 * catalog.link("nvlink4").bandwidth_Bps * (1 - 1e-7) + 0.5)
    profile_text(Profile("x", libraries={"nccl": (sixth,)}, links={"intra": "nvlink4"}))


WHOLE = {**document(LEARNT)}


def changed(way, value):
    """The document with another value in one place."""
    whole = json.loads(json.dumps(WHOLE))
    inner = whole
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return whole


RUN = ("deployment", 0, "run", 0)


@each(
    ("way", "value", "says"),
    [
        (("deployments",), [], "unknown key 'deployments'; did you mean deployment"),
        (("deployment",), {}, "deployment={}: a list is needed"),
        (("deployment", 0), 3, r"deployment\[0\]=3: a table of a deployment is needed"),
        (("deployment", 0, "gpu"), "x", r"unknown key 'deployment\[0\].gpu'"),
        (("deployment", 0, "tp"), 0, r"deployment\[0\].tp=0: .* nearest valid: 1"),
        (("deployment", 0, "tp"), 1.5, r"deployment\[0\].tp=1.5: .* nearest valid: 2"),
        (("deployment", 0, "model"), 3, r"deployment\[0\].model=3: a text is needed"),
        (("deployment", 0, "disaggregated"), 1, r"deployment\[0\].disaggregated=1: true or false is needed"),
        (("deployment", 0, "run"), [], r"deployment\[0\] lacks run"),
        ((*RUN, "batch"), 3, r"unknown key 'deployment\[0\].run\[0\].batch'"),
        ((*RUN, "clients"), 0, "run.*clients=0: clients at once from 0.001"),
        ((*RUN, "tpot"), None, r"run\[0\].tpot=None: a table"),
        ((*RUN, "tpot"), {}, r"run\[0\].tpot lacks measured_s, catalogue_s, residual"),
        ((*RUN, "tpot", "measured_s"), 0, "measured_s=0: seconds from 1e-09 to 3600; nearest valid: 1e-09"),
        ((*RUN, "tpot", "residual"), 6, "residual=6: a logarithm from -5 to 5; nearest valid: 5"),
        ((*RUN, "tpot", "noise"), 0.01, "noise=0.01: .* nearest valid: 0.1"),
        ((*RUN, "tpot", "slope"), {}, "unknown key '.*tpot.slope'; did you mean slopes"),
        ((*RUN, "tpot", "slopes", "host_s"), 21, r"tpot.slopes.host_s=21: .* nearest valid: 20"),
        ((*RUN, "tpot", "slopes", "hosts_s"), 1, "unknown key '.*slopes.hosts_s'; did you mean host_s"),
        ((*RUN, "tpot", "slopes", "of_mixtures"), 1, "unknown key '.*slopes.of_mixtures'"),
        ((*RUN, "tpot", "slopes", "learnt"), 1, "unknown key '.*slopes.learnt'"),
        (("written",), "yesterday", "written='yesterday': a day is needed"),
        (("written",), "2026-13-01", "written='2026-13-01': a day is needed"),
        (("written",), 3, "written=3: a text is needed"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(way, value, says):
    with pytest.raises(ValueError, match=says):
        parse(changed(way, value))


def test_a_refusal_names_the_file(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("commtax_profile = 2\nhost_s = -1\n")
    with pytest.raises(ValueError, match=r"^.*own\.toml: host_s=-1: seconds from 0 to 3600; nearest valid: 0$"):
        profile.load(file)
    for text in ("commtax_profile = 2\nname", "a = " + "[" * 5000, "a = " + "9" * 5000):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"^profile '.*own.toml': not valid TOML \(.{1,120}\)$"):
            profile.load(file)


def test_what_would_take_seconds_to_read_is_neither_written_nor_read(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_files, "MOST_TOML", 2**20)
    long = replace(LEARNT, sources={"x": "y" * 2**20})
    with pytest.raises(ValueError, match="longer than 1 Mi signs of TOML"):
        profile_text(long)
    (tmp_path / "long.toml").write_text("#" * (2**20 + 1))
    with pytest.raises(ValueError, match=r"long\.toml': longer than 1 Mi signs of TOML"):
        profile.load(tmp_path / "long.toml")


def test_more_runs_than_can_be_learnt_from_are_refused():
    many = [taught(clients=float(n + 1)) for n in range(1001)]
    with pytest.raises(ValueError, match="deployment: more than the 1,000 latencies"):
        parse(document(replace(LEARNT, lessons=tuple(many))))
    assert len(parse(document(replace(LEARNT, lessons=tuple(many[1:])))).lessons) == 1000


def test_a_day_may_be_toml_s_own():
    assert parse(tomllib.loads("commtax_profile = 2\nwritten = 2026-11-17")).written == "2026-11-17"


def test_a_run_has_one_latency_of_each_metric():
    """Two of the same load are two runs, however they are ordered."""
    slow, fast = taught(seconds=0.02), taught()
    runs = runs_of([slow, fast, taught(metric="ttft")])
    assert [sorted(run.lessons) for run in runs] == [["tpot", "ttft"], ["tpot"]]
    assert runs[0].lessons["tpot"] is slow


# Several profiles.


def ring(rate=1e11):
    return (Path("all-reduce", "ring", rate),)


HOST = Profile("host", chip={"key": "h100-sxm", "memory_Bps": 3e12}, host={"host_s": 1e-3, "request_s": 1e-2}, engine="vllm")
FABRIC = Profile("fabric", chip={"key": "h100-sxm"}, libraries={"nccl": ring()}, links={"intra": "nvlink4"}, network={"hops": 4.0})


def test_parts_of_several_are_one_profile(tmp_path):
    files = []
    for own in (HOST, FABRIC, LEARNT):
        write_profile(tmp_path / f"{own.name}.toml", own)
        files.append(tmp_path / f"{own.name}.toml")
    joined = load_profile([str(files[0]), files[1], LEARNT])
    assert joined.name == "host + fabric + learnt"
    assert joined == replace(join([HOST, FABRIC, LEARNT]))
    assert (joined.chip, joined.host, joined.network) == (HOST.chip, HOST.host, FABRIC.network)
    assert (joined.libraries, joined.links, joined.lessons) == (FABRIC.libraries, FABRIC.links, LEARNT.lessons)
    assert joined.written == "2026-11-17"
    several = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=2, library="nccl", profile=files)
    assert several.step_s == commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=2, library="nccl", profile=joined).step_s
    assert load_profile([]) is None


def test_of_two_the_later_one_wins():
    other = replace(HOST, name="b", host={"host_s": 2e-3}, chip={"key": "h100-sxm", "flops_per_s": {"bf16": 8e14}})
    joined = join([HOST, other])
    assert joined.host == {"host_s": 2e-3}, "times of one fit stay together"
    assert joined.chip == {"key": "h100-sxm", "memory_Bps": 3e12, "flops_per_s": {"bf16": 8e14}}
    slower = replace(FABRIC, libraries={"nccl": ring(9e10), "vllm": ring()}, network={})
    joined = join([FABRIC, slower])
    assert joined.libraries == slower.libraries
    assert joined.network == FABRIC.network


def test_collectives_of_two_links_are_not_mixed():
    other = replace(FABRIC, libraries={"vllm": ring()}, links={"intra": "nvlink3"})
    joined = join([FABRIC, other])
    assert (list(joined.libraries), joined.links) == (["vllm"], {"intra": "nvlink3"})
    assert list(join([FABRIC, replace(other, links=FABRIC.links)]).libraries) == ["vllm", "nccl"]


def test_host_times_stay_with_their_engine():
    sglang = Profile("s", engine="sglang", lessons=(taught(replace(SERVED, engine="sglang")),))
    assert join([HOST, sglang]).engine == "vllm"
    assert join([HOST, replace(sglang, host={"host_s": 3e-3})]).engine == "sglang"
    assert join([LEARNT, sglang]).engine == "sglang"


def test_facts_of_two_chips_are_refused():
    other = replace(HOST, name="b", chip={"key": "h200-sxm", "memory_Bps": 4e12})
    with pytest.raises(ValueError, match="profiles 'host' and 'b' tell of two chips, h100-sxm and h200-sxm"):
        join([HOST, other])
    for plain in (replace(other, chip={"key": "h200-sxm"}), replace(LEARNT, chip={"key": "h200-sxm"})):
        assert join([HOST, plain]).chip == join([plain, HOST]).chip == HOST.chip


@settings(max_examples=30)
@given(profiles())
def test_a_profile_over_itself_is_itself(own):
    joined = join([own, own])
    assert replace(joined, name=own.name, lessons=()) == replace(own, lessons=())
    assert len(joined.lessons) <= len(own.lessons)
    assert all(lesson in own.lessons for lesson in joined.lessons)


@given(st.permutations([HOST, FABRIC, LEARNT]))
def test_parts_that_do_not_meet_join_in_any_order(order):
    assert replace(join(order), name="") == replace(join([HOST, FABRIC, LEARNT]), name="")


# On another chip.


def test_lessons_and_kernels_are_used_on_another_chip_and_that_is_said():
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


def test_what_runs_did_not_see_is_said():
    asked = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, profile=LEARNT)
    assert any("its runs did not see model llama-3.1-70b (seen llama-3.1-8b), tp 8 (seen 2)" in note for note in asked.notes)


@each("own", [HOST, replace(HOST, lessons=LEARNT.lessons), replace(HOST, chip={"key": "h100-sxm"})])
def test_facts_of_another_chip_are_refused(own):
    with pytest.raises(ValueError, match="measured on h100-sxm, and the cluster has h200-sxm"):
        commtax.bill("llama-3.1-8b", "8xh200-sxm", tp=2, profile=own)


def test_collectives_belong_to_their_link_whatever_the_chip():
    own = replace(FABRIC, network={})
    there = commtax.expect("all-reduce", "8xh200-sxm", nbytes=2**20, library="nccl", profile=own)
    assert there.source == "calibrated: fabric"
    with pytest.raises(ValueError, match="measured on h100-sxm"):
        commtax.expect("all-reduce", "8xh200-sxm", nbytes=2**20, library="nccl", profile=replace(own, links={}))
