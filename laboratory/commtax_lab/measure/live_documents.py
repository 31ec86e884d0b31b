"""The keys of the documents that live runs leave, and of the rows inside them."""

from typing import NotRequired, TypedDict


class IssuedCount(TypedDict):
    phase: str
    what: str
    op: str
    nbytes: int
    count: int


class CollectiveCounts(TypedDict):
    measured: list[IssuedCount]
    predicted: list[IssuedCount]
    equal: bool


class WeightSums(TypedDict):
    sum_bytes: int
    copies: dict[str, int]
    sum_once_bytes: int
    tp1_bytes: int
    equal: bool


class RankMemory(TypedDict):
    rank: int
    host: str
    cores: list[int]
    weights_bytes: int
    replicated: dict[str, int]
    kv_bytes: int
    kv_blocks: int
    block_size: int
    predicted_weights_bytes: int
    predicted_kv_bytes: int


class WireTime(TypedDict):
    what: str
    wire_us: float
    mean_us: float


class WireTimes(TypedDict, total=False):
    collectives: list[WireTime]
    wire_ms_per_token: float
    skew_ms_per_token: float
    waited_ms_per_token: list[float]
    slowest_rank: int


class StepTimes(WireTimes):
    ms_per_token: float
    own_ms: float
    waiting_ms: float
    spread_ms: list[float]
    prefill_ms: float


class Replicas(TypedDict):
    replicas: int
    ms_per_token: float
    tokens_per_s: float


class OneRankRuns(TypedDict, total=False):
    tp1: StepTimes
    replicas: Replicas


class LogitsCheck(TypedDict):
    max_logit_diff: float | None
    logit_tolerance: NotRequired[float]
    logits_equal: bool | None
    same_tokens: NotRequired[int]
    steps: NotRequired[int]


class WeightRead(TypedDict):
    bytes: int
    memory_Bps: float | None
    bound_ms: float | None
    attained: float | None


class BillRow(TypedDict):
    item: str
    kind: str
    predicted_s: float | None
    measured_s: float | None


class PredictedStep(TypedDict):
    source: str
    tp_ms: float
    tp1_ms: NotRequired[float]


class LiveBill(TypedDict):
    weight_read: WeightRead
    bill: list[BillRow]
    predicted: PredictedStep | None
    notes: list[str]


class TpDocument(OneRankRuns, LogitsCheck, LiveBill):
    schema: str
    model: str
    weights_source: str
    dtype: str
    device: str
    torch: str
    load: list[float]
    impl: str
    emulated_link: str
    tp_size: int
    batch: int
    input_len: int
    output_len: int
    repeats: int
    ranks: list[RankMemory]
    weights: WeightSums
    collectives: CollectiveCounts
    tp: StepTimes


class CollectiveTime(TypedDict):
    impl: str
    ranks: int
    op: str
    type: str
    size_bytes: int
    count: int
    time_us: float
    algbw_GBps: float
    busbw_GBps: float
    min_us: float
    max_us: float
    wrong: int


class FittedCollective(TypedDict):
    impl: str
    ranks: int
    op: str
    alpha_us: float
    bandwidth_GBps: float | None
    median_residual: float
    max_residual: float


class CollectivesDocument(TypedDict):
    schema: str
    op: str
    emulated_link: str
    rows: list[CollectiveTime]
    fits: list[FittedCollective]
    notes: list[str]


class ChipRates(TypedDict):
    key: str
    name: str
    memory_Bps: float
    flops_per_s: dict[str, float]
    memory_bytes: float


class WirePath(TypedDict):
    op: str
    algorithm: str
    launch_s: float
    hop_s: NotRequired[float]
    bandwidth_Bps: float
    name: str
    source: str


class LibraryPaths(TypedDict):
    name: str
    paths: list[WirePath]


class MachineProfile(TypedDict):
    commtax_profile: int
    name: str
    engine: str
    dtype: str
    chip: ChipRates
    kernels: dict[str, dict[str, dict[str, float]]]
    libraries: list[LibraryPaths]
    host_s: float
    sources: dict[str, str]
