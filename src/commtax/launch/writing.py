"""A plan -> the command that launches it, and the commands that would check it, with flags of November 2026."""

from dataclasses import replace
from itertools import islice
from math import floor

from commtax import catalog
from commtax.catalog.programs import programs
from commtax.cost.placement import span
from commtax.files import table
from commtax.launch.flags import command_of, flags_of
from commtax.launch.jobs import MASTER, PORT, Address, LaunchJob, checkpoint_remark, model_id, start_s
from commtax.ledger import Line
from commtax.question import Question
from commtax.rules.questions import spread_within_limit
from commtax.spec import Cluster, Plan, Program
from commtax.statement import Refusal
from commtax.units import format_bytes
from commtax.verbs.billing import StepBill
from commtax.verbs.disaggregation import prompter
from commtax.verbs.fit_advice import startable

CLIENTS = 8000  # the port that clients ask
RATED = 1000  # requests of a benchmark at a rate, or those of a minute


class Seats:
    """GPUs of a cluster's hosts that servers have not taken yet."""

    def __init__(self, word: str, cluster: Cluster, apart: bool = False) -> None:
        self.word, self.each = word, cluster.gpus_per_host
        self.free = [cluster.gpus_per_host] * cluster.num_hosts
        self.away = apart or cluster.num_hosts > 1
        self.ends: list[
            list[tuple[str, int]]
        ] = []  # by host that several servers end on: the first host of each, and its GPUs here

    def seat(self, job: LaunchJob, number: int) -> tuple[str, str]:
        """Return the host of a server and the GPUs that it sees there. A server of several hosts has them all."""
        host = next((h for h, room in enumerate(self.free) if room >= job.gpus), None)
        if host is None:
            name, rest = f"{MASTER}_{number}", job.gpus % self.each
            end = next((end for end in self.ends if sum(gpus for _, gpus in end) + rest <= self.each), [])
            self.ends += [end] if rest and not end else []
            end += [(name, rest)] if rest else []  # its last GPUs, on a host where another one left some
            return name, ""
        first = self.each - self.free[host]
        self.free[host] -= job.gpus
        seen = ",".join(str(first + i) for i in range(job.gpus))
        return f"${self.word}_{host}" if self.away else "localhost", f"CUDA_VISIBLE_DEVICES={seen} "

    def remarks(self) -> list[str]:
        """Return which servers end on one host, and the GPUs that each sees there."""
        remarks = []
        for end in (end for end in self.ends if len(end) > 1):
            order = map(str, range(self.each))
            parts = [f"{name} (CUDA_VISIBLE_DEVICES={','.join(islice(order, gpus))})" for name, gpus in end]
            remarks.append(f"# one host is the last of {len(end)} servers, with these GPUs for each: {', '.join(parts)}")
        return remarks


def launch_command(question: Question, engine: str, devices: str = "") -> str:
    """Write the command that starts a question's plan, on chosen ``devices``, or a line for each replica that is a server.

    >>> from commtax.verbs.settling import ask
    >>> print(launch_command(ask("llama-3.1-8b", "8xh100-sxm", tp=2), "vllm"))
    vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2
    """
    plan, cluster, made_by = question.plan, question.cluster, _emitted_program(engine)
    if plan.all_gpus > cluster.num_gpus:
        raise Refusal.about(emit=f"the plan has {plan.all_gpus} GPUs, but {cluster.key} has {cluster.num_gpus}")
    inner = int(plan.dp) if made_by.trains else groups_per_server(plan, made_by, cluster)
    job = LaunchJob(made_by.key, question, inner, int(plan.dp) // inner * int(plan.replicas))
    command = command_of(job.engine).write(job)
    if made_by.trains:
        return "\n".join([*[command.warning] * bool(command.warning), command.line("")])
    seen = f"CUDA_VISIBLE_DEVICES={devices} " if devices else ""
    lines = [seen + command.line("llm")] if job.servers == 1 else _replicas(job, devices, made_by.port)
    return "\n".join([*checkpoint_remark(job), *command.written("llm"), *lines, *command.remarks()])


def _emitted_program(name: str) -> Program:
    by_name = {one.emitted_as: one for one in programs()}
    if name not in by_name:
        raise Refusal.of(f"one of {', '.join((*by_name, *table('launch/deployments.toml')['forms'].split()))}", emit=name)
    return by_name[name]


def groups_per_server(plan: Plan, made_by: Program, cluster: Cluster) -> int:
    """Count the data-parallel groups of one server: those that share experts, or all where the engine starts replicas itself."""
    tp, dp, ep, pp = int(plan.tp), int(plan.dp), int(plan.ep), int(plan.pp)
    sharing = ep // tp if ep > tp else 1
    if dp % sharing or (ep > tp and ep % tp):
        raise Refusal.of(f"experts over {ep} ranks do not make whole groups of tp={tp} and dp={dp}", emit=made_by.key)
    if sharing > 1 and tp > 1 and catalog.engine(made_by.key).sends.attention_dp_whole:  # a plan of another engine
        raise Refusal.of(f"its attention data parallelism keeps attention whole on a GPU: tp 1, not {tp}", emit=made_by.key)
    if sharing > 1 or ep > 1 or not made_by.replicas:
        return sharing
    # Experts of a mixture are then cut over all of the replicas, which is what a bill prices.
    return dp if made_by.replicas == "all" or tp * pp * dp <= cluster.gpus_per_host else 1


def _replicas(job: LaunchJob, devices: str, port: int) -> list[str]:
    lines, each, write = [], job.gpus, command_of(job.engine).write
    order = devices.split(",") if devices else [str(i) for i in range(job.question.cluster.gpus_per_host)]
    per_host = max(1, len(order) // each)
    for i in range(job.servers):
        start = i % per_host * each
        show = f"CUDA_VISIBLE_DEVICES={','.join(order[start : start + each])} " if job.hosts == 1 else ""
        one = write(replace(job, address=f"{MASTER}_{i}")).line("llm")
        host = f"  # host {i // per_host}" if job.hosts == 1 and job.servers > per_host else ""
        lines.append(f"{show}{one} --port {port + i % per_host} &{host}")
    return [*lines, f"# {job.servers} servers: put a router or load balancer in front"]


def apart_command(question: Question, engine: str) -> str:
    """Write the commands of a plan whose prompts have servers of their own: a line for each, the largest first, and a router."""
    workers, cluster, made_by = question.requests, question.cluster, _emitted_program(engine)
    prompts = startable(prompter(question))
    counts = {"prefill": (prompts, workers.prefill_workers), "decode": (question, workers.decode_workers)}
    jobs: dict[str, LaunchJob] = {}
    for role, (q, count) in counts.items():
        jobs[role] = LaunchJob(made_by.key, q, groups_per_server(q.plan, made_by, q.cluster), count or 1, role=role)
    free = dict.fromkeys(jobs, Seats("HOST", cluster))
    if workers.prefill_cluster:
        free = {"prefill": Seats("PREFILL_HOST", prompts.cluster, apart=True), "decode": Seats("DECODE_HOST", cluster, apart=True)}
    files, lines, remarks = list[str](), list[str](), list[str]()
    at: dict[str, list[Address]] = {"prefill": [], "decode": []}
    for role, job in sorted(jobs.items(), key=lambda pair: -pair[1].gpus):
        for number in range(len(lines), len(lines) + job.servers):
            name, devices = free[role].seat(job, number)
            command = replace(job, address=name).command(number, name)
            files += command.written(role) if not at[role] else []
            away = " --host 0.0.0.0" if name != "localhost" and not made_by.listens else ""
            lines.append(f"{devices}{command.line(role)}{away} --port {PORT + number} &  # {role}, on {name}")
            at[role].append((name, PORT + number))
            remarks.append("\n".join(command.remarks(role)))
    remarks += [remark for seats in free.values() for remark in seats.remarks()]
    remarks = [remark for remark in dict.fromkeys(remarks) if remark]
    router = command_of(made_by.key).route(at["prefill"], at["decode"], CLIENTS, start_s(question))
    head, last = [*checkpoint_remark(jobs["decode"]), *files], [*router.written("disagg"), router.line("disagg")]
    return "\n".join([*head, *lines, *remarks, *last])


def benchmark_command(question: Question, engine: str) -> str:
    """Return the engine's benchmark that ``commtax simulate`` predicts and ``commtax audit`` reads: clients, or a rate."""
    name, requests = model_id(question.model), question.requests
    able = {one.emitted_as: one for one in programs() if one.benchmark}
    if engine not in able:
        raise Refusal.of(f"{', '.join(able)} have a serving benchmark; training is checked with its own log", emit=engine)
    (tool, exact, kept), spell = able[engine].benchmark, flags_of(able[engine].key).spell
    spread, clients = float(spread_within_limit(question)), int(requests.concurrency)
    # vLLM's and TensorRT-LLM's range ratio is the spread around the stated length, SGLang's the shortest over the longest.
    top, ratio = (1 + spread, (1 - spread) / (1 + spread)) if able[engine].range_from_longest else (1.0, spread)
    stated, answers = round(float(requests.input_len) * top), round(float(requests.output_len) * top)
    lengths = spell(input_len=stated, output_len=answers, range_ratio=f"{floor(1e4 * ratio + 1e-6) / 1e4:g}")
    load = [*spell(concurrency=clients), f"--num-prompts {10 * clients}"]
    if rate := question.offered.request_rate:
        load = [f"--request-rate {rate:g}", f"--num-prompts {max(RATED, int(60 * rate))}"]
    return " ".join([tool, f"--model {name} --dataset-name random", *lengths, *([exact] if exact else []), *load, kept])


def nccl_command(priced: StepBill, line: Line | None = None) -> tuple[str, str]:
    """Write an nccl-tests run of one collective of a bill, by default the costliest, and describe it. "" where nothing is sent."""
    lines = [x for x in priced.items if x.kind == "comm" and float(x.exposed_s) > 0]
    if not lines:
        return "", ""
    top = line or max(lines, key=lambda x: float(x.exposed_s))
    ranks, size = int(top.item.ranks), max(4, int(top.item.nbytes))
    cluster, crosses = priced.question.cluster, str(top.link) == priced.question.cluster.inter.key
    programs_of = {op: f"{name}_perf" for name, op in table("launch/collective_tests.toml")["programs"].items()}
    tool, sizes = programs_of[top.item.op], f"-b {size} -e {size} -n 100 -w 20"
    remark = f"# {top.item.what}: {top.item.op} of {format_bytes(float(top.item.nbytes))} over {ranks} ranks"
    if not crosses and ranks <= cluster.gpus_per_host:
        return f"{tool} {sizes} -g {ranks}", remark
    lies = span(top.item.axis, priced.question.plan, cluster, priced.question.engine)
    per = max(1, min(cluster.gpus_per_host, ranks, int(lies.ranks_per_domain)))
    return f"mpirun -np {ranks} -N {per} {tool} {sizes} -g 1", remark
