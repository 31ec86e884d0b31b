"""What the page starts from: the catalogue's names, presets and the tour (``tour.toml``)."""

from functools import lru_cache

from commtax import catalog
from commtax.catalog.models import bundled
from commtax.cost.inventory import num_params
from commtax.cost.schedules import TRAINING
from commtax.files import table
from commtax.records import dataclass
from commtax.report.documents import LEFT_OUT, Value

Keys = dict[str, Value]
"""What a state sets, under short keys."""


@dataclass(frozen=True, slots=True)
class TourStep:
    title: str
    text: str
    state: Keys
    watch: str
    lesson: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One thing of the catalogue."""

    key: str
    name: str
    kind: str = LEFT_OUT
    phases: tuple[str, ...] = LEFT_OUT
    params: float = LEFT_OUT
    family: str = LEFT_OUT
    experts: bool = LEFT_OUT


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    state: Keys


@dataclass(frozen=True, slots=True)
class Catalog:
    """Names for the page's fields, presets and the tour."""

    models: list[CatalogEntry]
    clusters: list[CatalogEntry]
    chips: list[CatalogEntry]
    links: list[CatalogEntry]
    engines: list[CatalogEntry]
    schedules: list[str]
    presets: list[Preset]
    tour: list[TourStep]


@lru_cache(maxsize=1)
def catalogue() -> Catalog:
    start = table("report/view/tour.toml")
    hosts = (*catalog.keys("clusters"), *start["usual_clusters"])
    return Catalog(
        models=[_model(key) for key in catalog.keys("models")],
        clusters=[CatalogEntry(key, catalog.cluster(key).name) for key in hosts],
        chips=[CatalogEntry(key, catalog.chip(key).name) for key in catalog.keys("chips")],
        links=[CatalogEntry(x.key, x.name, kind=x.scope) for x in map(catalog.link, catalog.keys("links"))],
        engines=[CatalogEntry(x.key, x.name, phases=x.phases) for x in map(catalog.engine, catalog.keys("engines"))],
        schedules=list(TRAINING),
        presets=[Preset(**preset) for preset in start["presets"]],
        tour=[TourStep(**step) for step in start["tour"]],
    )


def _model(key: str) -> CatalogEntry:
    model = bundled(key)
    assert model is not None
    name = next((a.split("/")[1] for a in model.aliases if "/" in a), key)
    experts = model.experts is not None
    return CatalogEntry(key, name, params=num_params(model), family=model.architecture, experts=experts)
