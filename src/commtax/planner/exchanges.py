"""How tokens reach experts that are spread over ranks, and over how many ranks caches are split, as far as a search tries it."""

from dataclasses import replace

from commtax.question import Question
from commtax.records import dataclass
from commtax.verbs.steps import BULK

LOW_LATENCY = "deepep_low_latency"
"""How engines send tokens to experts on many ranks; prompts go by its kernels for throughput."""


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """How tokens reach experts that are spread over ranks, how many copies of popular ones there are, and who shares caches."""

    backend: str = ""  # "": the engine's own
    redundant: int = 0
    wide: bool = False  # tried where many ranks share experts, and nowhere else …
    shared: bool = True  # … by servers that compute prompts and decode …
    apart: bool = True  # … or by those that do one of both
    dcp: int = 1  # ranks that share the cache of a sequence, where as many would keep the same keys

    @property
    def asked(self) -> dict[str, object]:
        """As fields of a question."""
        return {"ep_backend": self.backend, "redundant_experts": self.redundant, "dcp": self.dcp}

    @property
    def told(self) -> dict[str, object]:
        """… as far as they are not an engine's own ways."""
        wide = {"ep_backend": self.backend, "redundant_experts": self.redundant} if self.wide else {}
        return wide | ({"dcp": self.dcp} if self.dcp > 1 else {})


def exchanges(q: Question) -> tuple[ExpertExchange, ...]:
    """The engine's own as it is asked; and where nobody says, DeepEP's kernels for experts on many ranks, with and without as many
    redundant experts as published deployments hold: an eighth (32 of DeepSeek-V3's 256).

    Kernels of low latency are for steps without prompts: of servers that only decode, or where an engine changes by step.
    """
    own, model = ExpertExchange(q.what_if.ep_backend, q.plan.redundant_experts), q.model.experts
    split = _split_caches(q, own)
    if model is None or own.backend or LOW_LATENCY not in q.engine.sends.ep_backends:
        return (own, *split)
    usual = dict.fromkeys([0, model.num_experts // 8 if model.num_experts % 8 == 0 else 0])
    copies, both = [own.redundant] if own.redundant else list(usual), q.engine.sends.exchange_by_step
    bulk = [] if both else [ExpertExchange(BULK[LOW_LATENCY], n, wide=True, apart=False) for n in copies]
    return own, *(ExpertExchange(LOW_LATENCY, n, wide=True, shared=both) for n in copies), *bulk, *split


def _split_caches(q: Question, own: ExpertExchange) -> tuple[ExpertExchange, ...]:
    """Caches split over 2, 4 … of the ranks that would keep the same keys, up to as many as are asked for."""
    most = int(q.plan.dcp)
    return tuple(replace(own, dcp=2**i, apart=False) for i in range(1, most.bit_length()))
