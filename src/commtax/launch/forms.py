"""What starts a plan: launch commands, or its servers as Kubernetes, Dynamo, llm-d, Compose or Slurm start them."""

from collections.abc import Callable
from importlib import import_module

from commtax.catalog.programs import program_of, programs
from commtax.files import table
from commtax.launch.deployment import DeployedPlan, deployment_of
from commtax.launch.writing import apart_command, benchmark_command, launch_command
from commtax.question import Question
from commtax.statement import Refusal

FORMS, TRAINING, ONE_KIND = (tuple(table("launch/deployments.toml")[kind].split()) for kind in ("forms", "training", "one_kind"))
"""Words of ``--emit`` that name where a plan is started, not by which engine; those that start a training job too, and those whose
hosts are all alike."""


def emitted_words(trains: bool) -> tuple[str, ...]:
    """Words that ``--emit`` takes: engines that train or serve, and the forms that start them."""
    return (*(one.emitted_as for one in programs() if one.trains == trains), *(TRAINING if trains else FORMS))


def written(question: Question, form: str, copies: int, prompts: int = 0) -> dict[str, str]:
    """What starts a plan in one of the forms, by what it is for: ``copies`` of it, and servers for ``prompts`` of their own."""
    if question.trains:
        from commtax.launch.slurm import write_training

        if form not in TRAINING:
            raise Refusal.of(f"starts servers alone; training: {', '.join(emitted_words(trains=True))}", emit=form)
        return {"launch": write_training(question, program_of(question.engine))}
    used = int(question.plan.num_gpus) * copies
    if not prompts and used > question.cluster.num_gpus:
        raise Refusal.about(emit=f"the plan has {used} GPUs, but {question.cluster.key} has {question.cluster.num_gpus}")
    deployment = deployment_of(question, prompts, copies, placed=form == "dynamo")
    chips = dict.fromkeys(pool.chip.key for pool in reversed(deployment.pools))
    if len(chips) > 1 and form in ONE_KIND:
        rule = f"pools on {' and '.join(chips)} are two jobs; kubernetes and dynamo start both"
        raise Refusal.of(rule, emit=form)
    own = import_module(f"commtax.launch.{form.replace('-', '_')}")
    write: Callable[[DeployedPlan], str] = own.write
    if form != "llm-d":
        return {"launch": write(deployment)}
    return {"launch": write(deployment), "router": own.scheduler(deployment), "install": own.install(deployment)}


def start_commands(q: Question, word: str, copies: int = 1, prompts: int = 0, devices: str = "") -> dict[str, str]:
    """Commands by what they are for. ``word`` names the engine or the place; ``prompts`` are servers for prompts alone.

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
