"""Slurm: one batch script that starts every server on the hosts of its job, or one training job on all of them."""

from collections.abc import Iterator
from dataclasses import replace

from commtax.launch.deployment import DeployedPlan, host_script
from commtax.launch.flags import command_of
from commtax.launch.jobs import PORT, Command, LaunchJob
from commtax.question import Question
from commtax.spec import Cluster, Program

HOSTS = 'mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
TIME = "time=24:00:00        # put yours; --partition and --account too"
NETWORK = "# export NCCL_SOCKET_IFNAME=ib0  # where hosts have several networks: the one they meet by"


def write(deployment: DeployedPlan) -> str:
    """Return a script for ``sbatch``: servers side by side, and what clients talk to on the first host."""
    lines, used = list[str](), _JobHosts(deployment.question.cluster)
    at: dict[str, list[tuple[str, int]]] = {}
    servers = [pool for pool in sorted(deployment.pools, key=lambda pool: -pool.gpus) for _ in range(pool.servers)]
    for number, pool in enumerate(servers):
        hosts, gpus = used.take(pool)
        lines += list(_server(deployment.program, pool, number, hosts, gpus))
        at.setdefault(pool.role, []).append((f"${{HOSTS[{hosts[0]}]}}", PORT + number))
    files = [line for pool in deployment.pools for line in pool.command().written(f"$PWD/{pool.file}")]
    if deployment.apart:
        router = deployment.router(at["prefill"], at["decode"])
        lines += [*router.written("$PWD/disagg"), f"{router.line('$PWD/disagg')} &"]
    elif len(servers) > 1:
        lines.append(f"# {len(servers)} servers: put a router or load balancer in front")
    cluster, hosts_used = deployment.question.cluster, len(used.free)
    head = _head(deployment.name, hosts_used, cluster.gpus_per_host)
    if hosts_used > cluster.num_hosts and not deployment.question.requests.prefill_cluster:
        fewer = f"# {hosts_used} hosts, {cluster.key} has {cluster.num_hosts}"
        head.append(f"{fewer}: a server's last host is not shared with others here")
    return "\n".join([*head, *deployment.remarks(), *files, *lines, "wait"])


def write_training(question: Question, made_by: Program) -> str:
    """Return a script for ``sbatch``: torchrun once on every host."""
    job = LaunchJob(made_by.key, question, int(question.plan.dp))
    command: Command = command_of(made_by.key).write(job)
    per = min(job.gpus, question.cluster.gpus_per_host)
    head = [*_head(question.model.key.rsplit("/", 1)[-1], job.hosts, per), *[command.warning] * bool(command.warning)]
    if job.hosts == 1:
        return "\n".join([*head, f"srun {command.line('')}"])
    return "\n".join([*head, *_on_every_host("train", [command.line("")]), f"{_srun(range(job.hosts))} bash -c train"])


class _JobHosts:
    """Hosts of a job, and the GPUs of each that servers have not taken yet."""

    def __init__(self, cluster: Cluster) -> None:
        self.each, self.free = cluster.gpus_per_host, list[int]()

    def take(self, pool: LaunchJob) -> tuple[range, str]:
        """Return the hosts of a server, and the GPUs that it sees there. A server of several hosts has them whole."""
        count = len(self.free)
        if pool.all_hosts > 1:
            self.free += [0] * pool.all_hosts
            return range(count, count + pool.all_hosts), ""
        host = next((i for i, free in enumerate(self.free) if free >= pool.gpus), count)
        self.free += [self.each] * (host == count)
        first = self.each - self.free[host]
        self.free[host] -= pool.gpus
        return range(host, host + 1), ",".join(str(first + i) for i in range(pool.gpus))


def _head(name: str, hosts: int, gpus: int) -> list[str]:
    tasks = "ntasks-per-node=1    # a server starts the processes of its GPUs itself"
    options = [f"job-name={name}", f"nodes={hosts}", tasks, f"gpus-per-node={gpus}", "exclusive", TIME]
    return ["#!/bin/bash", *(f"#SBATCH --{option}" for option in options), HOSTS, *[NETWORK] * (hosts > 1)]


def _srun(hosts: range) -> str:
    return f"srun --overlap --nodes={len(hosts)} --ntasks={len(hosts)} --nodelist={_listed(hosts)}"


def _listed(hosts: range) -> str:
    return ",".join(f"${{HOSTS[{i}]}}" for i in hosts)


def _server(made_by: Program, pool: LaunchJob, number: int, hosts: range, gpus: str) -> Iterator[str]:
    host, first = f"${{HOSTS[{hosts[0]}]}}", f"FIRST_{number}"
    command = replace(pool, address=f"${first}").command(number, host)
    file, away = f"$PWD/{pool.file}", " --host 0.0.0.0" if not made_by.listens else ""
    more, remark = f"{away} --port {PORT + number}", f"  # {pool.role}" if pool.role else ""
    line = replace(command, variables=()).line(file)
    if len(hosts) == 1:
        env = " ".join([f"CUDA_VISIBLE_DEVICES={gpus}", *command.variables])
        yield f"{_srun(hosts)} env {env} {line}{more} &{remark}"
        return
    if line.startswith("srun "):  # by MPI, on hosts of its own
        step = [*command.variables, "srun --overlap", f"--nodelist={_listed(hosts)}", line.removeprefix("srun ")]
        yield f"{' '.join(step)}{more} &{remark}"
        return
    name = f"{pool.role or 'server'}_{number}"
    script = host_script(command, len(hosts), " ".join([*command.variables, f"{line}{more}"]), address=f"${first}")
    yield from _on_every_host(name, script, f"{first}={host}")
    yield f"{_srun(hosts)} bash -c {name} &{remark}"


def _on_every_host(name: str, script: list[str], meet: str = "MASTER_ADDR=${HOSTS[0]}") -> Iterator[str]:
    """Yield a function that each host of a step runs by its number among them, and export the address where they meet."""
    yield from (f"export {meet}", f"{name}() {{", "NODE_RANK=$SLURM_NODEID")
    yield from (*script, "}", f"export -f {name}")
