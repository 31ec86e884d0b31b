"""Random profiles that hold every part, within physics."""

from dataclasses import fields
from typing import get_args

from hypothesis import strategies as st

from commtax.catalog import physics
from commtax.catalog.fabric import OPS
from commtax.catalog.profile_files import SLOPES
from commtax.spec import DTYPE_BYTES, MEASURED, Algorithm, Deployment, NetworkCurve, Path, Profile, RunLesson
from commtax.statement import Source

WORDS = st.text(max_size=12)


def numbers(rule):
    """Any number of a range, its ends among them."""
    inner = st.floats(rule.low, rule.high, allow_subnormal=False)
    small = st.floats(-9, 15).map(lambda x: min(rule.high, max(rule.low, 10**x)))
    either = st.one_of(st.sampled_from([rule.low, rule.high]), inner, small)
    return either.map(lambda x: min(rule.high, max(rule.low, round(x)))) if rule.whole else either


def some(ranges):
    """Some numbers of a table of ranges."""
    return st.fixed_dictionaries({}, optional={key: numbers(rule) for key, rule in ranges.items()})


@st.composite
def kernel_tables(draw):
    forms = draw(st.lists(st.sampled_from(sorted(physics.NEEDED)), max_size=3, unique=True))
    return {
        f"{form}.{draw(st.sampled_from(['bf16', 'fp8']))}": {
            key: draw(numbers(physics.KERNEL[key])) for key in dict.fromkeys([*physics.NEEDED[form], "sigma"])
        }
        for form in forms
    }


@st.composite
def paths(draw):
    whole = {key: int(x) if physics.PATH[key].whole else x for key, x in draw(some(physics.PATH)).items()}
    whole["min_ranks"], whole["max_ranks"] = sorted((int(whole.get("min_ranks", 1)), int(whole.get("max_ranks", 2**31))))
    sizes = sorted(draw(st.sets(st.integers(1, 512), max_size=3)))
    by_size = {key: tuple((n, draw(numbers(rule))) for n in sizes) for key, rule in physics.BY_SIZE.items()}
    groups = {key: tuple(draw(st.lists(st.integers(1, 512), max_size=2))) for key in physics.GROUPS}
    rate = draw(numbers(physics.PATH["bandwidth_Bps"]))
    facts = {**whole, **by_size, **groups, "bandwidth_Bps": rate, "name": draw(WORDS), "source": Source("calibrated", draw(WORDS))}
    return Path(op=draw(st.sampled_from(OPS)), algorithm=draw(st.sampled_from(get_args(Algorithm))), **facts)


@st.composite
def lessons(draw):
    """Of few deployments and loads, so that runs meet."""
    texts = {f.name: draw(st.sampled_from(["", "a", "b.1"])) for f in fields(Deployment) if f.type == "str"}
    sizes = {axis: draw(st.sampled_from([1, 2, 8])) for axis in physics.DEPLOYMENT}
    deployment = Deployment(**texts, **sizes, disaggregated=draw(st.booleans()))
    return [
        RunLesson(
            deployment=deployment,
            metric=draw(st.sampled_from(MEASURED)),
            **{key: draw(st.sampled_from([1.0, 1.0000000001, 64.5, 1024.0])) for key in physics.RUN},
            **{key: draw(numbers(rule)) for key, rule in physics.LATENCY.items()},
            slopes=draw(st.dictionaries(st.sampled_from(sorted(SLOPES)), numbers(physics.SLOPE), max_size=4)),
            label=draw(st.sampled_from(["", "run.json", "ä\n"])),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


@st.composite
def curves(draw):
    """One curve across hosts: a grid of ranks and sizes."""
    grids = ((16, 32, 64), (1024.0, 65536.0, 1e9))
    ranks, sizes = (tuple(sorted(draw(st.sets(st.sampled_from(grid), min_size=1, max_size=3)))) for grid in grids)
    factor, sigma = (tuple(tuple(draw(numbers(physics.CURVE[key])) for _ in sizes) for _ in ranks) for key in ("factor", "sigma"))
    drift, grown = (draw(numbers(physics.CURVE[key])) for key in ("drift", "grown"))
    return NetworkCurve("all-reduce", ranks, sizes, factor, sigma, drift, grown)


@st.composite
def profiles(draw):
    chip = draw(some(physics.CHIP))
    rates = draw(st.dictionaries(st.sampled_from(sorted(DTYPE_BYTES)), numbers(physics.FLOPS), max_size=2))
    network = draw(some(physics.NETWORK))
    network["least_ranks"], network["most_ranks"] = sorted((network.get("least_ranks", 1), network.get("most_ranks", 2**31)))
    return Profile(
        name=draw(WORDS),
        chip={**chip, **({"flops_per_s": rates} if rates else {}), **({"name": draw(WORDS)} if draw(st.booleans()) else {})},
        tables=draw(kernel_tables()),
        libraries={name: tuple(draw(st.lists(paths(), max_size=2))) for name in draw(st.sets(WORDS, max_size=2))},
        network=network if draw(st.booleans()) else {},
        curves=tuple(draw(st.lists(curves(), max_size=1))),
        host=draw(some(physics.HOST)),
        links=draw(st.dictionaries(st.sampled_from(["intra", "inter"]), WORDS, max_size=2)),
        engine=draw(WORDS),
        dtype=draw(WORDS),
        sources=draw(st.dictionaries(WORDS, WORDS, max_size=2)),
        lessons=tuple(lesson for some in draw(st.lists(lessons(), max_size=3)) for lesson in some),
        written=draw(st.one_of(st.just(""), st.dates().map(str))),
    )
