"""What an engine can be told to do beside its plan, and how such a technique is named."""

from collections.abc import Mapping
from dataclasses import field

from commtax.records import dataclass
from commtax.spec.model import Model


@dataclass(frozen=True, slots=True)
class Techniques:
    """Techniques of a served step that are on; one that is off changes nothing."""

    two_batches: bool = False  # halves of a batch run in turn: exchanges of one beside the kernels of the other …
    two_batches_from: int = 0  # … from so many tokens per rank on; 0: the engine's own threshold
    single_batch: bool = False  # exchanges of a batch run beside its own shared expert and down-projection
    sequence_tokens: int = 0  # sequences are split in steps of so many tokens and more; 0: in all, -1: where the engine does
    async_tp: bool = False  # products are cut into tiles, beside which gathers and scatters run
    shared_stream: bool = False  # the shared expert runs beside the routed ones
    async_scheduling: bool = False  # the host prepares a step while the one before it runs
    fused_reduce: str = ""  # an all-reduce, residual and norm in one kernel: "auto", or the algorithm that it shall run
    dispatch_dtype: str = ""  # what tokens travel to their experts in; "": as the experts' arithmetic is
    balanced: bool = False  # experts are laid out by measured loads (EPLB)
    drafter: str = ""  # what drafts tokens: "mtp", "eagle3", "ngram" …; how many is ``speculative``
    acceptance: float = -1.0  # probability that a draft is accepted once those before it were; below 0: as the next field says
    accepted_length: float = 0.0  # tokens that a step yields per sequence, its own included; 0: by the acceptance, or as measured
    draft_model: str = ""  # the model that drafts, where the drafter is one of its own
    draft_text: str = ""  # kind of text that acceptances were measured on, where nobody gives one; "": chat
    per_step: float = 1.0  # tokens that a decode step yields per sequence, all of the above considered: settled, never asked for
    native_latents: bool = False  # FlashMLA reads a cache of fp8 latents as it is, where the engine's usual kernel copies all of it
    kv_transfer: str = ""  # what carries a cache from prompt workers to those that decode; "": the engine's own
    kv_tier: str = ""  # where cached prefixes lie: "host", "disk" or "remote" memory; "": in the GPU's own cache


NO_TECHNIQUES = Techniques()


@dataclass(frozen=True, slots=True)
class Drafter:
    """What guesses the tokens that a step checks, as it is run beside a model."""

    key: str
    model: Model | None = None  # its layers and its head, as a model; None: drafts are looked up in the text
    modules: int = 1  # such models that are loaded, run in turn
    joined: int = 0  # states of the model's width that a matrix joins into its input …
    rejoined: bool = False  # … for every draft, else for verified tokens alone
    doubled: bool = False  # the first layer's queries, keys and values read the embedding beside the state
    parallel: bool = False  # all drafts come out of one forward pass
    context_only: bool = False  # verified tokens and prompts enter its caches alone: keys and values of each layer
    markov: int = 0  # rank of the matrices by which a draft corrects the logits of the next; 0: there are none
    own_embedding: bool = False  # it brings an embedding of its own …
    own_head: bool = False  # … and a head


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
    along: Mapping[str, str] = field(default_factory=dict)  # by engine: what of the plan's own flags changes with it
    families: tuple[str, ...] = ()  # of chips that have kernels for it; (): it asks for none
    needs: tuple[str, ...] = ()  # techniques, one of which has to be on beside it
    always: Mapping[str, str] = field(default_factory=dict)  # by engine: the version since which it is on without being asked for
    dropped: Mapping[str, str] = field(default_factory=dict)  # by engine: the version since which there is no such technique
    words: Mapping[str, str] = field(default_factory=dict)  # of a value: what the field becomes for it
    lossy: bool = False  # numbers come out otherwise: quality is to be checked, and no search turns it on by itself
    source: str = ""  # where it is described

    @property
    def at_usual_values(self) -> list[str]:
        """It with each of its usual values, as ``--technique`` takes it."""
        return [f"{self.key}={value}" for value in self.usual.split()] or [self.key]
