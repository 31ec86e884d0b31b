"""How plans are run beside their sizes, as far as a search tries it: how tokens reach spread experts, over how many ranks
caches are split, and techniques; and which requested techniques a plan cannot have."""

from collections.abc import Iterable

from commtax.catalog.techniques import changes_of, techniques_on
from commtax.cost.traffic import BACKENDS, backend_called
from commtax.question import Question
from commtax.records import dataclass, replace
from commtax.spec import NO_TECHNIQUES
from commtax.statement import Refusal, rule_of
from commtax.verbs.settling import settle

SEARCHED = "dcp"  # over how many ranks caches are split is searched, up to what is asked for


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """How tokens reach experts that are spread over ranks, how many copies of popular ones there are, and who shares caches."""

    backend: str = ""  # "": the engine's own
    redundant: int = 0
    wide: bool = False  # tried where many ranks share experts, and nowhere else …
    shared: bool = True  # … by servers that compute prompts and decode …
    apart: bool = True  # … or by those that do one of both
    dcp: int = 1  # ranks that share the cache of a sequence, where as many would keep the same keys
    techniques: str = ""  # that are on, as ``--technique`` takes them

    @property
    def beside(self) -> bool:
        """Whether it is tried beside the engine's own way, which tells why plans are none."""
        return self.wide or self.dcp > 1 or bool(self.techniques)

    @property
    def title(self) -> str:
        """Name of an exchange that is tried beside the engine's own."""
        return (backend_called(self.backend).title or self.backend) if self.wide else ""

    @property
    def changes(self) -> dict[str, object]:
        """The exchange as fields of a question."""
        sizes = {"ep_backend": self.backend, "redundant_experts": self.redundant, "dcp": self.dcp}
        return sizes | (changes_of(self.techniques) if self.techniques else {})

    @property
    def stated(self) -> dict[str, object]:
        """The same without the engine's own ways."""
        wide = {"ep_backend": self.backend, "redundant_experts": self.redundant} if self.wide else {}
        return wide | ({"dcp": self.dcp} if self.dcp > 1 else {})


def exchanges(q: Question) -> tuple[ExpertExchange, ...]:
    """Return all ways that are tried: without techniques first, then with each set of them."""
    plain = _plain_exchanges(q)
    return plain + tuple(replace(one, techniques=text) for text in q.goal.technique_sets for one in plain)


def requested_way(q: Question, apart: bool) -> int:
    """Return the one of all ways that is the question's own: nothing beside it is tried, and caches are split as it says."""
    split = (i for i, one in enumerate(_plain_exchanges(q)) if not one.wide and one.dcp == q.plan.dcp and (one.apart or not apart))
    return next(split, 0)


def _plain_exchanges(q: Question) -> tuple[ExpertExchange, ...]:
    """Return the requested or the engine's own exchange, and where none is requested those for experts on many ranks."""
    requested, model = ExpertExchange(q.what_if.ep_backend, q.plan.redundant_experts), q.model.experts
    split = tuple(replace(requested, dcp=2**i, apart=False) for i in range(1, int(q.plan.dcp).bit_length()))
    if model is None or requested.backend:
        return (requested, *split)
    eighth = [model.num_experts // 8] if model.num_experts % 8 == 0 else []  # as published: 32 of DeepSeek-V3's 256
    copies = [requested.redundant] if requested.redundant else [0, *eighth]
    wide, place = list[ExpertExchange](), q.cluster
    for backend in (name for name, one in BACKENDS.items() if {place.chip.vendor, place.chip.family} & {*one.searched_on}):
        if backend not in q.engine.sends.ep_backends or (place.intra.kind != "nvlink" and backend_called(backend).one_domain):
            continue
        prompts = backend_called(backend).bulk  # kernels of low latency are for steps without prompts
        both = q.engine.sends.exchange_by_step or not prompts
        wide += [ExpertExchange(backend, n, wide=True, shared=both) for n in copies]
        # Prompts of servers that also decode go in bulk, where the backend has kernels for that.
        wide += [] if both else [ExpertExchange(prompts, n, wide=True, apart=False) for n in copies]
    return requested, *wide, *split


def dropped(put: Question, workers: Iterable[Question]) -> tuple[str, ...]:
    """Return the techniques that none of a plan's workers can have, as they are written."""
    if put.techniques == NO_TECHNIQUES:
        return ()
    on = {one.key for worker in workers for one, _ in techniques_on(worker)}
    return tuple(text for one, text in techniques_on(put) if one.key not in {*on, SEARCHED})


def without(names: tuple[str, ...]) -> str:
    return f", without {', '.join(names)}" if names else ""


def refuse_unused(put: Question, plans: list[tuple[Question, ...]]) -> None:
    """Refuse a technique that no plan can have. A plan is the questions of its workers."""
    missing = set.intersection(*(set(dropped(put, workers)) for workers in plans)) if plans else set()
    if put.plan.dcp > 1 and all(worker.plan.dcp == 1 for workers in plans for worker in workers):
        missing.add(f"{SEARCHED}={put.plan.dcp}")
    for text in sorted(missing):
        reasons = dict.fromkeys(why for workers in plans for worker in workers if (why := _refused(worker, text)))
        if reasons:
            shown = list(reasons)[-1 if text.startswith(SEARCHED) else -2 :]  # those of the widest plans
            raise Refusal(f"technique '{text}': no plan here can have it: {'; others: '.join(shown)}", "technique")


def _refused(worker: Question, text: str) -> str:
    try:
        settle(worker.but(**changes_of(text)))
    except ValueError as error:
        return rule_of(error)
    return ""
