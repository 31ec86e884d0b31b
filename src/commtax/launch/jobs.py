"""A job, the command of one of its servers, flags that all engines have; and torchrun, which starts training jobs."""

import math
import re
import shlex
from dataclasses import replace

from commtax import catalog
from commtax.catalog.programs import program
from commtax.catalog.technique_flags import WrittenFlags, is_carrier, place_value, untold_fields, written_flags
from commtax.catalog.techniques import techniques_on
from commtax.cost.inventory import total_bytes
from commtax.files import table
from commtax.launch.flags import COMMON, RULES, TORCHRUN, FlagReading, FlagValues, Value, command_of, flags_of
from commtax.question import Question
from commtax.records import Number, dataclass
from commtax.spec import Model, Plan, Technique
from commtax.statement import Refusal

MASTER = "$MASTER_ADDR"
POD = "$(POD_IP)"  # a pod's own address, from the variable beside it
RANK = "--node-rank $NODE_RANK"
PORT = 8100  # first port of servers for prompts and of those that decode
Address = tuple[str, int]  # host and port


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """A plan cut into equal servers: ``dp`` groups inside each, ``servers`` of them beside each other."""

    engine: str
    question: Question
    dp: int
    servers: int = 1
    address: str = MASTER  # where the hosts of one server meet
    role: str = ""  # "prefill" or "decode" where it does one of them alone
    placed: bool = False  # whatever starts it names its hosts

    @property
    def plan(self) -> Plan:
        return self.question.plan

    @property
    def gpus(self) -> int:
        return int(self.plan.num_gpus) // int(self.plan.dp) * self.dp

    @property
    def all_hosts(self) -> int:
        """Hosts of one server."""
        return math.ceil(self.gpus / self.question.cluster.gpus_per_host)

    @property
    def hosts(self) -> int:
        """Hosts of one server that its command has to name."""
        return 1 if self.placed else self.all_hosts

    @property
    def gpus_per_host(self) -> int:
        return self.gpus if self.all_hosts == 1 else self.question.cluster.gpus_per_host

    @property
    def file(self) -> str:
        """Name of the file with its settings."""
        return self.role or "llm"

    def named(self, name: str) -> str:
        return f"{name}-{self.role}" if self.role else name

    def command(self, number: int = 0, host: str = POD) -> "Command":
        """Return the command of one server. Servers that share a host get different ports by their ``number``."""
        module = command_of(self.engine)
        command: Command = module.write(self)
        return module.join(command, self.role, number, host) if self.role else command

    @property
    def techniques(self) -> list[Technique]:
        """Techniques that are on. One that the engine has no flag for is refused."""
        q = self.question.but(balanced=True) if self.plan.redundant else self.question  # copies are laid out by load
        if self.plan.sequence_parallel and not q.techniques.sequence_tokens:
            q = q.but(sequence_tokens=-1)  # engines split sequences where they find that worth it
        on = [one for one, _ in techniques_on(q) if not is_carrier(one)]
        if missing := next((one for one in on if self.engine not in one.flags), None):
            raise Refusal.of(f"{program(self.engine).title} has no flag for {missing.key}: {missing.title}", emit=self.engine)
        return on

    @property
    def technique_flags(self) -> WrittenFlags:
        return written_flags(self.techniques, self.engine, self.question)

    def with_techniques(self, command: "Command") -> "Command":
        """Return the command with the variables of its techniques, what carries caches, and what is left to put in."""
        carriers = [one for one, _ in techniques_on(self.question) if self.role and is_carrier(one) and self.engine in one.flags]
        flags, carried = self.technique_flags, written_flags(carriers, self.engine, self.question)
        variables = (f"{name}={value}" for name, value in {**flags.variables, **carried.variables}.items())
        untold = [(name, value) for one in self.techniques for name, value in untold_fields(one, self.engine, self.question)]
        unnamed = {name: place_value(self.question, name.lower()) for name in flags.unsaid}
        why = {name: f" no Hugging Face name of {model} is known:" if model else "" for name, model in unnamed.items()}
        left = [f"#{reason} put the name of yours for {name}" for name, reason in why.items()]
        left += [f"# no flag of {program(self.engine).title} says {name.replace('_', ' ')}: {value}" for name, value in untold]
        gone = [(one.key, since) for one in self.techniques if (since := one.dropped.get(self.engine, ""))]
        left += [f"# {program(self.engine).title} {since} and later have no {key}: run an earlier one" for key, since in gone]
        return replace(command, variables=(*command.variables, *variables), left=tuple(left), transfer=carried)


def model_id(model: Model) -> str:
    """Return the name that the Hub knows, or a folder's path, else our own. It is quoted: a path may hold what a shell runs."""
    name = next((a for a in model.aliases if "/" in a), model.key)
    if not name.isprintable():
        raise Refusal.about(emit=f"no command can hold the model's name {name!r}; rename the folder")
    return shlex.quote(name)


def start_s(question: Question) -> int:
    """Return what a server's start may take: the weights come from the Hub or a slow volume, then the engine warms up."""
    facts, stored = table("launch/deployments.toml"), total_bytes(question.model, question.plan)
    return math.ceil(stored / float(facts["first_load_Bps"])) + int(facts["warm_up_s"])


def above_one(size: Number) -> int:
    """Return a size that is worth a flag, else 0."""
    return int(size) if size > 1 else 0


@dataclass(frozen=True, slots=True)
class Command:
    """A command's arguments, the variables before them, the settings that it reads from a file, and remarks below it."""

    args: list[str]
    variables: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # comments on what is left to put in by hand
    every_host: bool = False  # each host of a server runs it
    warning: str = ""  # a comment above it
    transfer: WrittenFlags = WrittenFlags()  # what carries caches between servers, where that is stated
    below: str = ""  # what hosts after the first add
    ray: bool = False  # it is started once, on a Ray cluster of all hosts
    settings_flag: str = "--config"

    def line(self, file: str) -> str:
        return " ".join([*self.variables, *self.args, *([f"{self.settings_flag} {file}.yaml"] if self.settings else [])])

    def remarks(self, role: str = "") -> list[str]:
        """Return comments: on which hosts it is run, by its ``role`` where there are two, and what is left to put in."""
        how = f"{role}: run each line on all hosts of its server" if role else "run it on every host"
        below = f"; hosts above 0 add {self.below}" if self.below else ""
        every = [f"# {how}, NODE_RANK 0, 1, …{below}"] if self.every_host else []
        return [*every, *["# once, on the head of a Ray cluster of all hosts"] * self.ray, *self.left]

    def written(self, file: str) -> list[str]:
        return [f"cat > {file}.yaml <<EOF", *self.settings, "EOF"] if self.settings else []


def server_flags(job: LaunchJob, **special: Value) -> list[str]:
    """Return the flags of a server, as far as the engine has them, with ``special`` values where it sets them in another way."""
    plan, limits, how = job.plan, job.question.limits, job.question.what_if
    weights = "" if job.question.model.quant else plan.weights_dtype
    whole = job.question.model.tower is not None and plan.tower == "data" and bool(plan.tp > 1)
    facts = FlagValues(tp=above_one(plan.tp), pp=above_one(plan.pp), dp=above_one(job.dp), dp_attention=False)
    facts |= FlagValues(ep=above_one(plan.ep), expert_parallel=bool(plan.ep > 1), ep_backend=how.ep_backend)
    facts |= FlagValues(quantization="fp8" if weights == "fp8" else "", compute="float32" if weights == "fp32" else "")
    facts |= FlagValues(kv_dtype="fp8" if plan.kv_dtype == "fp8" else "", max_model_len=limits.max_model_len)
    facts |= FlagValues(max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens)
    facts |= FlagValues(gpu_memory_utilization=float(limits.gpu_memory_utilization), lora=bool(plan.lora_rank))
    facts |= FlagValues(lora_rank=plan.lora_rank, max_loras=plan.max_loras if plan.lora_rank else 0, eplb=bool(plan.redundant))
    facts |= FlagValues(redundant_experts=int(plan.redundant), eager=how.eager, graphs="")
    facts |= FlagValues(plain_nccl=how.library == COMMON["plain_library"], tower="data" if whole else "", tower_data=whole)
    flags = flags_of(job.engine)
    set_already = {name for one in job.techniques for name in (*one.sets, *(taken.strip("?") for taken in one.takes))}
    set_already |= {"eplb"} if "balanced" in set_already else set()
    facts |= special
    return flags.spell(**{name: value for name, value in facts.items() if name in flags.written and name not in set_already})


def checkpoint_remark(job: LaunchJob) -> list[str]:
    """Remark that the plan's weights are of a type that the engine does not make itself."""
    wanted, model, quant = job.plan.weights_dtype, job.question.model, job.question.model.quant
    stored = quant.dtype if quant else model.dtype
    made = ("bf16", "fp16", "fp32", *["fp8"] * catalog.engine(job.engine).kernels.quantises)
    if wanted in ("", stored) or (wanted in made and not quant):
        return []
    return [f"# needs a checkpoint in {wanted}: put its name for {model_id(model)}, which is in {stored}"]


def count_ranks(reading: FlagReading) -> None:
    """Count the hosts and replicas of a torchrun job. Elastic jobs (1:4) count their most hosts."""
    values, world = reading.values, 1
    for name, flag in (("nnodes", "--nnodes"), ("gpus_per_node", "--nproc-per-node")):
        text = str(values.get(name, "1")).split(":")[-1]
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
            raise Refusal(f"from: '{flag} {text}': {RULES['int']}", "from")
        values[name] = int(text)
        world *= int(text)
    inner = int(values.tp or 1) * int(values.pp or 1) * int(values.cp or 1)
    if world % inner:
        raise Refusal(f"from: tp x pp x cp = {inner} does not divide the {world} GPUs of --nnodes x --nproc-per-node", "from")
    values.dp = world // inner


def start(job: LaunchJob) -> str:
    """Return the words before the script."""
    if job.gpus % (per := min(job.gpus, job.question.cluster.gpus_per_host)):
        raise Refusal.about(emit=f"{job.gpus} GPUs do not fill hosts of {per}; torchrun starts as many ranks on each")
    start = ["torchrun", *TORCHRUN.spell(gpus_per_node=per, nnodes=above_one(job.hosts))]
    return " ".join(start + [f"--node-rank $NODE_RANK --master-addr {job.address} --master-port 29500"] * (job.hosts > 1))


def global_batch(job: LaunchJob) -> int:
    return int(job.plan.microbatches) * int(job.question.micro_batch) * int(job.plan.dp)
