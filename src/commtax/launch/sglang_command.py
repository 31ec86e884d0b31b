"""SGLang's command: ``--tp`` counts all GPUs of a server whose attention is data-parallel."""

from collections.abc import Mapping
from dataclasses import replace

from commtax.launch.flags import FlagReading, FlagValues, Value, WrittenWord, flags_of, group_attention
from commtax.launch.jobs import PORT, RANK, Address, Command, LaunchJob, above_one, model_id, server_flags
from commtax.statement import Refusal

FLAGS = flags_of("sglang")
DOOR = 8998  # first port where servers for prompts are met


def understand(reading: FlagReading, _loose: list[str], _env: Mapping[str, str]) -> None:
    """Read sizes where ``--tp`` counts all GPUs: of data-parallel attention in groups of tp / dp, or of split prompts."""
    values, tp = reading.values, int(reading.values.tp or 1)
    splits = int(values.cp or 1)
    if tp % splits:
        raise Refusal(f"from: prompts split over {splits} ranks do not divide the server's {tp} GPUs", "from")
    if str(values.role) not in ("prefill", "decode"):
        values.pop("role", None)
    if str(values.a2a or "none").lower() != "none" or values.deepep:
        values.ep = tp  # whichever exchange it is
        reading.unread += [f"--moe-a2a-backend {values.a2a}"] if values.ep_backend == "" else []
    if values.expert_parallel and values.ep == "":
        values.ep = tp
    values.eager = bool(values.eager) or str(values.graphs).lower() == "disabled"
    values.tower = "data" if values.tower_data else ""
    if values.spread != "":
        _drawn_below(reading)
    groups = int(values.dp or 1)  # limits are of the whole server: every group gets its part
    values.max_num_seqs = _share(values.max_num_seqs, groups)
    values.max_num_batched_tokens = _share(values.max_num_batched_tokens, groups if values.dp_attention else 1)
    if splits > 1:  # ranks of a prompt are among those of tp
        values.tp = max(1, tp // splits)
    if values.dp_attention:
        group_attention(reading, groups)


def complete(reading: FlagReading) -> None:
    """Fill in DeepEP's automatic mode, and the model's own drafter where drafts have no checkpoint."""
    words, values = reading.words, reading.values
    if values.deepep:
        words.setdefault("moe-a2a-backend", WrittenWord("deepep", "--enable-deepep-moe"))
    algorithm = words.get("speculative-algorithm")
    if algorithm and algorithm.value.upper() == "EAGLE" and "speculative-draft-model-path" not in words:
        words["speculative-algorithm"] = WrittenWord("NEXTN", algorithm.written)
    steps, rows = (words.get(f"speculative-num-{name}") for name in ("steps", "draft-tokens"))
    if steps and rows and steps.value.isdigit() and rows.value.isdigit() and int(rows.value) > int(steps.value) + 1:
        tree = f"drafts are a tree of {int(rows.value) - 1}, {steps.value} deep"
        reading.note("tree", f"{tree}: priced as the one path of it that can be accepted")


def _share(limit: Value, parts: int) -> Value:
    return limit if limit == "" else max(1, int(limit) // max(1, parts))


def _drawn_below(reading: FlagReading) -> None:
    """Replace lengths that are drawn from a share of the stated length up to all of it by their mean and spread."""
    values, ratio = reading.values, float(reading.values.spread)
    mean = (1 + ratio) / 2
    if ratio < 1:
        drawn = f"lengths are drawn from {ratio:.0%} of the stated ones up to all"
        reading.note("mean length", f"{drawn}: the mean is {mean:.0%} of them")
    lengths = (values.input_len, values.output_len)
    values.input_len, values.output_len = (n if n == "" else max(1, round(int(n) * mean)) for n in lengths)
    values.spread = (1 - ratio) / (1 + ratio)


def write(job: LaunchJob) -> Command:
    limits, how, shared = job.question.limits, job.question.what_if, bool(job.plan.ep > job.plan.tp)
    inner = job.dp if shared else 1
    args = ["python -m sglang.launch_server", *FLAGS.spell(model=model_id(job.question.model))]
    graphs = "disabled --cuda-graph-backend-prefill disabled" if how.eager else ""
    facts = FlagValues(tp=above_one(job.plan.tp * job.plan.cp * inner), dp_attention=shared, expert_parallel=False, eager=False)
    facts.max_num_seqs = limits.max_num_seqs * job.dp  # of the whole server: every group gets its part
    args += server_flags(job, **facts, max_num_batched_tokens=limits.max_num_batched_tokens * inner, graphs=graphs)
    args += job.technique_flags.args
    if job.hosts == 1:
        return job.with_techniques(Command(args))
    if job.gpus % job.hosts:
        rule = f"SGLang starts equally many ranks on every host, and {job.gpus} GPUs do not divide over {job.hosts} hosts"
        raise Refusal.of(f"{rule}; vllm takes such a plan", emit="sglang")
    args += [*FLAGS.spell(nnodes=job.hosts), RANK, *FLAGS.spell(address=f"{job.address}:5000")]
    return job.with_techniques(Command(args, every_host=True))


def join(command: Command, role: str, number: int, _host: str) -> Command:
    """Return a server that has either prompts or decodes."""
    door = [f"--disaggregation-bootstrap-port {DOOR + number}"] * (role == "prefill")
    carried = command.transfer.args or ["--disaggregation-transfer-backend nixl"]
    return replace(command, args=[*command.args, *FLAGS.spell(role=role), *carried, *door])


def route(prompts: list[Address], decodes: list[Address], port: int, wait_s: int) -> Command:
    """Return the command of what clients of two pools talk to: SGLang's own router (the package sglang-router)."""
    doors = [f"--prefill http://{host}:{at} {DOOR + max(0, at - PORT)}" for host, at in prompts]  # one door in a container
    doors += [f"--decode http://{host}:{at}" for host, at in decodes]
    more = [f"--worker-startup-timeout-secs {wait_s}", f"--host 0.0.0.0 --port {port}"]  # servers load their weights first
    return Command(["python -m sglang_router.launch_router --pd-disaggregation", *doors, *more])
