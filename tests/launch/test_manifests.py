"""YAML that starts servers, read and written: it says what the command in it says, and reads back as its plan."""

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
from commtax.catalog.programs import programs
from commtax.launch.deployment import FORMS as EMITTED_FORMS
from commtax.launch.deployment import written
from commtax.launch.read_command import parse
from commtax.launch.read_techniques import nearest_flags
from commtax.launch.yaml_text import yaml_text
from commtax.statement import Refusal
from commtax.verbs.settling import resolve_question
from commtax_lab.emitted import SERVING, calls, parsed_calls
from tables import tables
from texts import put

DATA = tables(__file__)
MODEL = "meta-llama/Llama-3.1-70B-Instruct"
LEAVES = st.sampled_from(["", "1", "8", "vllm", "-c", "sh", "--tp=2", "$(A)", "${A:-2}", "prefill", MODEL, "x/vllm:1", "{{ x }}"])
KEYS = st.sampled_from(" ".join(DATA["words"]).split())
TREES = st.recursive(LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=5), max_leaves=25)
KNOWN = tomllib.loads(Path(__file__).with_name("engine_options.toml").read_text())
GPU = "nvidia.com/gpu"
TEXT = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20)
DOCUMENTS = st.recursive(
    TEXT | st.integers() | st.booleans(),
    lambda part: st.lists(part, min_size=1, max_size=3) | st.dictionaries(TEXT, part, min_size=1, max_size=3),
    max_leaves=12,
)


def deployment(container, kind="Deployment", **spec):
    """A manifest around one container; JSON is YAML."""
    pod = {"spec": {"containers": [{"name": "engine", **container}]}}
    return "---\n" + json.dumps(
        {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "a"}, "spec": {**spec, "template": pod}}
    )


def as_args(flags):
    return deployment({"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", MODEL, *flags]})


def as_script(flags):
    lines = " \\\n  ".join([f"exec vllm serve {MODEL}", *(" ".join(flags[i : i + 2]) for i in range(0, len(flags), 2))])
    return deployment({"image": "any/thing:1", "command": ["/bin/sh", "-c"], "args": [f"set -e\n# start\n{lines}\n"]})


def as_variables(flags):
    env = [{"name": f"V{i}", "value": flags[i]} for i in range(1, len(flags), 2)]
    words = [f"$(V{i})" if i % 2 else flag for i, flag in enumerate(flags)]
    return deployment({"image": "vllm/vllm-openai", "command": ["vllm", "serve", MODEL], "args": words, "env": env})


def as_compose(flags):
    command = " ".join(["--model ${MODEL:-" + MODEL + "}", *flags])
    return (
        f"x-usual: &usual\n  image: vllm/vllm-openai:latest\nservices:\n  llm:\n    <<: *usual\n    command: >\n      {command}\n"
    )


def as_values(flags):
    settings = [f"      extraArgs: {json.dumps(flags)}"]
    head = ["servingEngineSpec:", "  modelSpec:", "  - name: a", "    repository: vllm/vllm-openai", "    tag: latest"]
    return "\n".join([*head, f"    modelURL: {MODEL}", "    vllmConfig:", *settings])


FORMS = (as_args, as_script, as_variables, as_compose, as_values)


@given(
    st.sampled_from(FORMS),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 3]),
    st.integers(1024, 131072),
    st.sampled_from([[], ["--all2all-backend", "pplx"]]),
)
@settings(max_examples=15)
def test_a_form_says_what_its_command_says(form, tp, pp, length, more):
    flags = ["--tensor-parallel-size", str(tp), "--pipeline-parallel-size", str(pp), "--max-model-len", str(length), *more]
    read, plain = parse(form(flags)), parse(f"vllm serve {MODEL} {' '.join(flags)}")
    assert (read.engine, read.model, read.options, read.unread) == (plain.engine, plain.model, plain.options, plain.unread)


def test_beside_a_model_a_manifest_is_no_longer_tp_1(tmp_path):
    file = put(tmp_path, "llm.yaml", as_args(["--tensor-parallel-size", "4", "--max-model-len", "32768"]))
    for words in (["llama-3.1-70b"], []):
        done = run_here("fit", *words, "--cluster", "8xh100-sxm", "--from", file, "--json")
        assert done.returncode == 0
        assert "TP 4" in done.stdout or '"tp": 4' in done.stdout
        assert "32768" in done.stdout
    bare = put(tmp_path, "bare.yaml", as_args(["--max-model-len", "8192"]))
    assert run_here("fit", "--cluster", "8xh100-sxm", "--from", bare).returncode == 1  # TP 1 is what it starts, and it does not fit


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}]}",
        deployment({"image": "nginx", "args": ["-g", "x"]}),
        deployment(
            {"image": "vllm/vllm-openai:v0.9.0", "command": ["/start.sh"], "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        ),
        deployment({"image": "ghcr.io/huggingface/text-generation-inference:3", "args": ["--model-id", MODEL, "--num-shard", "4"]}),
        "a: 1\nb: [1, 2\n",
        "replicas: {{ .Values.n }}\n{{- if .Values.x }}\nargs: [a]\n{{- end }}",
        "&a [*a]: 1",
        "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]",
        "a: " + "[" * 200_000,
        "a:\n" + "- " * 100_000,
    ],
)
def test_what_starts_no_known_server_is_refused(text, tmp_path):
    done = run_here("bill", "llama-3.1-70b", "--cluster", "8xh100-sxm", "--from", put(tmp_path, "x.yaml", text))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: from")


def test_a_foreign_file_is_not_quoted(tmp_path):
    file = tmp_path / "secret"
    for text in ("hunter2 is the password\n", "password: hunter2\n", "a: [hunter2\n", "hunter2='"):
        file.write_text(text)
        done = run_here("bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "--from", file)
        assert done.returncode == 2
        assert "hunter2" not in done.stderr
        assert "secret" in done.stderr or "quotes" in done.stderr


def test_prompts_and_decoding_are_two_pools():
    connector = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
    args = f"args: ['--kv-transfer-config', '{connector}', '--max-model-len', '4096']"
    container = f"  containers:\n  - image: x/llm-d-cuda:1\n    modelCommand: vllmServe\n    {args}\n"
    pool = "  parallelism: {tensor: %d}\n  replicas: %d\n" + container
    values = f"modelArtifacts: {{uri: 'hf://{MODEL}'}}\ndecode:\n{pool % (4, 1)}prefill:\n{pool % (2, 3)}"
    for phase, tp in (("prefill", 2), ("decode", 4)):  # a step is billed on the server that takes it
        billed = run_here("bill", "--from", values, "--cluster", "2x8xh100-sxm", "--phase", phase, "--json")
        assert json.loads(billed.stdout)["plan"]["tp"] == tp
    found = parse(values)
    assert (found.model, found.options["tp"], found.unread) == (MODEL, 4, ())
    assert (found.servers.count, found.servers.prefill_workers, found.servers.prefill_tp) == (1, 3, 2)
    service = (
        f"kind: LLMInferenceService\nspec:\n  model: {{uri: 'hf://{MODEL}'}}\n  replicas: 2\n"
        "  parallelism: {data: 16, dataLocal: 8, expert: true, tensor: 1}\n"
        "  router: {scheduler: {template: {containers: [{name: main, args: [--pool-name, x]}]}}}\n"
        "  prefill: {parallelism: {tensor: 8}}\n"
    )
    found = parse(service)
    assert (found.options["dp"], found.options["ep"], found.servers.count) == (16, -1, 2)
    assert (found.servers.prefill_workers, found.servers.prefill_tp, found.servers.prefill_dp) == (1, 8, 1)


def test_hosts_of_one_server_are_not_servers():
    words = ["python3", "-m", "sglang.launch_server", "--model-path", MODEL, "--tp", "16", "--nnodes", "$(LWS_GROUP_SIZE)"]
    pod = {"spec": {"containers": [{"command": words, "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    group = {"size": "2", "leaderTemplate": pod, "workerTemplate": pod}
    found = parse("---\n" + json.dumps({"kind": "LeaderWorkerSet", "spec": {"replicas": "3", "leaderWorkerTemplate": group}}))
    assert (found.engine, found.options["tp"], found.servers.count, found.notes) == ("sglang", 16, 3, ())
    words[-1] = "2"
    found = parse(deployment({"command": words}, kind="StatefulSet", replicas="2"))
    assert (found.servers.count, found.place.nnodes) == (1, 2)
    found = parse(
        "kind: InferenceService\nspec:\n  predictor:\n    model:\n      modelFormat: {name: huggingface}\n"
        f"      args: [--model_name=a, --model_id={MODEL}]\n      resources: {{limits: {{nvidia.com/gpu: '4'}}}}\n"
        "    workerSpec: {pipelineParallelSize: 2, tensorParallelSize: 4}\n"
    )
    assert (found.model, found.options, found.place.nnodes, found.notes) == (MODEL, {"tp": 4, "pp": 2}, 2, ())


def test_sums_of_the_shell_and_files_of_a_config_map():
    script = "vllm serve x/y --data-parallel-size $((LWS_GROUP_SIZE * DP_SIZE_LOCAL)) --data-parallel-size-local $DP_SIZE_LOCAL"
    worker = {"spec": {"containers": [{"command": ["bash", "-c", script], "env": [{"name": "DP_SIZE_LOCAL", "value": "8"}]}]}}
    group = {"spec": {"leaderWorkerTemplate": {"size": "4", "workerTemplate": worker}}}
    assert parse("---\n" + json.dumps(group)).options["dp"] == 32
    kept = "kind: ConfigMap\ndata:\n  e.yaml: |\n    tensor_parallel_size: 8\n    kv_cache_config:\n      dtype: fp8\n---\n"
    found = parse(kept + deployment({"command": ["trtllm-serve", "x/y", "--extra_llm_api_options", "/config/e.yaml"]}))
    assert (found.options["tp"], found.options["kv_dtype"], found.unread) == (8, "fp8", ())


def test_of_several_models_one_is_taken_and_the_others_are_named(tmp_path):
    file = tmp_path / "v.yaml"
    spec = "  - {name: %s, modelURL: %s, vllmConfig: {tensorParallelSize: %d}}\n"
    file.write_text(
        "servingEngineSpec:\n  modelSpec:\n" + spec % ("small", "meta-llama/Llama-3.1-8B", 1) + spec % ("large", MODEL, 4)
    )
    for words, tp in (([f"{file}"], 1), ([f"{file}#large"], 4)):
        done = run_here("bill", "--cluster", "8xh100-sxm", "--from", *words)
        assert (done.returncode, "TP 4" in done.stdout) == (0, tp == 4)
        assert "other models" in done.stdout
    assert "TP 4" in run_here("bill", "llama-3.1-70b", "--cluster", "8xh100-sxm", "--from", file).stdout
    lost = run_here("bill", "--cluster", "8xh100-sxm", "--from", f"{file}#medium")
    assert (lost.returncode, "small, large" in lost.stderr) == (2, True)


def test_gpus_that_no_plan_uses_and_settings_alone_are_said():
    found = parse(
        deployment({"image": "vllm/vllm-openai", "args": ["--model", MODEL], "resources": {"limits": {"nvidia.com/gpu": "8"}}})
    )
    assert [note.code for note in found.notes] == ["GPUs asked for"]
    two = deployment({"image": "vllm/vllm-openai", "args": ["--model", MODEL, "--foo", "1"]})
    opaque = deployment({"image": "own/thing", "command": ["/run.sh"], "resources": {"limits": {"amd.com/gpu": "8"}}})
    assert parse(two + "\n" + opaque).unread == ("--foo 1", "what starts a on 8 GPUs")
    found = parse(f"# of vllm serve --config\nmodel: {MODEL}\ntensor-parallel-size: 4\nmax-model-len: 8192\nenforce-eager: true\n")
    assert (found.model, found.options) == (MODEL, {"tp": 4, "max_model_len": 8192, "eager": True})
    assert [note.code for note in found.notes] == ["assumed engine"]


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=5))
@settings(max_examples=60)
def test_any_tree_is_read_or_refused(tree):
    try:
        said = parse("---\n" + json.dumps(tree)).engine
    except ValueError as refused:
        said = str(refused)
    assert said in {one.key for one in programs()} or said.startswith("from")


@pytest.mark.parametrize("groups", [{"Worker": 4}, {"Master": 1, "Worker": 3}])
def test_hosts_of_a_training_job_are_one_job(groups):
    """Containers of a PyTorchJob are the hosts of one torchrun job, and no servers."""
    command = "torchrun --nproc_per_node=8 --nnodes=4 pretrain_gpt.py --tensor-model-parallel-size 8 --global-batch-size 128"
    pod = {"spec": {"containers": [{"name": "pytorch", "image": "nvcr.io/nvidia/pytorch:25.01", "command": command.split()}]}}
    spec = {"pytorchReplicaSpecs": {name: {"replicas": count, "template": pod} for name, count in groups.items()}}
    read = parse("---\n" + json.dumps({"kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": spec}))
    assert (read.servers.count, read.options["tp"], read.options["dp"]) == (1, 8, 4)


def test_servers_that_do_not_start_as_pasted_end_alike_and_racks_keep_their_names():
    """The chart uses all 8 GPUs, so none idles beside the server for prompts that ``fit`` looks at."""
    words = ("--from", str(Path(__file__).parents[2] / "examples" / "deployments" / "llm-d-values.yaml"), "-c", "8xh100")
    fit, closed = run_here("fit", *words), run_here("simulate", *words, "--concurrency", "4")
    timed = run_here("simulate", *words, "--request-rate", "4", "--num-prompts", "100")
    assert (fit.returncode, closed.returncode, timed.returncode) == (1, 1, 1)
    assert "GPUs idle" not in fit.stdout
    assert closed.stdout.startswith("vLLM would not start")
    done = run_here("fit", "--from", "vllm serve meta-llama/Llama-3.1-8B -tp 4", "-c", "gb200-nvl72")
    assert " on gb200-nvl72 (72 GPUs" in done.stdout
    assert "as the command needs it" not in done.stdout


def emitted(form, engine, model="llama-3.1-70b", cluster="2x8xh100-sxm", copies=1, prompts=0, **options):
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


@given(st.sampled_from(EMITTED_FORMS), st.sampled_from(SERVING), plans())
@settings(max_examples=25, deadline=None)
def test_what_is_written_reads_back_as_its_plan(form, engine, drawn):
    model, cluster, sizes, copies, prompts, apart = drawn
    try:
        text = emitted(form, engine, model, cluster, copies, prompts, **sizes, **apart)["launch"]
    except Refusal:  # compose on several hosts, MPI, a chart of another engine: each has a test that reads its words
        return
    found = parse(text)
    assert (found.engine, found.unread, found.servers.count) == (engine, (), copies)
    assert ({axis: found.axes[axis] for axis in sizes}, found.servers.prefill_workers or 0) == (sizes, prompts)
    if prompts:
        assert (found.servers.prefill_tp, found.servers.prefill_dp) == (apart["prefill_tp"], apart["prefill_dp"])
    if form != "slurm":
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(text))


@given(st.dictionaries(TEXT, DOCUMENTS, min_size=1, max_size=3))
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
    return {(one["kind"], one["metadata"]["name"]): one.get("spec", one) for one in yaml.safe_load_all(text)}


def pods(spec):
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
    assert ((checked.returncode, checked.stderr), text.count("\nsrun ")) == ((0, ""), 2 + prompts)
    nodes = int(text.split("--nodes=")[1].split("\n")[0])
    assert nodes == (2 * max(1, sizes["tp"] * sizes.get("pp", 1) * sizes.get("dp", 1) // 8) if not prompts else 2)


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


def test_llm_d_and_routers_come_with_what_stands_before_two_pools():
    found = emitted("llm-d", "vllm", copies=2, prompts=3, tp=4, prefill_tp=2, disaggregated=True)
    values, router = yaml.safe_load(found["launch"]), yaml.safe_load(found["router"])
    label = router["inferencePool"]["modelServers"]["matchLabels"]
    assert label.items() <= values["modelArtifacts"]["labels"].items()
    assert values["decode"]["containers"][0]["ports"][0]["containerPort"] == values["routing"]["proxy"]["targetPort"]
    chosen = yaml.safe_load(router["inferenceExtension"]["pluginsCustomConfig"][router["inferenceExtension"]["pluginsConfigFile"]])
    known = {plugin["type"] for plugin in chosen["plugins"]}
    assert {ref["pluginRef"] for profile in chosen["schedulingProfiles"] for ref in profile["plugins"]} <= known
    assert found["install"].count("helm install") == 2
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
