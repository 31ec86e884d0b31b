"""An order: the question that a command line asks, what was pasted filled in, and how its answer is to be told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from commtax import catalog
from commtax.catalog.loader import normal
from commtax.catalog.profile import load_profile, measured_chip
from commtax.cli.options import Command, GivenOptions, VerbSubject, add_verb_options
from commtax.cli.output import Output
from commtax.cli.pasting import apply_topology, fill_from_command
from commtax.options import taken_by
from commtax.question import Limits, Question
from commtax.records import dataclass, record_from
from commtax.rules.questions import share_of
from commtax.spec import Cluster, Model, Profile
from commtax.statement import COSTLY, STRANGE, Refusal
from commtax.units import plural
from commtax.verbs.billing import StepBill
from commtax.verbs.loads import offered_options, split
from commtax.verbs.settling import resolve_question

if TYPE_CHECKING:
    from commtax.launch.flags import Launch

"""Options that may be distributions: those are not the question's until it is known what they are drawn for."""


@dataclass
class Order:
    """What one run of a command is asked, and how it is to answer."""

    model: str  # as it was named
    question: Question
    output: Output
    given: GivenOptions  # the whole command line, what was pasted filled in
    launch: Launch | None = None
    devices: str = ""  # GPUs that were chosen from a topology
    others: tuple[Cluster, ...] = ()  # clusters beside the question's own
    engines: tuple[Question, ...] = ()  # the same question to other engines, beside its own

    def commands(self, priced: StepBill) -> dict[str, str]:
        """The launch of a step and what checks it, for the engine or the place that ``--emit`` names."""
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
        """What starts a plan, all of its servers, and the benchmark that would check it."""
        from commtax.launch.deployment import start_commands

        return start_commands(q, self.given.emit, copies, prompts, self.devices)


def verb_command(verb: str, about: VerbSubject) -> Callable[[Callable[[Order], None]], Command]:
    """A command with the flags of a verb, run with its order instead of the options that make one."""

    def decorate(body: Callable[[Order], None]) -> Command:
        @functools.wraps(body)
        def run(model: str | None = None, model_option: str = "", **options: object) -> None:
            if model and model_option:
                raise Refusal.of(f"the model is named already: {model}", model=model_option)
            body(read(model or model_option, GivenOptions(options), verb, about))

        spelled = click.option("--model", "-m", "model_option", default="", hidden=True)  # as engines have it
        return click.argument("model", required=False)(spelled(add_verb_options(verb)(run)))

    return decorate


def read(model: str, given: GivenOptions, verb: str, about: VerbSubject) -> Order:
    """The order of a command line: what was pasted is filled in first, options that were given win."""
    output = Output(given.pop("as_json", False), given.pop("as_csv", False), emit_file=given.pop("emit_file", "") or "")
    output.leading = (STRANGE, COSTLY) if verb in WEIGHING else output.leading
    if output.emit_file and not given.emit:
        raise Refusal.about(emit_file="name what to write with --emit, such as --emit kubernetes")
    _pools(given)
    others = _other_clusters(given)
    text = given.pop("pasted", "")
    launch, name = fill_from_command(text, model, given, output.remarks, about) if text else (None, model)
    if not name:
        raise Refusal(f"MODEL: name one, such as commtax {verb} llama-3.1-8b, or paste a launch command with --from")
    devices = "" if given.plans else apply_topology(given, output.remarks)
    own = profile_of(given)
    place = cluster_of(given, "name where decoding runs" if given.prefill_cluster else "name one", launch.num_gpus if launch else 0)
    family = given.pop("read_as", "")
    phase = given.phase or "decode"
    if launch and about is VerbSubject.SEARCH and launch.phase != phase:  # a search stands the pasted plan beside its own
        raise Refusal.of(f"the pasted command is one to {launch.phase}", phase=phase)
    taken = taken_by(verb)
    if phase == "train":
        serving = [name for name, option in taken.items() if option.serves(verb)]
        refuse(given, serving, f"belongs to serving, not to {'--' if about.whole else ''}phase train")
    else:
        trained = [name for name, option in taken.items() if option.group == "Training"]
        refuse(given, trained, "belongs to --phase train" + ("" if about is VerbSubject.SEARCH else f", not to {phase}"))
    engines = list(dict.fromkeys(str(given.engine or "").split(",")))
    if len(engines) > 1 and "" in engines:
        raise Refusal.of("a name is missing between the commas", engine=given.engine)
    if len(engines) > 1 and not (about is VerbSubject.SEARCH and given.phase == "train"):
        rule = f"several are compared by commtax plan with --phase train; name one here, such as --engine {engines[0]}"
        raise Refusal.of(rule, (engines[0],), engine=given.engine)
    known = _called_as_pasted(catalog.model(name, family), launch, model)
    asked = [question_from_options(known, place, own, GivenOptions(given | {"engine": one}), about) for one in engines]
    given.engine = engines[0]
    if launch and launch.phase == "serve" and verb not in WEIGHING:
        from commtax.verbs.worth import questioned_flags  # not for those who paste nothing

        if flags := questioned_flags(asked[0], launch.options):
            asks = "diff with and without, --concurrency N" if launch.servers.prefill_workers else "worth --from … --concurrency N"
            costs = f"cost{'s' * (len(flags) == 1)} whole requests: commtax {asks}"
            output.remarks.append(f"what {' and '.join(flags)} {costs}")
    return Order(name, asked[0], output, given, launch, devices, others, tuple(asked[1:]))


def _called_as_pasted(known: Model, launch: Launch | None, named: str) -> Model:
    """The model with the pasted name of its checkpoint, an id of the Hub or a path, which a command that is written loads too."""
    own = launch.model if launch and "/" not in named else ""
    alike = (alias for alias in known.aliases if own and f"/{normal(alias)}".endswith(f"/{normal(own)}"))
    called = next(alike, own if "/" in own else "")
    if not called or "$" in called:
        return known
    return replace(known, aliases=tuple(dict.fromkeys((called, *known.aliases))))


def options_beside(verb: str, what: str) -> list[str]:
    """Options of a verb that belong to a kind of question alone."""
    return [name for name, option in taken_by(verb).items() if option.beside == what]


def _pools(given: GivenOptions) -> None:
    """Where prompts run, with the links that were given; where decoding runs is the cluster, in either spelling."""
    here = given.cluster
    own, named = given.pop("decode_cluster", ""), here if isinstance(here, tuple) else (here,) if here else ()
    if own and any(name != own for name in named):
        raise Refusal.of(f"another spelling of --cluster, which is {', '.join(named)}", decode_cluster=own)
    if own:
        given.cluster = (own,) if isinstance(here, tuple) else own
    ahead = given.pop("prefill_cluster", "")
    if ahead and len(named) > 1:
        raise Refusal.about(cluster=f"one is needed beside --prefill-cluster, not {len(named)}")
    if ahead:
        given.prefill_cluster = catalog.cluster(ahead, **{key: given[key] for key in ("intra", "inter", "nics")})


def _other_clusters(given: GivenOptions) -> tuple[Cluster, ...]:
    """Where several clusters are named: all but the first, which the question is about."""
    if not isinstance(given.cluster, tuple):
        return ()
    names, links = given.cluster, {key: given[key] for key in ("intra", "inter", "nics")}
    given.cluster = names[0] if names else ""
    return tuple(catalog.cluster(name, **links) for name in names[1:])


def question_from_options(model: Model, place: Cluster, own: Profile | None, given: GivenOptions, about: VerbSubject) -> Question:
    askable = [name for verb in ("compare()", "fit()", "simulate()") for name in taken_by(verb)]
    options = GivenOptions({name: given[name] for name in askable if name in given})
    options.profile, options.sequence_parallel = own, given.sequence_parallel or None
    options.phase = "decode" if about.whole and given.phase != "train" else given.phase or "decode"
    if about is VerbSubject.SEARCH:  # which may try several types
        options.dtype = given.dtype.split(",")[0]
        lengths = (options.input_len, options.output_len)
        options.input_len, options.output_len = (None if isinstance(length, str) else length for length in lengths)
    if isinstance(axes := given.async_axes, str):
        options.async_axes = () if axes == "none" else tuple(axes.split(","))
    each, over_all, options.global_batch = given.batch, options.global_batch, None
    if each is not None and over_all is not None:
        raise Refusal.about(global_batch="give it or batch, not both")
    if about in (VerbSubject.STEP, VerbSubject.SERVER):
        options.batch = share_of(over_all, given.dp) if over_all is not None else 1 if each is None else each
    if about is VerbSubject.LOOP:
        options |= {name: given[name] for name in offered_options() if given.get(name) is not None}
        if options.concurrency is not None and (given.request_rate is not None or given.trace is not None):
            options.max_concurrency, options.concurrency = options.concurrency, None
        plain, offered = split(options)
        return resolve_question(model, place, plain).but(offered=offered)
    return resolve_question(model, place, options)


def profile_of(given: GivenOptions) -> Profile | None:
    """A profile, or several as one; it also says which chip and how many, where no cluster is named."""
    own = load_profile(given.pop("profile", ()))
    if own and not given.cluster and (chip := measured_chip(own)):
        laid = (run.deployment for run in own.lessons)
        given.cluster = f"{max(2, given.tp or max((int(d.tp * d.pp * d.dp) for d in laid), default=2))}x{chip}"
    return own


WEIGHING = ("plan", "worth")
"""Verbs that say whether settings are worth it."""
PLACE = ("cluster", "intra", "inter", "nics")
"""Options that say where: hosts, and the links that they have instead of their own."""


def cluster_of(given: GivenOptions, wish: str = "name one", pasted: int = 0) -> Cluster:
    """The cluster with the links that were given for it; a launch that was ``pasted`` tells how many GPUs it needs."""
    name, links = given.pop(PLACE[0]), {key: given.pop(key) for key in PLACE[1:]}
    if not name and pasted:
        needs = f"what was pasted needs {plural(pasted, 'GPU')} and does not say which"
        raise Refusal.about(cluster=f"{needs}; name them, such as --cluster {pasted}xh100-sxm (commtax catalog clusters)")
    if not name:
        raise Refusal.about(cluster=f"{wish} with --cluster, such as --cluster 8xh100-sxm (commtax catalog clusters)")
    return catalog.cluster(name, **links)


def refuse(given: GivenOptions, names: Sequence[str], why: str) -> None:
    """Options are honoured or refused, never ignored: these must be what they are when nobody gives them."""
    usual = {p.name: p.default for p in click.get_current_context().command.params}
    for name in names:
        if name in given and given[name] not in (usual.get(name), None, "", ()) and given[name] is not False:
            raise Refusal(f"{name}: {why}", name)
