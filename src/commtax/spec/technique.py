"""What an engine can be told to do beside its plan, and how such a technique is named."""

from collections.abc import Mapping
from dataclasses import field

from commtax.records import dataclass


@dataclass(frozen=True, slots=True)
class Techniques:
    """Techniques of a served step that are on; one that is off changes nothing."""

    two_batches: bool = False  # halves of a batch run in turn: exchanges of one beside the kernels of the other …
    two_batches_from: int = 0  # … from so many tokens per rank on; 0: the engine's own threshold
    single_batch: bool = False  # exchanges of a batch run beside its own shared expert and down-projection
    async_tp: bool = False  # products are cut into tiles, beside which gathers and scatters run
    shared_stream: bool = False  # the shared expert runs beside the routed ones
    async_scheduling: bool = False  # the host prepares a step while the one before it runs
    fused_reduce: str = ""  # "one-shot", "two-shot" or "auto": an all-reduce, residual and norm in one kernel
    dispatch_dtype: str = ""  # what tokens travel to their experts in; "": as the experts' arithmetic is
    balanced: bool = False  # experts are laid out by measured loads (EPLB)
    balanced_prompts: bool = False  # replicas that share experts wait until each of them has a prompt
    drafter: str = ""  # what drafts tokens: "mtp", "eagle3", "ngram" …; how many is ``speculative``
    acceptance: float = 0.0  # probability that a draft is accepted once those before it were; 0: see below
    accepted_length: float = 0.0  # tokens that a step yields per sequence, the model's own included; 0: from the acceptance
    kv_transfer: str = ""  # what carries a cache from prompt workers to those that decode; "": the engine's own


NO_TECHNIQUES = Techniques()


@dataclass(frozen=True, slots=True)
class Technique:
    """One technique as it is asked for: ``mtp=3:0.8`` sets what it always sets, and what stands behind ``=`` in turn."""

    key: str
    title: str
    group: str  # overlap | collectives | experts | context | drafts | cache
    sets: Mapping[str, object] = field(default_factory=dict)  # fields of the question, and what they become
    takes: tuple[str, ...] = ()  # fields that values behind ``=`` are for, in their order; ``FIELD?`` may be left out
    also: tuple[str, ...] = ()  # other names
    usual: str = ""  # the values that are tried where nobody says any: ``3`` or ``int4``
    flags: Mapping[str, str] = field(default_factory=dict)  # by engine: what asks for it, fields in braces
    words: Mapping[str, str] = field(default_factory=dict)  # of a value: what the field becomes for it
    lossy: bool = False  # numbers come out otherwise: quality is to be checked, and no search turns it on by itself
    source: str = ""  # where it is described
