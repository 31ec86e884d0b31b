"""A plan as servers to be deployed: pools of equal ones, their commands, image and volume, how long they may take to start."""

import math
import re
import shlex
from dataclasses import replace
from importlib import import_module

from commtax.catalog.programs import program_of, programs
from commtax.cost.inventory import total_bytes
from commtax.files import table
from commtax.launch.flags import command_of
from commtax.launch.jobs import MASTER, POD, Address, Command, LaunchJob, checkpoint_remark, start_s
from commtax.launch.writing import apart_command, benchmark_command, groups_per_server, launch_command
from commtax.launch.yaml_text import Explained
from commtax.question import Question
from commtax.records import dataclass
from commtax.spec import Program
from commtax.statement import Refusal
from commtax.units import GiB
from commtax.verbs.disaggregation import prompter
from commtax.verbs.fit_advice import startable

FACTS = table("launch/deployments.toml")
WHY: dict[str, str] = FACTS["why"]
PORT: int = FACTS["port"]


@dataclass(frozen=True, slots=True)
class DeployedPlan:
    """A plan's pools of equal servers (all in one, or those of prompts and of decode), and what they have in common."""

    question: Question
    program: Program
    pools: tuple[LaunchJob, ...]

    @property
    def name(self) -> str:
        """Return the model's name, made safe for names of resources and hosts."""
        last = self.question.model.key.rstrip("/").rsplit("/", 1)[-1]
        return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:40].strip("-") or "llm"

    @property
    def apart(self) -> bool:
        return len(self.pools) > 1

    @property
    def vendor(self) -> str:
        return self.question.cluster.chip.vendor.lower()

    @property
    def image(self) -> str:
        images, version = FACTS["image"], self.question.engine.version
        release = FACTS["release"].get(self.program.key, {}).get(version, version)
        return str(images.get(f"{self.program.key}-{self.vendor}", images[self.program.key])).format(version=release)

    @property
    def stored_bytes(self) -> float:
        return total_bytes(self.question.model, self.question.plan)

    @property
    def start_s(self) -> int:
        return start_s(self.question)

    @property
    def volume(self) -> str:
        """Room for the weights and what comes with them, in tens of GiB."""
        return f"{math.ceil(self.stored_bytes * float(FACTS['spare']) / GiB / 10) * 10}Gi"

    @property
    def health(self) -> str:
        return str(FACTS["health"][self.program.key])

    @property
    def start_remark(self) -> str:
        rate = FACTS["first_load_Bps"]
        return f"up to {self.start_s // 60} min: {self.stored_bytes / 1e9:,.0f} GB at {rate / 1e6:g} MB/s, then the warm-up"

    def remarks(self) -> list[str]:
        """Return what is left to put in by hand, as comments."""
        left = [line for pool in self.pools for line in pool.command().left]
        return list(dict.fromkeys([*checkpoint_remark(self.pools[-1]), *left]))

    def router(self, prompts: list[Address], decodes: list[Address]) -> Command:
        """Return what clients of servers with two roles talk to."""
        command: Command = command_of(self.program.key).route(prompts, decodes, PORT, self.start_s)
        return command


def deployment_of(question: Question, prompts: int, copies: int, placed: bool = False) -> DeployedPlan:
    """Return a plan as servers: ``copies`` of it, and for ``prompts`` as many servers as stated where they have their own."""
    made_by = program_of(question.engine)

    def pool(q: Question, servers: int, role: str) -> LaunchJob:
        inner = groups_per_server(q.plan, made_by, q.cluster)
        return LaunchJob(made_by.key, q, inner, servers * (1 if role else int(q.plan.dp) // inner), role=role, placed=placed)

    if not prompts:
        return DeployedPlan(question, made_by, (pool(question, copies, ""),))
    ahead = startable(prompter(question))
    return DeployedPlan(question, made_by, (pool(ahead, prompts, "prefill"), pool(question, copies, "decode")))


def words_of(command: Command, file: str = "") -> list[str]:
    """Return the words of a container: a flag and its value as one, as they are read line by line.

    >>> words_of(Command(["vllm serve x", "--tensor-parallel-size 2", "--enforce-eager"]))
    ['vllm', 'serve', 'x', '--tensor-parallel-size=2', '--enforce-eager']
    """
    words: list[str] = []
    for word in shlex.split(replace(command, variables=()).line(file)):
        if words and words[-1].startswith("--") and "=" not in words[-1] and not word.startswith("-"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def host_script(command: Command, hosts: int, line: str, leads: bool | None = None, address: str = MASTER) -> list[str]:
    """Return what a host of a server runs: the first one, one of the others, or (None) whichever it is, by NODE_RANK.

    >>> host_script(Command([], below="--headless"), 2, "vllm serve x", leads=False)
    ['vllm serve x --headless']
    """
    joins = f"exec ray start --address {address}:{FACTS['ray_port']} --block"
    if command.ray and leads is False:
        return [joins]
    if command.ray:
        wait = f"import ray, sys; ray.init(); sys.exit(sum(n['Alive'] for n in ray.nodes()) < {hosts})"
        others = [f'if [ "$NODE_RANK" != 0 ]; then {joins}; fi'] * (leads is None)
        return [*others, f"ray start --head --port {FACTS['ray_port']}", f'until python3 -c "{wait}"; do sleep 5; done', line]
    if not command.below or leads is not None:
        return [f"{line} {command.below}" if command.below and not leads else line]
    return ["BELOW=", f'if [ "$NODE_RANK" != 0 ]; then BELOW="{command.below}"; fi', f"{line} $BELOW"]


def listening(program: Program, port: int = PORT) -> list[str]:
    """Return what makes a server hear others than itself, on the port that all have."""
    return [*["--host=0.0.0.0"] * (not program.listens), f"--port={port}"]


def variables(command: Command, pool: LaunchJob) -> list[dict[str, object]]:
    """Return a container's environment: the command's variables, the Hub's token, where weights lie, which network hosts use."""
    pairs = [v.partition("=") for v in command.variables]
    environment: list[dict[str, object]] = [{"name": name, "value": value} for name, _, value in pairs]
    if any(POD in value for _, _, value in pairs):
        environment.insert(0, {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    if pool.all_hosts > 1:
        environment += [{"name": "NCCL_SOCKET_IFNAME", "value": Explained("eth0", WHY["meets"])}]
        environment += [{"name": "GLOO_SOCKET_IFNAME", "value": "eth0"}]
    secret = {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}
    token = {"name": "HF_TOKEN", "valueFrom": Explained(secret, WHY["token"])}
    return [*environment, {"name": "HF_HOME", "value": FACTS["cache"]}, token]


FORMS, TRAINING, ONE_KIND = (tuple(table("launch/deployments.toml")[kind].split()) for kind in ("forms", "training", "one_kind"))
"""Words of ``--emit`` that name where a plan is started; those that start training too; those whose hosts are all alike."""


def emitted_words(trains: bool) -> tuple[str, ...]:
    """Return the words that ``--emit`` takes: engines that train or serve, and the forms that start them."""
    return (*(one.emitted_as for one in programs() if one.trains == trains), *(TRAINING if trains else FORMS))


def written(question: Question, form: str, copies: int, prompts: int = 0) -> dict[str, str]:
    """Write what starts a plan in one of the forms, by purpose: ``copies`` of it, and servers for ``prompts`` alone."""
    module = import_module(f"commtax.launch.{form.replace('-', '_')}")
    if question.trains:
        if form not in TRAINING:
            raise Refusal.of(f"starts servers alone; training: {', '.join(emitted_words(trains=True))}", emit=form)
        return {"launch": module.write_training(question, program_of(question.engine))}
    used = int(question.plan.num_gpus) * copies
    if not prompts and used > question.cluster.num_gpus:
        raise Refusal.about(emit=f"the plan has {used} GPUs, but {question.cluster.key} has {question.cluster.num_gpus}")
    deployment = deployment_of(question, prompts, copies, placed=form == "dynamo")
    chips = dict.fromkeys(pool.question.cluster.chip.key for pool in reversed(deployment.pools))
    if len(chips) > 1 and form in ONE_KIND:
        raise Refusal.of(f"pools on {' and '.join(chips)} are two jobs; kubernetes and dynamo start both", emit=form)
    launch: dict[str, str] = {"launch": module.write(deployment)}
    return launch | ({"router": module.scheduler(deployment), "install": module.install(deployment)} if form == "llm-d" else {})


def start_commands(q: Question, word: str, copies: int = 1, prompts: int = 0, devices: str = "") -> dict[str, str]:
    """Write the commands that start a plan, by purpose. ``word`` names the engine or the form, ``prompts`` counts their servers.

    >>> from commtax.verbs.settling import ask
    >>> start_commands(ask("llama-3.1-8b", "8xh100-sxm", tp=2), "vllm")["launch"]
    'vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2'
    """
    if word in FORMS:
        launch = written(q, word, copies, prompts)
    elif prompts:
        launch = {"launch": apart_command(q.but(prefill_workers=prompts, decode_workers=copies), word)}
    else:
        launch = {"launch": launch_command(q if q.trains else q.but(replicas=copies), word, devices)}
    engine = program_of(q.engine).emitted_as if word in FORMS else word
    return launch if q.trains else launch | {"benchmark": benchmark_command(q, engine)}
