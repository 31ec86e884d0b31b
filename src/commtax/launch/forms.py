"""Ways out beside a launch command: a plan's servers as Kubernetes, Dynamo, llm-d, Compose or Slurm start them."""

from collections.abc import Callable
from importlib import import_module

from commtax.catalog.programs import program_of, programs
from commtax.files import table
from commtax.launch.deployment import DeployedPlan, deployment_of
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
            raise Refusal(f"emit '{form}': starts servers alone; training: {', '.join(emitted_words(trains=True))}", "emit")
        return {"launch": write_training(question, program_of(question.engine))}
    used = int(question.plan.num_gpus) * copies
    if not prompts and used > question.cluster.num_gpus:
        raise Refusal(f"emit: the plan has {used} GPUs, but {question.cluster.key} has {question.cluster.num_gpus}", "emit")
    deployment = deployment_of(question, prompts, copies, placed=form == "dynamo")
    chips = dict.fromkeys(pool.chip.key for pool in reversed(deployment.pools))
    if len(chips) > 1 and form in ONE_KIND:
        rule = f"pools on {' and '.join(chips)} are two jobs; kubernetes and dynamo start both"
        raise Refusal(f"emit '{form}': {rule}", "emit")
    own = import_module(f"commtax.launch.{form.replace('-', '_')}")
    write: Callable[[DeployedPlan], str] = own.write
    if form != "llm-d":
        return {"launch": write(deployment)}
    return {"launch": write(deployment), "router": own.scheduler(deployment), "install": own.install(deployment)}
