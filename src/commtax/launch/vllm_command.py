"""vLLM's command: experts go over tp x dp, replicas lie on hosts, prompts are handed on by a connector."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace

from commtax.files import need_object, object_of, parse_json, text_of
from commtax.launch.flags import AUTO_EP, FlagReading, WrittenWord, flags_of
from commtax.launch.jobs import RANK, Address, Command, LaunchJob, model_id, server_flags

FLAGS = flags_of("vllm")
DRAFTERS = ("eagle3", "eagle", "dflash", "dspark", "medusa")  # methods that stand in the names of checkpoints
SIDE = 5600  # first port of the side channel between servers


def understand(reading: FlagReading, _loose: list[str], _env: Mapping[str, str]) -> None:
    """Read experts that go over tp x dp, and the hosts of replicas, of which the command names how many are local."""
    values = reading.values
    if values.expert_parallel:
        values.ep = AUTO_EP
    local = int(values.local_dp or 0)
    if local and int(values.dp or 1) > local:
        values.setdefault("nnodes", -(-int(values.dp) // local))
    does = "prefill" if values.prefill_worker else "decode" if values.decode_worker else str(values.mode)
    does = does if does in ("prefill", "decode") else ""
    if "kv_transfer" in values:
        text = str(reading.values.kv_transfer)
        try:
            config = need_object(parse_json(text, "kv_transfer"))
            kind, does = config["kv_connector"], FLAGS.names["role"].get(text_of(config["kv_role"]), "") or does
        except (ValueError, KeyError, TypeError):
            kind = ""
        if kind not in FLAGS.words["kv-transfer-config.kv-connector"] or not does:
            reading.unread.append(f"--kv-transfer-config {text}")
    values["role"] = does


def complete(reading: FlagReading) -> None:
    """Name a drafter by its checkpoint, and take drafts without a method for the model's own."""
    words, method, name = reading.words, "speculative-config.method", "speculative-config.model"
    if name in words:
        kind = next((kind for kind in DRAFTERS if kind in words[name].value.lower()), "draft_model")
        words.setdefault(method, WrittenWord(kind, words[name].written))
    elif "speculative-config.num-speculative-tokens" in words:
        words.setdefault(method, WrittenWord("mtp", words["speculative-config.num-speculative-tokens"].written))  # the model's own


def write(job: LaunchJob) -> Command:
    args = ["vllm serve", model_id(job.question.model), *server_flags(job), *job.technique_flags.args]
    return job.with_techniques(Command(args) if job.hosts == 1 else _multi_host_command(job, args))


def _multi_host_command(job: LaunchJob, args: list[str]) -> Command:
    """Write a server of several hosts: ranks of one replica, replicas on each host, or Ray where a replica is wider than a host."""
    below, ranks = "--headless", job.gpus // job.dp
    if job.dp == 1:
        args += [*FLAGS.spell(nnodes=job.hosts), RANK, *FLAGS.spell(address=job.address)]
        return Command(args, every_host=True, below=below)
    if ranks > job.question.cluster.gpus_per_host:
        args += FLAGS.spell(executor="ray", dp_executor="ray")
        return Command(args, ("VLLM_RAY_DP_PACK_STRATEGY=span",), ray=True)
    local = job.question.cluster.gpus_per_host // ranks
    before, rest = divmod(job.dp, local)  # the last host may have fewer replicas: of a repeated flag the last counts
    size: str = f"$((NODE_RANK=={before}?{rest}:{local}))" if before > 1 else str(rest)
    below = " ".join([below, *FLAGS.spell(local_dp=size)]) if rest else below
    args += [*FLAGS.spell(local_dp=local), f"--data-parallel-start-rank $((NODE_RANK*{local}))"]
    return Command([*args, f"--data-parallel-address {job.address} --data-parallel-rpc-port 13345"], every_host=True, below=below)


def join(command: Command, role: str, number: int, host: str) -> Command:
    """Return a server that has either prompts or decodes, and that others on other hosts can talk to."""
    connector = {"kv_connector": "NixlConnector", **object_of(command.transfer.flags.get("kv-transfer-config"))}
    config = shlex.quote(json.dumps({**connector, "kv_role": FLAGS.theirs("role", role)}))
    channel = [f"VLLM_NIXL_SIDE_CHANNEL_HOST={host}"] * (host != "localhost") + [f"VLLM_NIXL_SIDE_CHANNEL_PORT={SIDE + number}"]
    return replace(command, args=[*command.args, *FLAGS.spell(kv_transfer=config)], variables=(*channel, *command.variables))


def route(prompts: list[Address], decodes: list[Address], port: int, wait_s: int) -> Command:
    """Return the command of what clients of two pools talk to: vLLM's own router (the package vllm-router)."""
    doors = [f"--prefill http://{host}:{at}" for host, at in prompts] + [f"--decode http://{host}:{at}" for host, at in decodes]
    more = [f"--worker-startup-timeout-secs {wait_s}", f"--host 0.0.0.0 --port {port}"]  # servers load their weights first
    return Command(["vllm-router", "--vllm-pd-disaggregation", *doors, *more])
