"""Launch commands: read in every spelling, nothing dropped; written commands read back as the plan they came from."""

import json
import shlex
import subprocess
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here as run
from commtax import catalog
from commtax.catalog import config
from commtax.cost.schedules import SCHEDULES
from commtax.launch.jobs import LaunchJob
from commtax.launch.read_command import parse
from commtax.launch.writing import Seats, benchmark_command, launch_command
from commtax.question import Question
from commtax.spec import Plan
from commtax.statement import Refusal
from commtax.verbs.settling import ask
from each import each
from strategies import questions
from tables import tables
from texts import lacking

DATA = tables(__file__)
VLLM = "vllm serve meta-llama/Llama-3.1-70B-Instruct"
FLAGS = DATA["flags"]
WORDS = st.lists(st.one_of(st.sampled_from([*FLAGS, "8", "$X", "{", "&", "#", "\n"]), st.text(max_size=6)), max_size=12)
SERVED = st.fixed_dictionaries(
    {
        "max_model_len": st.sampled_from([0, 8192]),
        "max_num_seqs": st.sampled_from([0, 64]),
        "max_num_batched_tokens": st.sampled_from([0, 4096]),
        "gpu_memory_utilization": st.sampled_from([0.0, 0.85]),
        "eager": st.booleans(),
    }
)
SERVERS = "\n".join(f"vllm serve Qwen/Qwen3-30B-A3B -dp 2 -ep --max-num-seqs 9 --port 800{i} &" for i in range(4))
BENCH = "vllm bench serve --random-input-len 512 --random-output-len 64 --max-concurrency 64"
ODD_FOLDERS = ("a b;touch PWN$(id)", "it's", 'a"b', "a #b", "$HOME", "a|b&c", "`id`", "-tp 9", "a\\b", "[x]*", "modèle")


def launched(model, plan, engine, cluster, **asked):
    runs = "megatron" if engine in ("megatron", "torchrun") else "vllm"
    return launch_command(Question(model, cluster, catalog.engine(runs), plan, context=4096).but(**asked), engine)


def options_of(found, names):
    return tuple(map(found.options.get, names.split()))


@each(
    "text",
    DATA["one_command_in_many_spellings"],
)
def test_one_command_in_many_spellings(text):
    found = parse(text)
    assert (found.engine, found.model, *options_of(found, "tp pp")) == ("vllm", "meta-llama/Llama-3.1-70B-Instruct", 8, 2)
    assert not found.unread


def test_what_a_vllm_command_says():
    found = parse(
        f"NCCL_P2P_DISABLE=1 {VLLM} -tp 8 -ep --max-model-len 128k --max-num-seqs 64 --enforce-eager --disable-custom-all-reduce "
        "--kv-cache-dtype fp8_e5m2 -q fp8 --gpu-memory-utilization .95 --foo-bar 3 -O3 --all2all-backend pplx "
        """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'"""
    )
    assert (found.options.get("ep"), found.axes["ep"], *options_of(found, "max_model_len max_num_seqs")) == (-1, 8, 128000, 64)
    assert options_of(found, "eager library kv_dtype dtype technique") == (True, "nccl", "fp8", "fp8", "eagle3=3")
    assert found.options.get("gpu_memory_utilization") == 0.95
    assert set(found.unread) == {"NCCL_P2P_DISABLE=1", "--foo-bar 3", "-O3", "--all2all-backend pplx"}


@pytest.mark.parametrize("before", ["{}={} ", "export {}={}\n"])
def test_a_variable_switches_quick_reduce_on(before):
    """… as vLLM on ROCm is told; a written command says it again, and without custom all-reduces there is none."""
    name = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"
    found = parse(before.format(name, "INT4") + f"{VLLM} -tp 8")
    assert (found.options["library"], found.unread) == ("quickreduce-int4", ())
    assert "library" not in parse(before.format(name, "NONE") + f"{VLLM} -tp 8").options
    assert parse(before.format(name, "FP") + f"{VLLM} -tp 8 --disable-custom-all-reduce").options["library"] == "nccl"
    again = run("bill", "llama-3.1-8b", "--cluster", "8xmi300x", "-tp", "8", "--library", "quickreduce-int4", "--emit", "vllm")
    assert f"{name}=INT4 vllm serve" in again.stdout


def test_versions_and_parallel_attention_are_read():
    found = parse("docker run --gpus all vllm/vllm-openai:v0.11.0 --model mistralai/Mistral-7B-v0.1 --tensor-parallel-size 2")
    assert (found.engine, found.version, found.options.get("tp")) == ("vllm", "0.11.0", 2)
    words = (
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank 0 --trust-remote-code"
    )
    plain = parse(f"{words} --disable-cuda-graph")
    assert (plain.axes["tp"], plain.place.nnodes, plain.options.get("eager")) == (16, 2, True)
    spread = parse(f"{words} --dp 8 --enable-dp-attention --moe-a2a-backend deepep --deepep-mode low_latency")
    assert (spread.axes["tp"], spread.axes["dp"], spread.axes["ep"], spread.num_gpus) == (2, 8, 16, 16)
    assert spread.options.get("ep_backend") == "deepep_low_latency"
    settings = "enable_attention_dp: true\nkv_cache_config:\n  dtype: fp8\n  free_gpu_memory_fraction: 0.8"
    command = "trtllm-serve nvidia/DeepSeek-R1-FP4 --tp_size 8 --ep_size 8 --max_batch_size 1024 --config a.yml"
    found = parse(f"cat > a.yml <<EOF\n{settings}\nEOF\n{command}")
    assert (found.axes["tp"], found.axes["dp"], found.axes["ep"]) == (1, 8, 8)
    assert (*options_of(found, "kv_dtype gpu_memory_utilization max_num_seqs"), found.unread) == ("fp8", 0.8, 1024, ())
    absent = parse("trtllm-serve x/y --tp_size 8 --extra_llm_api_options nowhere.yml")
    assert absent.unread == ("--config nowhere.yml (no such file here)",)


def test_megatron_script():
    found = parse(
        "GPUS=8\nMODEL_ARGS=(\n  --num-layers 32\n  --hidden-size 4096 # w\n  --num-attention-heads 32\n  --num-query-groups 8)\n"
        "torchrun --nproc_per_node $GPUS --nnodes 4 --node_rank $RANK pretrain_gpt.py ${MODEL_ARGS[@]} "
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 "
        "--sequence-parallel --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 128 --seq-length 4096 --bf16"
    )
    assert (found.engine, found.axes) == ("megatron", {"tp": 4, "pp": 2, "dp": 4, "ep": 1, "cp": 1})
    assert options_of(found, "zero schedule chunks global_batch context") == (1, "interleaved", 4, 128, 4096)
    assert dict(found.shape)["kv_heads"] == 8
    assert found.options.get("sequence_parallel")
    assert not found.unread


def test_torchtitan_in_tokens_and_in_sequences():
    head = "torchrun --nproc_per_node=8 --rdzv_backend c10d -m torchtitan.train --module llama3 --config llama3_8b"
    old = parse(f"{head} --parallelism.tensor_parallel_degree 2 --training.local_batch_size 2 --training.seq_len 8192")
    new = parse(
        f"{head} --parallelism.tensor_parallel_degree 2 --training.max-context-length 8192 "
        "--training.num-tokens-per-microbatch-per-dp-rank 16384 --training.num-tokens-per-train-step 65536"
    )
    for found in (old, new):
        assert (found.model, found.axes["tp"], found.axes["dp"], found.options.get("micro_batch")) == ("llama-3.1-8b", 2, 4, 2)
        assert options_of(found, "global_batch context zero") == (8, 8192, 3)


def test_servers_beside_each_other_are_replicas_and_share_no_experts():
    two = "\n".join(
        f"CUDA_VISIBLE_DEVICES={d} vllm serve Qwen/QwQ-32B -tp 2 --port {p} &" for d, p in (("0,1", 8000), ("2,3", 8001))
    )
    assert (parse(two).servers.count, parse(two).axes["dp"], parse(two).num_gpus) == (2, 1, 4)
    job = "\n".join(f"{VLLM} -tp 8 -pp 2 --nnodes 2 --node-rank {r} --master-addr h" for r in (0, 1))
    assert (parse(job).servers.count, parse(job).axes["dp"]) == (1, 1)
    bench = parse(f"{VLLM} -tp 8 &\nvllm bench serve --model x --random-input-len 512 --random-output-len 64 --max-concurrency 16")
    assert (bench.axes["dp"], *options_of(bench, "tp concurrency input_len output_len")) == (1, 8, 16, 512, 64)
    found = json.loads(run("simulate", "--cluster", "8xh100-sxm", "--from", f"{SERVERS}\n{BENCH}", "--json").stdout)
    assert ([found["plan"][axis] for axis in ("dp", "ep", "replicas")], found["runs"][0]["concurrency"]) == ([2, 2, 4], 64)
    one = commtax.simulate(
        "qwen3-30b-a3b", "8xh100-sxm", dp=2, ep=2, concurrency=16, input_len=512, output_len=64, max_num_seqs=9, spread=0
    )
    assert found["runs"][0]["tpot_s"] == pytest.approx(float(one.tpot_s))
    assert found["runs"][0]["tokens_per_s"] == pytest.approx(4 * float(one.tokens_per_s))
    done = run("fit", "--cluster", "8xh100-sxm", "--from", f"{SERVERS}\n{BENCH}", "--json")
    assert (done.returncode, json.loads(done.stdout)["fits"]) == (0, True), done.stderr


@pytest.mark.parametrize("text", ["ls -l", "", "torchrun train.py --lr 1", 'vllm serve "x', "LLM(model="])
def test_what_is_no_launched(text):
    with pytest.raises(ValueError, match="from"):
        parse(text)


@given(st.sampled_from([*DATA["heads"], "torchrun -m torchtitan.train"]), WORDS)
@settings(max_examples=150, deadline=None)
def test_anything_is_read_or_refused_in_words(head, words):
    try:
        gpus, says = parse(" ".join([head, *words])).num_gpus, "from"
    except Refusal as refusal:
        gpus, says = 1, "from" if refusal.kind == "misspelt" else str(refusal)
    assert gpus >= 1
    assert says.startswith("from")


@given(questions(engines=("vllm", "sglang", "trtllm")), SERVED, st.sampled_from(["bf16", "fp8"]))
@settings(max_examples=150, deadline=None)
def test_a_written_command_reads_back_as_its_plan(question, limits, kv):
    model, cluster, plan, engine = question
    plan = Plan(tp=plan.tp, pp=plan.pp, dp=plan.dp, ep=plan.ep, order=plan.order, kv_dtype=kv)
    assume(engine.key != "trtllm" or plan.ep <= plan.tp or plan.tp == 1)
    assume(plan.ep <= plan.tp or (plan.ep % plan.tp == 0 and plan.dp % (plan.ep // plan.tp) == 0))
    hosts = -(-int(plan.num_gpus) // int(cluster.gpus_per_host))
    assume(engine.key != "sglang" or plan.num_gpus % hosts == 0)  # it has as many ranks on every host
    found = parse(launched(model, plan, engine.key, cluster, **limits))
    whole = {**found.axes, "dp": found.axes["dp"] * found.servers.count}  # what an engine cannot hold in one server is several
    assert whole == {axis: int(getattr(plan, axis)) for axis in ("tp", "pp", "dp", "ep", "cp")}
    assert (found.engine, catalog.model(found.model), found.options.get("kv_dtype") or "bf16") == (engine.key, model, kv)
    assert bool(found.options.get("eager")) == limits["eager"]
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"):
        assert found.options.get(name, 0) == limits[name]
    assert all(word.startswith("VLLM_RAY") for word in found.unread)


@given(
    st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "gpt-3-175b"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["none", "selective", "full"]),
    st.booleans(),
    st.sampled_from([1, 4]),
)
@settings(max_examples=60, deadline=None)
def test_training_reads_back_too(key, tp, pp, cp, dp, recompute, split, chunks):
    model, cluster = catalog.model(key), catalog.cluster("64x8xh100-sxm")
    interleaved = pp > 1 and chunks > 1
    kinds = {"schedule": "interleaved", "chunks": chunks} if interleaved else {}
    plan = Plan(tp=tp, pp=pp, cp=cp, dp=dp, recompute=recompute, sequence_parallel=split, zero=1, microbatches=2 * pp, **kinds)
    assume(int(plan.num_gpus) <= 8 or int(plan.num_gpus) % 8 == 0)
    found = parse(launched(model, plan, "megatron", cluster, micro_batch=2, context=2048))
    assert found.axes == {"tp": tp, "pp": pp, "dp": dp, "ep": 1, "cp": cp}
    assert (found.options.get("zero"), found.options.get("recompute", "none"), "sequence_parallel" in found.options) == (
        1,
        recompute,
        split,
    )
    assert options_of(found, "micro_batch global_batch context") == (2, 2 * 2 * pp * dp, 2048)
    assert (found.options.get("chunks") or 1, found.options.get("async_axes")) == (
        chunks if interleaved else 1,
        "dp,cp,pp" if interleaved else "dp,cp",
    )
    sharded = Plan(tp=tp, pp=pp, cp=cp, dp=dp, recompute=recompute, zero=3, microbatches=2 * pp)
    titan = parse(launched(model, sharded, "torchrun", cluster, micro_batch=2, context=2048))
    assert titan.axes == found.axes
    assert options_of(titan, "micro_batch global_batch context recompute") == (2, 2 * 2 * pp * dp, 2048, recompute)


@each("engine", ["vllm", "sglang", "trtllm"])
@each("spread", [0.0, 0.25, 0.5])
def test_a_benchmark_draws_the_lengths_that_were_priced(engine, spread):
    """SGLang draws from a share of the stated length up to it, the others to either side of it."""
    asked = ask("llama-3.1-8b", "h100-sxm", input_len=1000, output_len=200, concurrency=8, spread=spread)
    found = parse(benchmark_command(asked, engine))
    assert options_of(found, "input_len output_len concurrency") == (1000, 200, 8)
    assert found.options.get("spread") == pytest.approx(spread, abs=1e-3)


def test_a_benchmark_that_says_no_ratio():
    lengths = "--random-input-len 1024 --random-output-len 128 --max-concurrency 8"
    equal = parse(f"vllm bench serve --model meta-llama/Llama-3.1-8B --dataset-name random {lengths}")
    assert options_of(equal, "input_len spread") == (1024, 0.0)
    below = parse(f"python -m sglang.bench_serving --model meta-llama/Llama-3.1-8B --dataset-name random {lengths}")
    assert options_of(below, "input_len output_len spread") == (512, 64, 1.0), "from one token up to the stated length"
    assert "the mean is 50%" in below.notes[0]


def test_commands_that_cannot_be_written_or_need_a_checkpoint():
    model, cluster = catalog.model("deepseek-v3"), catalog.cluster("8xh200-sxm")
    for plan, engine, says in (
        (Plan(tp=8), "tgi", "one of vllm"),
        (Plan(tp=16), "vllm", "has 8"),
        (Plan(tp=2, dp=4, ep=8), "trtllm", "whole on a GPU"),
        (Plan(dp=8, zero=3), "megatron", "ZeRO 0 or 1"),
        (Plan(dp=8), "torchrun", "FSDP"),
        (Plan(cp=2), "trtllm", "has no flag for pcp"),
    ):
        with pytest.raises(ValueError, match=says):
            launched(model, plan, engine, cluster)
    with pytest.raises(ValueError, match="serving benchmark"):
        benchmark_command(ask("llama-3.1-8b", "h100-sxm"), "megatron")
    cluster = catalog.cluster("8xh100-sxm")
    dense, mixture = catalog.model("llama-3.1-8b"), catalog.model("deepseek-v3")
    assert "--quantization fp8" in launched(dense, Plan(weights_dtype="fp8"), "vllm", cluster)
    for model, dtype, engine in ((dense, "int4", "vllm"), (dense, "fp8", "trtllm"), (mixture, "bf16", "sglang")):
        assert launched(model, Plan(weights_dtype=dtype), engine, cluster).startswith(f"# needs a checkpoint in {dtype}")
    assert "checkpoint" not in launched(mixture, Plan(weights_dtype="fp8"), "vllm", cluster)


def test_hosts_are_told_as_each_engine_wants_it():
    model, cluster = catalog.model("llama-3.1-70b"), catalog.cluster("2x8xh100-sxm")
    wide = Plan(tp=8, pp=2)
    assert "--nnodes 2 --node-rank $NODE_RANK --master-addr" in launched(model, wide, "vllm", cluster)
    assert "--nnodes 2 --node-rank $NODE_RANK --dist-init-addr" in launched(model, wide, "sglang", cluster)
    assert launched(model, wide, "trtllm", cluster).startswith("srun -N 2 --ntasks-per-node 8 --mpi=pmix trtllm-llmapi-launch")
    assert "--data-parallel-size-local 2" in launched(model, Plan(tp=4, dp=4), "vllm", cluster)


@pytest.mark.parametrize("dp", [5, 8, 9, 10, 12])
def test_the_hosts_of_a_server_start_each_of_its_replicas_once(dp):
    model, cluster = catalog.model("deepseek-r1"), catalog.cluster("gb200-nvl72")
    line, remark = launched(model, Plan(dp=dp, ep=dp), "vllm", cluster).splitlines()[:2]
    started = []
    for node in range(-(-dp // cluster.gpus_per_host)):
        words = line + (" " + remark.partition("hosts above 0 add ")[2]) * (node > 0)
        said = shlex.split(subprocess.check_output(["sh", "-c", f"NODE_RANK={node}; echo {words}"], text=True))
        told = dict(pairwise(said))  # of a flag said twice the last counts
        first = int(told["--data-parallel-start-rank"])
        started += range(first, first + int(told["--data-parallel-size-local"]))
    assert started == list(range(dp))


def test_servers_that_end_within_a_host_share_it():
    seats = Seats("HOST", catalog.cluster("gb200-nvl72"))
    job = LaunchJob("vllm", ask("llama-3.1-8b", "gb200-nvl72", dp=9), 9)
    assert [seats.seat(job, number) for number in range(4)] == [(f"$MASTER_ADDR_{number}", "") for number in range(4)]
    (remark,) = seats.remarks()
    assert [f"_{n} (CUDA_VISIBLE_DEVICES={n})" in remark for n in range(4)] == [True] * 4
    with pytest.raises(ValueError, match="equally many ranks on every host"):
        launched(catalog.model("deepseek-r1"), Plan(dp=10, ep=10), "sglang", catalog.cluster("gb200-nvl72"))


def test_from_fills_what_is_not_given():
    words = ("bill", "--from", f"{VLLM} -tp 8 --max-model-len 32k --foo 1", "--cluster", "h100-sxm", "--json")
    found = json.loads(run(*words).stdout)
    assert (found["model"], found["cluster"]["key"] if isinstance(found["cluster"], dict) else found["cluster"]) == (
        "llama-3.1-70b",
        "8xh100-sxm",
    )
    assert any("not understood" in note and "--foo 1" in note for note in found["notes"])
    assert any("no difference" in note and "max-model-len" in note for note in found["notes"])
    assert json.loads(run(*words, "-tp", "4").stdout)["step_s"] > found["step_s"], "an option that is given wins"


def test_from_on_the_other_commands():
    fits = run("fit", "--from", f"{VLLM} -tp 8 --max-model-len 32k", "--cluster", "8xh100-sxm")
    assert fits.returncode == 0
    assert "32,000" in fits.stdout
    loop = "python -m sglang.bench_serving --random-input-len 512 --random-output-len 64 --max-concurrency 16"
    served = run("simulate", "--from", f"{VLLM} -tp 8\n{loop}", "--cluster", "8xh100-sxm", "--json")
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout)["runs"][0]["concurrency"] == 16
    swept = run("compare", "--from", f"{VLLM} -tp 8", "--cluster", "8xh100-sxm", "--over", "batch=1,8", "--csv")
    assert swept.returncode == 0
    assert "from: vllm" in swept.stderr


def test_from_says_what_was_read_and_what_was_not():
    flags = "--quantization fp8 --max-num-seqs 128 --gpu-memory-utilization 0.8 --max-model-len 32768 --block-size 32 --foo 3"
    flags += " --enable-prefix-caching --config_format mistral"
    done = run("simulate", "--from", f"{VLLM} -tp 4 {flags}", "--cluster", "4xh100-sxm", "--max-num-seqs", "64")
    said = " ".join(done.stdout.split())
    assert ", tp 4, dtype fp8, max-model-len 32768, gpu-memory-utilization 0.8 ·" in said, "max-num-seqs was said otherwise"
    assert not lacking(said, VLLM.split()[2], "not in the answer: --foo 3", "makes no difference here: block-size 32")
    assert "prefix caching is on" in said
    assert "mistral" not in said, "how a config is written prices nothing"


def test_from_reads_sizes_of_training():
    shape = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-query-groups 8 --ffn-hidden-size 14336"
    script = f"torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 {shape} --global-batch-size 8"
    trained = run("bill", "--from", script, "--cluster", "h100-sxm")
    assert trained.returncode == 0, trained.stderr
    assert "those of llama-3.1-8b" in trained.stdout


def test_emit_and_mistakes():
    done = run("bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "-tp", "2", "--emit", "vllm")
    assert not lacking(done.stdout, "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2\n", "vllm bench serve")
    assert "all_reduce_perf -b 8192" in done.stdout
    again = run("bill", "--from", f"{VLLM} -tp 8 --max-model-len 32k", "--cluster", "8xh100-sxm", "--emit", "sglang")
    assert "--tp-size 8 --context-length 32000" in again.stdout
    assert again.stdout.count("meta-llama/Llama-3.1-70B-Instruct") >= 2, "the pasted checkpoint, and no other of its sizes"
    for name in ("/models/Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct", "meta-llama/llama-3.1-8b-instruct"):
        written = run("bill", "--from", f"vllm serve {name}", "--cluster", "h100-sxm", "--emit", "vllm").stdout
        wanted = name if name.startswith("/") else "meta-llama/Llama-3.1-8B-Instruct"
        assert not lacking(written, f"vllm serve {wanted}\n", f"--model {wanted} ")
    for words, says in (
        (("bill", "--cluster", "8xh100-sxm"), "MODEL: name one"),
        (("bill", "--from", "ls", "--cluster", "8xh100-sxm"), "--from ls: no such file"),
        (("bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "--emit", "tgi"), "one of vllm"),
        (("bill", "llama-3.1-8b", "--cluster", "8xh100-sxm", "--emit", "vllm", "--exact"), "leave --exact out"),
    ):
        failed = run(*words)
        assert (failed.returncode, failed.stderr.count("\n")) == (2, 1), failed.stderr
        assert says in failed.stderr


@each(
    ("text", "says"),
    DATA["values_that_cannot_be_read_are_refused_by_flag_and_rule"],
)
def test_values_that_cannot_be_read_are_refused_by_flag_and_rule(text, says):
    with pytest.raises(ValueError, match="from") as refused:
        parse(text)
    assert says in str(refused.value)


def test_a_model_and_a_command_of_another():
    failed = run("bill", "llama-3.1-8b", "--from", f"{VLLM} -tp 8", "--cluster", "8xh100-sxm")
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
    assert "'llama-3.1-8b' is not the pasted command's 'meta-llama/Llama-3.1-70B-Instruct'" in failed.stderr
    folder = run("bill", "llama-3.1-8b", "--from", "vllm serve /models/ours -tp 8", "--cluster", "8xh100-sxm")
    assert "/models/ours is taken for llama-3.1-8b" in folder.stdout
    same = run("bill", "Llama-3.1-70B", "--from", f"{VLLM} -tp 8", "--cluster", "8xh100-sxm")
    assert same.returncode == 0, same.stderr
    script = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --global-batch-size 8"
    sizes = run("bill", "llama-3.1-70b", "--from", script, "--cluster", "8xh100-sxm")
    assert (sizes.returncode, "has 80 layers, and the pasted command 32" in sizes.stderr) == (2, True)


def test_flags_that_engines_changed():
    model, cluster = catalog.model("llama-3.1-70b"), catalog.cluster("8x8xh100-sxm")
    eager = launched(model, Plan(tp=8), "sglang", cluster, eager=True)
    assert "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled" in eager
    for old in ("--disable-cuda-graph", "--disable-decode-cuda-graph --disable-prefill-cuda-graph"):
        found = parse(f"python -m sglang.launch_server --model-path m --tp 8 {old}")
        assert (found.options.get("eager"), found.unread) == (True, ())
    piped = launched(model, Plan(tp=8, pp=2, zero=3, recompute="full", microbatches=8), "torchrun", cluster)
    assert "--parallelism.pipeline_parallel_microbatch_size 1 --training.disable_cuda_graphs" in piped
    assert "--training.local_batch_size 8 " in piped, "a batch of one microbatch would be all bubble"
    assert piped.endswith(" activation-checkpoint:full")
    head = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_8b"
    assert parse(f"{head} activation-checkpoint:selective").options.get("recompute") == "selective"
    assert parse(f"{head} --activation_checkpoint.mode full").options.get("recompute") == "full"


@pytest.mark.parametrize(("key", "flags"), DATA["megatron_is_told_what_layers_are_made_of"])
def test_megatron_is_told_what_layers_are_made_of(key, flags):
    text = launched(catalog.model(key), Plan(dp=8, zero=1), "megatron", catalog.cluster("8xh100-sxm"))
    assert all(flag in text for flag in flags)
    assert not parse(text).unread
    told = run("bill", "--from", text, "--cluster", "h100-sxm")
    assert f"those of {key.removesuffix('v3')}" in told.stdout, told.stderr
    learned = launched(catalog.model("opt-1.3b"), Plan(), "megatron", catalog.cluster("8xh100-sxm"))
    assert "rope" not in learned
    assert "--disable-bias-linear" not in learned


def test_sglangs_limits_are_of_the_whole_server():
    """``--max-running-requests`` is cut over all dp groups, ``--chunked-prefill-size`` over those of attention."""
    server = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --max-running-requests 64 --chunked-prefill-size 8192"
    alone, copies, groups = (parse(f"{server} {words}") for words in ("", "--dp 4", "--tp 4 --dp 4 --enable-dp-attention"))
    assert [options_of(x, "max_num_seqs max_num_batched_tokens") for x in (alone, copies, groups)] == [
        (64, 8192),
        (16, 8192),
        (16, 2048),
    ]
    model, cluster = catalog.model("qwen3-30b-a3b"), catalog.cluster("8xh100-sxm")
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 2048}
    written = launched(model, Plan(tp=1, dp=4, ep=4), "sglang", cluster, **limits)
    assert not lacking(written, "--max-running-requests 64", "--chunked-prefill-size 8192")


def test_replicas_are_servers_and_dp_is_the_engines():
    """Two names in every verb: what is said, what is priced, what is launched, and what is read back."""
    place = catalog.cluster("8xh100-sxm")
    for words in (("bill",), ("simulate",), ("fit", "--max-model-len", "8k")):
        servers, ranks = (
            run(*words, "llama-3.1-70b", "--cluster", "8xh100-sxm", "-tp", "4", *more).stdout
            for more in (("--replicas", "2"), ("-dp", "2"))
        )
        assert "8 GPUs = 2 replicas x TP 4" in servers
        assert "8 GPUs = DP 2 x TP 4" in ranks
    one, two = (commtax.bill("qwen3-30b-a3b", place, tp=4, batch=16, replicas=n) for n in (1, 2))
    assert (float(two.step_s), float(two.tokens_per_s)) == (float(one.step_s), pytest.approx(2 * float(one.tokens_per_s)))
    shared = commtax.bill("qwen3-30b-a3b", place, tp=4, batch=16, dp=2)
    assert float(shared.step_s) != float(one.step_s), "vLLM cuts a mixture's experts over its data-parallel ranks"
    whole, part = (
        commtax.simulate("llama-3.1-8b", place, tp=2, replicas=n, concurrency=16 * n, input_len=512, output_len=64) for n in (4, 1)
    )
    assert float(whole.ttft_s) == pytest.approx(float(part.ttft_s))
    assert float(whole.tokens_per_s) == pytest.approx(4 * float(part.tokens_per_s))
    model = catalog.model("llama-3.1-8b")
    for plan, servers, dp in ((Plan(tp=2, replicas=2), 2, 1), (Plan(tp=2, dp=2), 1, 2), (Plan(tp=2, dp=2, replicas=2), 2, 2)):
        read = parse(launched(model, plan, "vllm", place))
        assert (read.servers.count, read.axes["dp"], read.num_gpus) == (servers, dp, int(plan.all_gpus))
    for words in ({"replicas": 3}, {"replicas": 0}, {"replicas": 2, "phase": "train"}):
        with pytest.raises(ValueError, match="replicas"):
            ask("llama-3.1-8b", place, tp=4, **words)
    with pytest.raises(ValueError, match="decode_workers"):
        commtax.simulate("llama-3.1-8b", place, replicas=2, disaggregated=True)


def test_a_commands_own_plan_joins_those_compared():
    words = ("compare", "--cluster", "2x8xh100-sxm", "--json", "--from", f"{VLLM} -tp 8 -pp 2", "--plans")
    for plans, shown in (("tp16,tp8dp2", ["tp8pp2", "tp16", "tp8dp2"]), ("tp16,tp8pp2", ["tp16", "tp8pp2"])):
        done = run(*words, plans)
        assert done.returncode == 0, done.stderr
        assert [row["plan"] for row in json.loads(done.stdout)["rows"]] == shown
    mixture = run("compare", "--cluster", "8xh200-sxm", "--from", "vllm serve deepseek-ai/DeepSeek-V3 -dp 8 -ep", "--plans", "tp8")
    assert "dp8ep is the command's own plan" in mixture.stdout
    refused = run("compare", "llama-3.1-8b", "--cluster", "8xh100-sxm", "-tp", "2", "--plans", "tp8")
    assert (refused.returncode, "leave it out beside --plans" in refused.stderr) == (2, True)


def test_torchtitans_chunks_are_told_by_the_layers_of_a_stage():
    model, cluster = catalog.model("llama-3.1-405b"), catalog.cluster("64x8xh100-sxm")
    plan = Plan(tp=8, pp=6, dp=1, zero=3, schedule="interleaved", chunks=3, microbatches=12)
    written = launched(model, plan, "torchrun", cluster)
    assert "--parallelism.pipeline_parallel_layers_per_stage 7" in written
    found = parse(written)
    assert (found.options.get("schedule"), found.chunks_of(model.num_layers), found.unread) == ("interleaved", 3, ())
    done = run("bill", "--cluster", "64x8xh100-sxm", "--phase", "train", "--from", written, "--json")
    assert json.loads(done.stdout)["plan"]["chunks"] == 3, done.stderr
    usual = parse(launched(model, Plan(pp=2, zero=3, schedule="interleaved", chunks=2, microbatches=4), "torchrun", cluster))
    assert usual.chunks_of(model.num_layers) == 2


@each("schedule", SCHEDULES)
def test_a_schedule_that_megatron_has_no_flag_for_is_said(schedule):
    model, cluster = catalog.model("llama-3.1-8b"), catalog.cluster("8xh100-sxm")
    chunks = 2 if schedule == "interleaved" else 1
    written = launched(model, Plan(pp=4, zero=1, schedule=schedule, chunks=chunks, microbatches=8), "megatron", cluster)
    assert (f"# no flag of Megatron-LM names the schedule {schedule}" in written) == (schedule not in ("1f1b", "interleaved"))
    assert "# no flag" not in launched(model, Plan(zero=1, schedule=schedule, microbatches=8), "megatron", cluster)
    assert parse(written).engine == "megatron"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ODD_FOLDERS)
def test_a_folder_with_an_odd_name_is_quoted_and_pastes_back(tmp_path, name, engine):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config("llama-3.2-1b")))
    words = ("-c", "8xh100-sxm", "--json")
    done = run("bill", folder, "-tp", "4", "-e", engine, "--emit", engine, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for command in (found["emit"]["launch"], found["emit"]["benchmark"]):
        told = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert str(folder) in told.stdout.splitlines()
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]
    again = run("bill", "--from", found["emit"]["launch"], *words)
    assert again.returncode == 0, again.stderr
    pasted = json.loads(again.stdout)
    assert (pasted["plan"], pasted["step_s"], pasted["model"]) == (found["plan"], found["step_s"], found["model"])


def test_a_name_that_no_command_can_hold_is_refused(tmp_path):
    folder = tmp_path / "a\nb"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config("llama-3.2-1b")))
    done = run("bill", folder, "-c", "8xh100-sxm", "--emit", "vllm")
    assert done.returncode == 2
    assert "rename the folder" in done.stderr


@pytest.mark.parametrize(("tp", "code"), [(2, 0), (1, 1)])
def test_servers_for_prompts_must_fit_too(tp, code):
    """A launch of both kinds fits where both do; what was looked at is said, and no word of it is said to make no difference."""
    connector = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"%s"}'"""
    text = f"{VLLM} -tp 4 {connector % 'kv_consumer'}\n{VLLM} -tp {tp} --max-model-len 1024 {connector % 'kv_producer'}\n"
    done = run("fit", "--from", text, "--cluster", "8xh100-sxm", "--max-model-len", "1024")
    assert done.returncode == code, done.stdout + done.stderr
    told = (
        f"looked at: a server for prompts, tp {tp}, which does not fit"
        if code
        else f"pasted were 1 of these and 1 for prompts (tp {tp})"
    )
    assert told in done.stdout
    assert done.stdout.count("looked at") == 1
    assert "makes no difference" not in done.stdout
    words = ("--cluster", "8xh100-sxm", "--input-len", "512", "--max-model-len", "1024")
    assert run("simulate", "--from", text, *words).returncode == code


def test_values_that_are_left_to_the_engine_or_turned_off():
    job = "torchrun --nproc-per-node 8 pretrain_gpt.py --recompute-granularity selective --recompute-modules layernorm moe_act"
    assert parse(job).options.get("recompute") == "layernorm,moe_act"
    assert parse(job.replace("layernorm moe_act", "core_attn")).options.get("recompute") == "selective"
    done = run("simulate", "--from", f"{VLLM} -tp 4 --no-enable-prefix-caching --attention-backend TRITON_ATTN", "-c", "4xh100-sxm")
    said = " ".join(done.stdout.split())
    assert "--no-enable-prefix-caching: prompts that share text are computed whole" in said
    assert "--attention-backend TRITON_ATTN (whose attention kernels run" in said
    found = parse(f"{VLLM} --max-model-len auto --max-num-seqs None -tp 2")
    assert options_of(found, "max_model_len max_num_seqs tp") == (None, None, 2)
