"""The shapes of all answers, for the schema that is served; answers are built by ``report`` and not parsed again."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Span = tuple[float, float]
Value = int | float | str | None


class Strict(BaseModel):
    """Nothing beyond what is told."""

    model_config = ConfigDict(extra="forbid")


class Instead(Strict):
    """Sizes that would be legal, and their names."""

    patch: dict[str, Value]
    text: str


class Problem(Strict):
    """Every refusal: what, under which key, by which rule, and the nearest values that would do."""

    error: str
    argument: str
    rule: str
    nearest: list[Value]
    instead: Instead | None


class Binding(Strict):
    axis: Literal["tp", "pp", "dp", "ep", "cp", "compute"]
    text: str


class Totals(Strict):
    step_s: float
    low_s: float
    high_s: float
    compute_s: float
    comm_s: float
    exposed_comm_s: float
    comm_fraction: float
    tokens_per_s: float
    bubble_fraction: float
    mfu: float | None
    hfu: float | None
    mfu_definition: str
    local_tokens: float | None
    fits: bool
    source: str


class BarShape(Strict):
    lane: Literal["compute", "comm"]
    axis: str
    stage: Literal["forward", "backward"]
    name: str
    start_s: float
    end_s: float
    latency_s: float
    bandwidth_s: float
    exposed: list[Span]
    hidden: list[Span]
    formula: str
    source: str


class LayerShape(Strict):
    length_s: float
    note: str
    bars: list[BarShape]


class Axis(Strict):
    axis: str
    collective: str
    nbytes: float
    ranks: float
    times: float
    link: str
    more: int
    top_s: float
    window_s: float
    comm_s: float
    exposed_s: float
    bubble_s: float
    tax: float
    hidden: bool
    binding: bool
    formula: str
    source: str


class BillLine(Strict):
    kind: str
    axis: str
    what: str
    how: str
    why: str
    nbytes: float
    times: float
    each_s: float
    latency_s: float
    total_s: float
    share: float
    exposed_s: float
    formula: str
    source: str


class Change(Strict):
    label: str
    step_s: float
    change: float
    note: str
    patch: dict[str, Value] | None


class Part(Strict):
    name: str
    nbytes: float


class Memory(Strict):
    capacity_bytes: float
    used_bytes: float
    fits: bool
    parts: list[Part]
    kv_tokens: int | None
    note: str


class Commands(Strict):
    commtax: str
    launch: str
    launch_engine: str
    launch_why: str
    nccl: str
    nccl_why: str


class LessonRow(Strict):
    name: str
    lesson: str
    ours: str
    why: str


class Lesson(Strict):
    applies: bool
    rows: list[LessonRow]


class Place(Strict):
    gpus: int
    used_gpus: int
    text: str


class Move(Strict):
    """What one place of a slider sets, and what it says of sizes that follow."""

    patch: dict[str, Value]
    note: str


class View(Strict):
    """Everything for one repaint."""

    state: dict[str, Value]
    title: str
    sentence: str
    binding: Binding
    notes: list[str]
    cluster: Place
    local_tokens: float | None
    totals: Totals
    layer: LayerShape
    axes: list[Axis]
    bill: list[BillLine]
    changes: list[Change]
    memory: Memory
    commands: Commands
    lesson: Lesson
    limits: dict[str, list[int]]
    moves: dict[str, list[Move]]


class Cell(Strict):
    row: int
    column: int
    step_s: float | None
    rate: float | None
    comm_fraction: float | None
    mfu: float | None
    fits: bool | None
    refused: str | None
    pays: bool | None
    patch: dict[str, Value] | None


class Grid(Strict):
    """A heat map: cells by row and column."""

    rows: list[str]
    columns: list[str]
    row_title: str
    column_title: str
    rate_unit: str
    cells: list[Cell]
    here: tuple[int, int]
    note: str


class Box(Strict):
    stage: int
    start: float
    end: float
    kind: Literal["F", "B", "W", "BW", "F&B"]
    microbatch: int


class Pipeline(Strict):
    """Boxes on the stages' lanes, in seconds."""

    lanes: list[str]
    bars: list[Box]
    total: float
    bubble_fraction: float
    formula: str
    note: str


class Point(Strict):
    name: str
    x: float
    y: float
    best: bool
    text: str
    patch: dict[str, Value] | None


class Named(BaseModel):
    """A document of the command line under its schema's name: the fields that all of its versions have."""

    model_config = ConfigDict(extra="allow")
    model: str
    cluster: str
    engine: str


class Bill(Named):
    """As ``commtax bill --json``."""

    step_s: float
    items: list[dict[str, Any]]
    verdict: str
    fits: bool


class Fit(Named):
    """As ``commtax fit --json``."""

    fits: bool
    shortfall_bytes: float


class Plans(Named):
    """As ``commtax plan --json``, and the front as points."""

    plans: list[dict[str, Any]]
    front: list[Point]
    sentence: str
    x_title: str
    y_title: str


class Entry(BaseModel):
    """One thing of the catalogue."""

    model_config = ConfigDict(extra="allow")
    key: str
    name: str


class Preset(Strict):
    name: str
    state: dict[str, Value]


class Step(Strict):
    title: str
    text: str
    state: dict[str, Value]
    watch: str
    lesson: str


class Catalog(Strict):
    """Names for the page's fields, presets and the tour."""

    models: list[Entry]
    clusters: list[Entry]
    chips: list[Entry]
    links: list[Entry]
    engines: list[Entry]
    schedules: list[str]
    presets: list[Preset]
    tour: list[Step]


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The question cannot be read."},
    405: {"model": Problem, "description": "Only GET and HEAD."},
    413: {"model": Problem, "description": "Questions have no body."},
    414: {"model": Problem, "description": "The query is too long."},
    422: {
        "model": Problem,
        "description": "The question breaks a rule of the model, the cluster or the engine, or takes longer than the page waits.",
    },
    429: {"model": Problem, "description": "The server is busy; ask again after the seconds that it says."},
}
