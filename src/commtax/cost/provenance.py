"""The catalogue's labels as sources. Where it hands over ``Source``s this module has nothing to do and can go."""

from __future__ import annotations

from commtax.statement import Source

_KINDS = ("assumed", "calibrated", "by definition", "formula")


def sourced(label: str) -> Source:
    """A label of the catalogue with its kind; what cites a fit is measured."""
    if isinstance(label, Source):
        return label
    kind = next((kind for kind in _KINDS if label.startswith(kind)), "measured")
    return Source("datasheet" if kind == "formula" else kind, label, label)
