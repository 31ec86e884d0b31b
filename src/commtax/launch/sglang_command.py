"""SGLang's command: ``--tp`` counts all GPUs of a server whose attention is data-parallel."""

from collections.abc import Mapping
from dataclasses import replace

from commtax.launch.flags import FlagReading, Value, flags_of
from commtax.launch.jobs import EVERY_HOST, PORT, RANK, Address, Command, LaunchJob, above_one, model_id, server_flags
from commtax.launch.launch_record import group_attention
from commtax.statement import Refusal

FLAGS = flags_of("sglang")
DOOR = 8998  # first port where servers for prompts are met
MODES = {"low_latency": "low_latency", "high_throughput": "normal"}
EXCHANGES = {"flashinfer": "flashinfer_nvlink_one_sided", "nixl": "nixl_ep"}
TWO_MODES = ("deepep", "mori")
"""Exchanges with kernels for prompts and others for decodes, and those with one kind."""


def understand(reading: FlagReading, _loose: list[str], _env: Mapping[str, str]) -> None:
    """``--tp`` counts all GPUs of a server where attention is data-parallel, dp of them groups of tp / dp, or splits prompts."""
    values, tp = reading.values, int(reading.values.tp or 1)
    splits = int(values.cp or 1)
    if tp % splits:
        raise Refusal(f"from: prompts split over {splits} ranks do not divide the server's {tp} GPUs", "from")
    if str(values.role) not in ("prefill", "decode"):
        values.pop("role", None)
    exchange = str(values.a2a or "none")
    if exchange in TWO_MODES or values.deepep:
        low = str(values.deepep_mode) in ("low_latency", "auto")  # auto: prompts in bulk, decodes with low latency
        maker = exchange if exchange in TWO_MODES else "deepep"
        values.ep_backend, values.ep = f"{maker}_{'low_latency' if low else 'high_throughput'}", tp
    elif exchange in EXCHANGES:
        values.ep_backend, values.ep = EXCHANGES[exchange], tp
    elif exchange != "none":
        reading.unread.append(f"--moe-a2a-backend {exchange}")
    if values.expert_parallel:
        values.ep = tp if values.ep == "" else values.ep
    values.eager = bool(values.eager) or str(values.graphs).lower() == "disabled"
    values.tower = "data" if values.tower_data else ""
    if values.spread != "":
        _drawn_below(reading)
    groups = int(values.dp or 1)  # limits are of the whole server: every group gets its part
    values.max_num_seqs = _part(values.max_num_seqs, groups)
    values.max_num_batched_tokens = _part(values.max_num_batched_tokens, groups if values.dp_attention else 1)
    if splits > 1:
        values.tp = tp // splits
    if values.dp_attention:
        group_attention(reading, groups)


def _part(limit: Value, parts: int) -> Value:
    return limit if limit == "" else max(1, int(limit) // max(1, parts))


def _drawn_below(reading: FlagReading) -> None:
    """Lengths are drawn from a share of the stated length up to all of it."""
    values, ratio = reading.values, float(reading.values.spread)
    mean = (1 + ratio) / 2
    if ratio < 1:
        reading.note(
            "mean length", f"lengths are drawn from {ratio:.0%} of the stated ones up to all: the mean is {mean:.0%} of them"
        )
    lengths = (values.input_len, values.output_len)
    values.input_len, values.output_len = (n if n == "" else max(1, round(int(n) * mean)) for n in lengths)
    values.spread = (1 - ratio) / (1 + ratio)


def write(job: LaunchJob) -> Command:
    limits, how, shared = job.question.limits, job.question.what_if, bool(job.plan.ep > job.plan.tp)
    inner, (maker, _, kind) = job.dp if shared else 1, how.ep_backend.partition("_")
    mode = MODES.get(kind, "")
    if mode == "low_latency" and not job.apart:  # prompts go in bulk, as they are priced
        mode = "auto"
    exchange = maker if mode else next((name for name, backend in EXCHANGES.items() if backend == how.ep_backend), "")
    args = ["python -m sglang.launch_server", *FLAGS.spell(model=model_id(job.question.model))]
    args += server_flags(
        job,
        tp=above_one(job.plan.tp * job.plan.cp * inner),
        dp_attention=shared,
        expert_parallel=False,
        a2a=exchange,
        deepep_mode=mode,
        max_num_seqs=limits.max_num_seqs * job.dp,  # of the whole server: every group gets its part
        max_num_batched_tokens=limits.max_num_batched_tokens * inner,
        eager=False,
        graphs="disabled --cuda-graph-backend-prefill disabled" if how.eager else "",
    )
    if job.hosts == 1:
        return Command(args)
    args += [*FLAGS.spell(nnodes=job.hosts), RANK, *FLAGS.spell(address=f"{job.address}:5000")]
    return Command(args, remark=EVERY_HOST)


def join(command: Command, role: str, number: int, _host: str) -> Command:
    """A server that has either prompts or decodes."""
    door = [f"--disaggregation-bootstrap-port {DOOR + number}"] * (role == "prefill")
    return replace(command, args=[*command.args, *FLAGS.spell(role=role), "--disaggregation-transfer-backend nixl", *door])


def route(prompts: list[Address], decodes: list[Address]) -> list[str]:
    """What clients talk to."""
    doors = [f"--prefill http://{host}:{port} {DOOR + port - PORT}" for host, port in prompts]
    doors += [f"--decode http://{host}:{port}" for host, port in decodes]
    return [f"python -m sglang_router.launch_router --pd-disaggregation {' '.join(doors)} --host 0.0.0.0 --port 8000"]
