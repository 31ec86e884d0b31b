"""An order: the question that a command line asks, what was pasted filled in, and how its answer is to be told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from commtax import catalog
from commtax.catalog.loader import normal
from commtax.cli.options import Command, CommandOptions, VerbSubject, add_verb_options
from commtax.cli.output import Output
from commtax.cli.pasting import apply_topology, fill_from_command
from commtax.options import taken_by
from commtax.question import Limits, Question
from commtax.records import dataclass, record_from
from commtax.spec import Cluster, Model, Profile
from commtax.statement import COSTLY, STRANGE, Refusal
from commtax.units import plural

if TYPE_CHECKING:
    from commtax.launch.flags import Launch
    from commtax.verbs.billing import StepBill


@dataclass
class Order:
    """The question of one run of a command, and the form of its answer."""

    model: str  # as it was named
    question: Question
    output: Output
    options: CommandOptions  # the whole command line, what was pasted filled in
    launch: Launch | None = None
    devices: str = ""  # GPUs that were chosen from a topology
    others: tuple[Cluster, ...] = ()  # clusters beside the question's own
    engines: tuple[Question, ...] = ()  # the same question to other engines, beside its own

    def commands(self, priced: StepBill) -> dict[str, str]:
        """Return the launch of a step and what checks it, for the engine or the place that ``--emit`` names."""
        from commtax.launch.writing import nccl_command
        from commtax.verbs.fit_advice import length_to_start_with, startable

        q = priced.question
        if q.trains:
            return self.launched(q)
        limits = record_from(Limits, self.launch.options) if self.launch else q.limits
        batch = int(q.batch) * int(q.plan.dp) * int(q.plan.replicas)
        q = q.vary(limits=limits, input_len=max(1, int(q.context)), concurrency=batch, spread=0.0)
        q = startable(q.vary(max_model_len=length_to_start_with(q, float(q.requests.tokens))))
        commands = self.launched(q, int(q.plan.replicas)) | {"collective": "  ".join(nccl_command(priced)).strip()}
        return {name: text for name, text in commands.items() if text}

    def launched(self, q: Question, copies: int = 1, prompts: int = 0) -> dict[str, str]:
        """Return what starts a plan on all of its servers, and the benchmark that would check it."""
        from commtax.launch.deployment import start_commands

        return start_commands(q, self.options.emit, copies, prompts, self.devices)


def verb_command(verb: str, about: VerbSubject) -> Callable[[Callable[[Order], None]], Command]:
    """Return a command with the flags of a verb, run with its order instead of the options that make one."""

    def decorate(body: Callable[[Order], None]) -> Command:
        @functools.wraps(body)
        def run(model: str | None = None, model_option: str = "", **options: object) -> None:
            if model and model_option:
                raise Refusal.of(f"the model is named already: {model}", model=model_option)
            body(read(model or model_option, CommandOptions(options), verb, about))

        spelled = click.option("--model", "-m", "model_option", default="", hidden=True)  # as engines have it
        return click.argument("model", required=False)(spelled(add_verb_options(verb)(run)))

    return decorate


def read(model: str, options: CommandOptions, verb: str, about: VerbSubject) -> Order:
    """Read the order of a command line: what was pasted is filled in first, and options that stand on the line win."""
    output = Output(options.pop("as_json", False), options.pop("as_csv", False), emit_file=options.pop("emit_file", "") or "")
    output.leading = (STRANGE, COSTLY) if verb in WEIGHING else output.leading
    if output.emit_file and not options.emit:
        raise Refusal.about(emit_file="name what to write with --emit, such as --emit kubernetes")
    others, text = _clusters(options), options.pop("pasted", "")
    launch, name = fill_from_command(text, model, options, output.remarks, about) if text else (None, model)
    if not name:
        raise Refusal(f"MODEL: name one, such as commtax {verb} llama-3.1-8b, or paste a launch command with --from")
    devices = "" if options.plans else apply_topology(options, output.remarks)
    profile = profile_of(options)
    wish = "name where decoding runs" if options.prefill_cluster else "name one"
    place = cluster_of(options, wish, launch.num_gpus if launch else 0)
    family, phase = options.pop("read_as", ""), options.phase or "decode"
    if launch and about is VerbSubject.SEARCH and launch.phase != phase:  # a search stands the pasted plan beside its own
        raise Refusal.of(f"the pasted command is one to {launch.phase}", phase=phase)
    taken, rule = taken_by(verb), f"belongs to serving, not to {'--' if about.whole else ''}phase train"
    others_only = [name for name, option in taken.items() if option.serves(verb)]
    if phase != "train":
        others_only = [name for name, option in taken.items() if option.group == "Training"]
        rule = "belongs to --phase train" + ("" if about is VerbSubject.SEARCH else f", not to {phase}")
    refuse(options, others_only, rule)
    engines = list(dict.fromkeys(str(options.engine or "").split(",")))
    if len(engines) > 1 and "" in engines:
        raise Refusal.of("a name is missing between the commas", engine=options.engine)
    if len(engines) > 1 and not (about is VerbSubject.SEARCH and options.phase == "train"):
        rule = f"several are compared by commtax plan with --phase train; name one here, such as --engine {engines[0]}"
        raise Refusal.of(rule, (engines[0],), engine=options.engine)
    checkpoint = catalog.model(name, family)
    pasted = launch.model if launch and "/" not in model else ""
    alike = (alias for alias in checkpoint.aliases if pasted and f"/{normal(alias)}".endswith(f"/{normal(pasted)}"))
    first = next(alike, pasted if "/" in pasted else "")  # an id of the Hub, or a path: commands that are written load it too
    if first and "$" not in first:
        checkpoint = replace(checkpoint, aliases=tuple(dict.fromkeys((first, *checkpoint.aliases))))
    questions = [question_from_options(checkpoint, place, profile, CommandOptions(options | {"engine": x}), about) for x in engines]
    options.engine = engines[0]
    if launch and launch.phase == "serve" and verb not in WEIGHING:
        from commtax.verbs.worth import questioned_flags  # not for those who paste nothing

        if flags := questioned_flags(questions[0], launch.options):
            asks = "diff with and without, --concurrency N" if launch.servers.prefill_workers else "worth --from … --concurrency N"
            costs = f"cost{'s' * (len(flags) == 1)} whole requests: commtax {asks}"
            output.remarks.append(f"what {' and '.join(flags)} {costs}")
    return Order(name, questions[0], output, options, launch, devices, others, tuple(questions[1:]))


def options_beside(verb: str, what: str) -> list[str]:
    """Return the options of a verb that belong to one kind of question alone."""
    return [name for name, option in taken_by(verb).items() if option.beside == what]


def _clusters(options: CommandOptions) -> tuple[Cluster, ...]:
    """Settle where prompts run and where decoding does, the cluster in either spelling, and return all clusters but the first."""
    here, links = options.cluster, {key: options[key] for key in PLACE[1:] if key in options}
    decoding, named = options.pop("decode_cluster", ""), here if isinstance(here, tuple) else (here,) if here else ()
    if decoding and any(name != decoding for name in named):
        raise Refusal.of(f"another spelling of --cluster, which is {', '.join(named)}", decode_cluster=decoding)
    if decoding:
        options.cluster = (decoding,) if isinstance(here, tuple) else decoding
    ahead = options.pop("prefill_cluster", "")
    if ahead and len(named) > 1:
        raise Refusal.about(cluster=f"one is needed beside --prefill-cluster, not {len(named)}")
    if ahead:
        options.prefill_cluster = catalog.cluster(ahead, **links)
    if not isinstance(options.cluster, tuple):
        return ()
    names = options.cluster
    options.cluster = names[0] if names else ""
    return tuple(catalog.cluster(name, **links) for name in names[1:])


def question_from_options(
    model: Model, place: Cluster, profile: Profile | None, options: CommandOptions, about: VerbSubject
) -> Question:
    from commtax.verbs.loads import offered_options, split  # not for those who audit a run by itself
    from commtax.verbs.settling import resolve_question

    askable = [name for verb in ("compare()", "fit()", "simulate()") for name in taken_by(verb)]
    keywords = CommandOptions({name: options[name] for name in askable if name in options})
    keywords.profile, keywords.sequence_parallel = profile, options.sequence_parallel or None
    keywords.phase = "decode" if about.whole and options.phase != "train" else options.phase or "decode"
    if about is VerbSubject.SEARCH:  # which may try several types
        keywords.dtype = options.dtype.split(",")[0]
        lengths = (keywords.input_len, keywords.output_len)
        keywords.input_len, keywords.output_len = (None if isinstance(length, str) else length for length in lengths)
    if isinstance(axes := options.async_axes, str):
        keywords.async_axes = () if axes == "none" else tuple(axes.split(","))
    each, over_all, keywords.global_batch = options.batch, keywords.global_batch, None
    if each is not None and over_all is not None:
        raise Refusal.about(global_batch="give it or batch, not both")
    if about in (VerbSubject.STEP, VerbSubject.SERVER):
        from commtax.rules.questions import share_of

        keywords.batch = share_of(over_all, options.dp) if over_all is not None else 1 if each is None else each
    if about is VerbSubject.LOOP:
        keywords |= {name: options[name] for name in offered_options() if options.get(name) is not None}
        if keywords.concurrency is not None and (options.request_rate is not None or options.trace is not None):
            keywords.max_concurrency, keywords.concurrency = keywords.concurrency, None
        plain, offered = split(keywords)
        return resolve_question(model, place, plain).but(offered=offered)
    return resolve_question(model, place, keywords)


def profile_of(options: CommandOptions) -> Profile | None:
    """Return the profile, several as one. It also names the chip, and how many, where no cluster is named."""
    from commtax.catalog.profile import load_profile, measured_chip  # not for those who have none

    profile = load_profile(options.pop("profile", ()))
    if profile and not options.cluster and (chip := measured_chip(profile)):
        laid = (run.deployment for run in profile.lessons)
        options.cluster = f"{max(2, options.tp or max((int(d.tp * d.pp * d.dp) for d in laid), default=2))}x{chip}"
    return profile


WEIGHING = ("plan", "worth")  # verbs that say whether settings are worth it
PLACE = ("cluster", "intra", "inter", "nics")  # options that say where: hosts, and the links that they have instead of their own


def cluster_of(options: CommandOptions, wish: str = "name one", pasted: int = 0) -> Cluster:
    """Return the cluster with the links that were given for it. A launch that was ``pasted`` tells how many GPUs it needs."""
    name, links = options.pop(PLACE[0]), {key: options.pop(key) for key in PLACE[1:]}
    if not name and pasted:
        needs = f"what was pasted needs {plural(pasted, 'GPU')} and does not say which"
        raise Refusal.about(cluster=f"{needs}; name them, such as --cluster {pasted}xh100-sxm (commtax catalog clusters)")
    if not name:
        raise Refusal.about(cluster=f"{wish} with --cluster, such as --cluster 8xh100-sxm (commtax catalog clusters)")
    return catalog.cluster(name, **links)


def refuse(options: CommandOptions, names: Sequence[str], why: str) -> None:
    """Refuse options that differ from their defaults: what is given is honoured or refused, never ignored."""
    usual = {p.name: p.default for p in click.get_current_context().command.params}
    for name in names:
        if name in options and options[name] not in (usual.get(name), None, "", ()) and options[name] is not False:
            raise Refusal(f"{name}: {why}", name)
