"""The keys of the documents that studies leave, and of the grids that they sweep."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from commtax_lab.measure.study.rank_steps import Shard


class Applied(TypedDict):
    ok: bool | None
    found: str


class Check(Applied):
    check: str


class LinkUse(TypedDict):
    name: str
    peak_Bps: float
    inside_Bps: float
    step_Bps: float
    inside_share: float
    step_share: float


class AllReduces(TypedDict):
    how: str
    allreduces: float
    allreduce_bytes: float | None
    allreduce_s: float | None
    comm_fraction: float
    wire_fraction: float | None
    step_s: float
    equal: NotRequired[bool]
    predicted_allreduces: NotRequired[float]
    predicted_bytes: NotRequired[float | None]
    predicted_s: NotRequired[float | None]
    predicted_comm_fraction: NotRequired[float | None]
    link: NotRequired[LinkUse | None]


class Moved(TypedDict):
    seconds: float
    bytes: dict[str, float]


class RunRecord(TypedDict, total=False):
    run: dict[str, object]
    error: str
    latency_s: list[float]
    prefill_s: list[float]
    decode_s: list[float]
    applied: Applied
    profile: AllReduces
    stats_s: dict[str, dict[str, float]]
    requests: int | None
    failed: int
    duration_s: float | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    input_len: float | None
    output_len: float | None
    link: Moved


class PromptTime(TypedDict):
    input_len: int
    ms: float
    predicted_ms: float | None


class RequestTime(PromptTime):
    output_len: int
    spread: float


class BatchTime(TypedDict):
    batch: int
    latency_ms: float
    spread: float
    tokens_per_s: float
    predicted_latency_ms: float | None
    predicted_tokens_per_s: float | None


class ServedPrediction(TypedDict, total=False):
    predicted_tpot_ms: float | None
    predicted_ttft_ms: float | None
    predicted_how: str


class ServedFigures(ServedPrediction):
    asked_per_s: float
    concurrency: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    tpot_p50_ms: float | None
    requests: int | None
    failed: int
    requests_per_s: float | None
    output_tokens_per_s: float | None
    input_len: float | None
    output_len: float | None


class OfflineRates(TypedDict):
    requests_per_s: float | None
    total_tokens_per_s: float | None


class Degree(TypedDict):
    tp: int
    latency: list[RequestTime]
    prefill: list[PromptTime]
    decode_ms: float | None
    decode_predicted_ms: float | None
    decode_len: NotRequired[int]
    batches: NotRequired[list[BatchTime]]
    profile: NotRequired[AllReduces]
    serve: NotRequired[ServedFigures]
    offline: NotRequired[OfflineRates]
    applied: NotRequired[Applied]


class Gain(TypedDict):
    batch: int
    ratio: float
    noise: float
    predicted: float | None


class Crossover(TypedDict):
    tp: int
    batch: int | None
    predicted_batch: int | None
    ratios: list[Gain]


class CounterRate(TypedDict):
    counter: str
    run: str
    bytes: float
    bytes_per_s: float


class StudyFacts(TypedDict):
    recipe: str
    quick: bool
    engine: str
    version: str
    model: str
    dtype: str
    device: str
    box: str
    cluster: str
    profile: str
    serving_lengths: str
    checks: list[Check]
    missing: list[str]
    link_counters: NotRequired[list[CounterRate]]


class StudyDocument(StudyFacts):
    schema: str
    predicted_from: list[str]
    no_prediction: NotRequired[str]
    degrees: list[Degree]
    crossover: list[Crossover]
    failed: list[dict[str, str]]
    flags: list[dict[str, str]]
    answers: list[dict[str, str]]
    lessons: NotRequired["StudyLessons | None"]


class ServedRun(TypedDict):
    request_rate: float
    sweeps_apart: float
    steps_over_timed: float
    measured: dict[str, float | str]
    predicted: dict[str, float | str]
    errors: dict[str, float]
    errors_at_its_pace: dict[str, float]


class ServingDocument(TypedDict):
    schema: str
    model: str
    dtype: str
    impl: str
    seed: int
    tp_size: int
    weights_source: str
    device: str
    max_num_seqs: int
    most_requests_per_s: float
    load: list[float]
    sweeps_apart: float
    steps: list[dict[str, float]]
    runs: list[ServedRun]
    notes: list[str]


class GemmGrid(TypedDict):
    least_side: int
    modes: list[tuple[str, str]]


class SizeGrid(TypedDict):
    batches: list[int]
    lengths: list[int]
    backends: NotRequired[list[str]]


class StepGrid(TypedDict):
    decode: SizeGrid
    prefill: list[tuple[int, int]]


class ShardChanges(TypedDict, total=False):
    num_layers: int
    vocab: int


class SweepGrid(TypedDict):
    models: list[str]
    degrees: list[int]
    changed: ShardChanges
    rows: list[int]
    gemm: GemmGrid
    decode: SizeGrid
    prefill: SizeGrid
    small: dict[str, list[str]]
    copy: dict[str, list[int]]
    step: StepGrid


class SweepPoint(TypedDict, total=False):
    m: int
    n: int
    k: int
    dtype: str
    mode: str
    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    backend: str
    splits: int
    op: str
    rows: int
    width: int
    nbytes: int
    phase: str
    shard: "Shard"
    model: str
    tp: int
    num_layers: int


class ForeseenLatency(TypedDict):
    measured_ms: float
    before_ms: float
    after_ms: float
    error_before: float
    error_after: float
    low_ms: float
    high_ms: float
    covered: bool


class ForeseenRun(TypedDict):
    load: str
    tpot: ForeseenLatency
    ttft: ForeseenLatency


class StudyLessons(TypedDict):
    shown: list[str]
    foreseen: list[ForeseenRun]
    errors: dict[str, dict[str, float]]


class LessonsDocument(StudyLessons):
    schema: str
    engine: str
    model: str
    dtype: str
    tp_size: int
    device: str
    clock: str
    wall_over_clock: float
    scatter: float
    results: list[Mapping[str, object]]
    refused: list[str]
