"""What the page starts from: the catalogue's names, presets and the tour (``tour.toml``)."""

from functools import lru_cache

from commtax import catalog
from commtax.catalog.models import bundled_model
from commtax.cost.inventory import num_params
from commtax.cost.schedules import TRAINING
from commtax.files import table
from commtax.report.documents import Record, facts


@lru_cache(maxsize=1)
def catalogue() -> Record:
    start = table("report/view/tour.toml")
    hosts = (*catalog.keys("clusters"), *start["usual_clusters"])
    return {
        "models": [_model(key) for key in catalog.keys("models")],
        "clusters": [{"key": key, "name": catalog.cluster(key).name} for key in hosts],
        "chips": [{"key": key, "name": catalog.chip(key).name} for key in catalog.keys("chips")],
        "links": [{**facts(x, "key", "name"), "kind": x.scope} for x in map(catalog.link, catalog.keys("links"))],
        "engines": [facts(x, "key", "name", "phases") for x in map(catalog.engine, catalog.keys("engines"))],
        "schedules": list(TRAINING),
        "presets": start["presets"],
        "tour": start["tour"],
    }


def _model(key: str) -> Record:
    model = bundled_model(key)
    assert model is not None
    name = next((a.split("/")[1] for a in model.aliases if "/" in a), key)
    sizes = {"params": num_params(model), "family": model.architecture, "experts": model.experts is not None}
    return {"key": key, "name": name, **sizes}
