"""The options of ``measure``, as its commands hand them on."""

from typing import TypedDict


class WeightsChoice(TypedDict):
    model: str
    random: bool


class JobOptions(TypedDict, total=False):
    tp: int
    layers: int
    batch: int
    input_len: int
    output_len: int
    dtype: str
    device: str
    impl: str
    emulate_link: str
    slow_rank: str
    break_rank: int
    repeats: int
    reference: bool
    graphs: bool
    cluster: str
    profile: str
    trace: str


class ServerOptions(TypedDict, total=False):
    tp: int
    layers: int
    seed: int
    dtype: str
    device: str
    impl: str


class StudyOptions(TypedDict, total=False):
    recipe: str
    engine: str
    layers: int
    quick: bool
    dtype: str
    device: str
    impl: str
    cluster: str
    profile: str
    dataset: str
    vllm: str
    vllm_args: str
    name: str
