"""What --emit writes for places: it reads back as its plan, its parts fit together, and engines know every flag in it."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax import catalog
from commtax.launch.deployment import FORMS, written
from commtax.launch.read_command import parse
from commtax.launch.read_techniques import nearest_flags
from commtax.launch.yaml_text import yaml_text
from commtax.statement import Refusal
from commtax.verbs.settling import resolve_question
from commtax_lab.emitted import SERVING, calls, parsed_calls

KNOWN = tomllib.loads(Path(__file__).with_name("engine_options.toml").read_text())
GPU = "nvidia.com/gpu"


def emitted(form, engine, model="llama-3.1-70b", cluster="2x8xh100-sxm", copies=1, prompts=0, **options):
    """What one form is for a plan, by what it is for."""
    return written(resolve_question(model, cluster, {"engine": engine, **options}), form, copies, prompts)


@st.composite
def plans(draw):
    """A plan with servers of one or of several hosts, with servers for prompts of their own or without."""
    wide = draw(st.booleans())
    model, cluster = ("deepseek-v3", "8x8xh200-sxm") if wide else ("llama-3.1-70b", "4x8xh100-sxm")
    sizes = {"dp": 16, "ep": 16} if wide else draw(st.sampled_from([{"tp": 1}, {"tp": 4}, {"tp": 4, "pp": 2}, {"tp": 8, "pp": 2}]))
    prompts, copies = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    apart = {"disaggregated": True, "prefill_tp": 1 if wide else 2, "prefill_dp": 8 if wide else 1} if prompts else {}
    return model, cluster, sizes, copies, prompts, apart


@given(st.sampled_from(FORMS), st.sampled_from(SERVING), plans())
@settings(max_examples=25, deadline=None)
def test_what_is_written_reads_back_as_its_plan(form, engine, drawn):
    model, cluster, sizes, copies, prompts, apart = drawn
    try:
        text = emitted(form, engine, model, cluster, copies, prompts, **sizes, **apart)["launch"]
    except Refusal:  # compose on several hosts, MPI, a chart of another engine: each has a test that reads its words
        return
    found = parse(text)
    assert (found.engine, found.unread, found.servers.count) == (engine, (), copies)
    assert {axis: found.axes[axis] for axis in sizes} == sizes
    assert (found.servers.prefill_workers or 0) == prompts
    if prompts:
        assert (found.servers.prefill_tp, found.servers.prefill_dp) == (apart["prefill_tp"], apart["prefill_dp"])
    if form != "slurm":
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(text))


TEXT = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20)
TREES = st.recursive(
    TEXT | st.integers() | st.booleans(),
    lambda part: st.lists(part, min_size=1, max_size=3) | st.dictionaries(TEXT, part, min_size=1, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, TREES, min_size=1, max_size=3))
def test_yaml_says_what_it_was_made_of(tree):
    assert yaml.safe_load(yaml_text([tree])) == tree


@pytest.mark.parametrize("engine", [e for e in SERVING if any(own["package"] == e for own in KNOWN.values())])
def test_engines_know_every_flag_that_is_written(engine):
    """By what their own parsers were recorded to know; benchmarks/parsers.py asks the parsers themselves."""
    seen = 0
    for name, (program, *words) in parsed_calls(engine):
        own, at = KNOWN.get(program), 0
        if own is None:
            continue
        names, choices = set(own["options"].split()), own["choices"]
        for at, word in enumerate(words):
            if not word.startswith("--"):
                continue
            flag, _, value = word[2:].partition("=")
            assert flag.partition(".")[0] in names, (name, program, word)
            value = value or (words[at + 1] if at + 1 < len(words) else "")
            assert flag not in choices or value in choices[flag].split(), (name, program, word, value)
            seen += 1
    assert seen > 90


def documents(text):
    """Resources by kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one.get("spec", one) for one in yaml.safe_load_all(text)}


def pods(spec):
    """The pods that a resource starts, with the labels that find them."""
    group = spec.get("leaderWorkerTemplate", {})
    return [part for part in (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")) if part]


@pytest.mark.parametrize("engine", SERVING)
@pytest.mark.parametrize(
    ("sizes", "copies", "prompts"), [({"tp": 4}, 2, 0), ({"tp": 8, "pp": 2}, 1, 0), ({"tp": 4, "prefill_tp": 2}, 2, 3)]
)
def test_resources_of_kubernetes_fit_together(engine, sizes, copies, prompts):
    """Selectors find pods, mounts have volumes, claims and routed hosts exist, probes wait for the weights."""
    asked_for = {"copies": copies, "prompts": prompts, "disaggregated": bool(prompts), **sizes}
    if (engine, sizes.get("pp")) == ("trtllm", 2):
        with pytest.raises(Refusal, match="spans 2 hosts, which TensorRT-LLM starts by MPI; slurm and dynamo do that"):
            emitted("kubernetes", engine, **asked_for)
        return
    found = documents(emitted("kubernetes", engine, **asked_for)["launch"])
    claims = {name for kind, name in found if kind == "PersistentVolumeClaim"}
    started = {name: spec for (kind, name), spec in found.items() if kind in ("Deployment", "StatefulSet", "LeaderWorkerSet")}
    labelled = [pod["metadata"]["labels"] for spec in started.values() for pod in pods(spec) if "metadata" in pod]
    for name, spec in started.items():
        if "selector" in spec:
            assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        assert spec.get("serviceName", name) == name
        for pod in pods(spec):
            (container,), volumes = pod["spec"]["containers"], {v["name"]: v for v in pod["spec"].get("volumes", ())}
            assert {mount["name"] for mount in container.get("volumeMounts", ())} == set(volumes)
            assert {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v} <= claims
    for (kind, _), spec in found.items():
        if kind == "Service" and "leaderworkerset.sigs.k8s.io/name" not in spec["selector"]:
            assert any(spec["selector"].items() <= labels.items() for labels in labelled)
    servers = [(spec, pods(spec)[0]["spec"]["containers"][0]) for name, spec in started.items() if not name.endswith("-router")]
    asked = sum(
        spec["replicas"] * spec.get("leaderWorkerTemplate", {"size": 1})["size"] * int(one["resources"]["limits"][GPU])
        for spec, one in servers
    )
    assert asked == copies * sizes["tp"] * sizes.get("pp", 1) + prompts * sizes.get("prefill_tp", 0)
    assert all(one["startupProbe"]["failureThreshold"] * 10 >= 141e9 / 2e8 for _, one in servers), "the weights' own time"
    if prompts:
        said = json.dumps([spec for (_, name), spec in found.items() if name.endswith("-router")])
        hosts = [
            f"{name}-{i}.{name}:8000" for name, spec in started.items() if "serviceName" in spec for i in range(spec["replicas"])
        ]
        assert len(hosts) == copies + prompts
        assert all(host in said for host in hosts)


def test_what_a_form_cannot_start_is_refused_with_what_can():
    with pytest.raises(Refusal, match="spans 2 hosts, and Compose starts containers on one; kubernetes and slurm"):
        emitted("compose", "vllm", tp=8, pp=2)
    with pytest.raises(Refusal, match="16 GPUs are more than the 8 of one host"):
        emitted("compose", "vllm", copies=2, tp=8)
    other = catalog.cluster("8xl40s")
    with pytest.raises(Refusal, match="pools on h100-sxm and l40s are two jobs; kubernetes and dynamo start both"):
        emitted("slurm", "vllm", prompts=1, tp=4, prefill_tp=2, disaggregated=True, prefill_cluster=other)
    with pytest.raises(Refusal, match="its charts start vLLM, not SGLang; kubernetes and dynamo do"):
        emitted("llm-d", "sglang", tp=8)


def test_compose_gives_each_server_gpus_of_its_own():
    text = emitted("compose", "vllm", cluster="8xh100-sxm", copies=1, prompts=2, tp=4, prefill_tp=2, disaggregated=True)["launch"]
    services = yaml.safe_load(text)["services"]
    devices = [one["deploy"]["resources"]["reservations"]["devices"][0] for one in services.values() if "deploy" in one]
    assert sorted(int(gpu) for device in devices for gpu in device["device_ids"]) == list(range(8))
    assert set(services["router"]["depends_on"]) == {"prefill-0", "prefill-1", "decode-0"}
    assert all("--kv-transfer-config" in " ".join(services[name]["command"]) for name in services["router"]["depends_on"])


@pytest.mark.parametrize("engine", SERVING)
@pytest.mark.parametrize(
    "sizes", [{"tp": 4, "prefill_tp": 2, "disaggregated": True}, {"tp": 8, "pp": 2}, {"tp": 16, "dp": 2, "ep": 32}]
)
def test_a_batch_script_is_bash_and_starts_every_server(engine, sizes):
    prompts = 2 if "prefill_tp" in sizes else 0
    try:
        text = emitted("slurm", engine, "deepseek-v3", "8x8xh200-sxm", 2, prompts, **sizes)["launch"]
    except Refusal:
        return
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert text.count("\nsrun ") == 2 + prompts
    nodes = int(text.split("--nodes=")[1].split("\n")[0])
    per_server = sizes["tp"] * sizes.get("pp", 1) * sizes.get("dp", 1)
    assert nodes == (2 * max(1, per_server // 8) if not prompts else 2)


def test_training_goes_to_slurm_and_nowhere_else(tmp_path):
    words = ("bill", "llama-3.1-70b", "-c", "8x8xh100-sxm", "--phase", "train", "-tp", "8", "-dp", "8", "--global-batch", "64")
    file = tmp_path / "job.sh"
    done = run_here(*words, "--emit", "slurm", "--emit-file", file)
    assert done.returncode == 0, done.stderr
    found = parse(file.read_text())
    assert (found.phase, found.axes["tp"], found.axes["dp"], found.unread) == ("train", 8, 8, ())
    refused = run_here(*words, "--emit", "compose")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "training: megatron, torchrun, slurm" in refused.stderr


def test_a_plan_goes_to_a_file_and_comes_back(tmp_path):
    file = tmp_path / "llm.yaml"
    words = ("bill", "llama-3.1-8b", "-c", "8xh100-sxm")
    done = run_here(*words, "-tp", "2", "--replicas", "3", "--emit", "kubernetes", "--emit-file", file)
    assert (done.returncode, f"# launch: written to {file}" in done.stdout, "kind: Deployment" in done.stdout) == (0, True, False)
    again = json.loads(run_here("bill", "-c", "8xh100-sxm", "--from", file, "--json").stdout)
    assert (again["plan"]["tp"], again["plan"]["replicas"]) == (2, 3)
    alone = run_here(*words, "--emit-file", file)
    assert (alone.returncode, alone.stderr.startswith("error: emit_file: name what to write with --emit")) == (2, True)
    strange = run_here("plan", "llama-3.1-8b", "-c", "8xh100-sxm", "--emit", "nomad")
    assert (strange.returncode, "kubernetes, dynamo, llm-d, compose, slurm" in strange.stderr) == (2, True)


def test_llm_d_comes_with_its_scheduler_and_what_installs_both():
    found = emitted("llm-d", "vllm", copies=2, prompts=3, tp=4, prefill_tp=2, disaggregated=True)
    values, router = yaml.safe_load(found["launch"]), yaml.safe_load(found["router"])
    label = router["inferencePool"]["modelServers"]["matchLabels"]
    assert label.items() <= values["modelArtifacts"]["labels"].items()
    assert values["decode"]["containers"][0]["ports"][0]["containerPort"] == values["routing"]["proxy"]["targetPort"]
    chosen = yaml.safe_load(router["inferenceExtension"]["pluginsCustomConfig"][router["inferenceExtension"]["pluginsConfigFile"]])
    known = {plugin["type"] for plugin in chosen["plugins"]}
    assert {ref["pluginRef"] for profile in chosen["schedulingProfiles"] for ref in profile["plugins"]} <= known
    assert found["install"].count("helm install") == 2


def test_a_router_of_the_engine_stands_before_two_pools():
    """No toy of a repository: programs that are released, by the names of their packages."""
    for engine, program in (("vllm", "vllm-router"), ("sglang", "sglang_router.launch_router")):
        text = emitted("slurm", engine, copies=2, prompts=3, tp=4, prefill_tp=2, disaggregated=True)["launch"]
        ((_, words),) = [call for call in calls(text) if call[0] == program]
        assert (words.count("--prefill"), words.count("--decode")) == (3, 2)


@pytest.mark.parametrize(
    ("program", "engine"),
    [("vllm serve", "vllm"), ("vllm bench serve", "vllm"), ("sglang.launch_server", "sglang"), ("sglang.bench_serving", "sglang")],
)
def test_no_flag_of_an_engine_is_called_misspelt(program, engine):
    assert not {flag: near for flag in KNOWN[program]["options"].split() if (near := nearest_flags(engine, flag))}
