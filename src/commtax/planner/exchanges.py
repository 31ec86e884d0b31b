"""How plans are run beside their sizes, as far as a search tries it: how tokens reach spread experts, and techniques."""

from dataclasses import replace

from commtax.catalog.techniques import changes_of
from commtax.question import Question
from commtax.records import dataclass
from commtax.verbs.steps import BULK

LOW_LATENCY = "deepep_low_latency"
"""How engines send tokens to experts on many ranks; prompts go by its kernels for throughput."""


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """How tokens reach experts that are spread over ranks, and how many copies of popular ones there are."""

    backend: str = ""  # "": the engine's own
    redundant: int = 0
    wide: bool = False  # tried where many ranks share experts, and nowhere else …
    shared: bool = True  # … by servers that compute prompts and decode …
    apart: bool = True  # … or by those that do one of both
    techniques: str = ""  # that are on, as ``--technique`` takes them

    @property
    def beside(self) -> bool:
        """Whether it is tried beside the engine's own way, which tells why plans are none."""
        return self.wide or bool(self.techniques)

    @property
    def asked(self) -> dict[str, object]:
        """As fields of a question."""
        own = {"ep_backend": self.backend, "redundant_experts": self.redundant}
        return own | (changes_of(self.techniques) if self.techniques else {})


def exchanges(q: Question) -> tuple[ExpertExchange, ...]:
    """All ways that are tried: without techniques first, then with each set of them."""
    plain = _plain_exchanges(q)
    return plain + tuple(replace(one, techniques=text) for text in q.goal.technique_sets for one in plain)


def _plain_exchanges(q: Question) -> tuple[ExpertExchange, ...]:
    """The engine's own as it is asked; and where nobody says, DeepEP's kernels for experts on many ranks, with and without as many
    redundant experts as published deployments hold: an eighth (32 of DeepSeek-V3's 256).

    Kernels of low latency are for steps without prompts: of servers that only decode, or where an engine changes by step.
    """
    own, model = ExpertExchange(q.what_if.ep_backend, q.plan.redundant_experts), q.model.experts
    if model is None or own.backend or LOW_LATENCY not in q.engine.sends.ep_backends:
        return (own,)
    usual = dict.fromkeys([0, model.num_experts // 8 if model.num_experts % 8 == 0 else 0])
    copies, both = [own.redundant] if own.redundant else list(usual), q.engine.sends.exchange_by_step
    bulk = [] if both else [ExpertExchange(BULK[LOW_LATENCY], n, wide=True, apart=False) for n in copies]
    return own, *(ExpertExchange(LOW_LATENCY, n, wide=True, shared=both) for n in copies), *bulk
