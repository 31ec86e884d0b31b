"""Curves of a profile across hosts, as they are written: read by rule, so that what is written can be read."""

from collections.abc import Sequence
from dataclasses import asdict, fields

from commtax.catalog import physics
from commtax.catalog.fabric import OPS
from commtax.catalog.table_view import TableView
from commtax.spec import NetworkCurve
from commtax.statement import Refusal


def parse(rows: object) -> tuple[NetworkCurve, ...]:
    """All curves, each of another collective."""
    made = tuple(_curve(row, f"network_curves[{i}]") for i, row in enumerate(_list(rows, "network_curves")))
    if len({curve.op for curve in made}) < len(made):
        raise Refusal("network_curves: one curve for each collective is needed", "network_curves")
    return made


def document(curves: Sequence[NetworkCurve]) -> list[dict[str, object]]:
    return [asdict(curve) for curve in curves]


def _curve(row: object, where: str) -> NetworkCurve:
    part = TableView.of(row, where, "a table of a curve")
    part.check_known({f.name for f in fields(NetworkCurve)})
    if part.text("op") not in OPS:
        raise Refusal(f"{where}.op={physics.short_repr(part.table.get('op'))}: one of {', '.join(OPS)}", "op", OPS)
    ranks, nbytes = (_rising(_numbers(part, part.table.get(key), key), part.named(key)) for key in ("ranks", "nbytes"))
    factor, sigma = (_grid(part, key, len(ranks), len(nbytes)) for key in ("factor", "sigma"))
    drift, grown, reshaped, domain = (
        physics.CURVE[key].read(part.table.get(key, 0), part.named(key)) for key in ("drift", "grown", "reshaped", "domain")
    )
    groups = tuple(map(int, ranks))
    return NetworkCurve(part.text("op"), groups, nbytes, factor, sigma, drift, grown, reshaped, int(domain))


def _grid(part: TableView, key: str, groups: int, sizes: int) -> tuple[tuple[float, ...], ...]:
    rows = tuple(_numbers(part, row, key) for row in _list(part.table.get(key), part.named(key)))
    if len(rows) != groups or {len(row) for row in rows} != {sizes}:
        raise Refusal(f"{part.named(key)}: {groups} x {sizes} numbers are needed, a row for each number of ranks", part.named(key))
    return rows


def _numbers(part: TableView, values: object, key: str) -> tuple[float, ...]:
    return tuple(physics.CURVE[key].read(value, part.named(key)) for value in _list(values, part.named(key)))


def _rising(values: tuple[float, ...], name: str) -> tuple[float, ...]:
    if not values or list(values) != sorted(set(values)):
        raise Refusal(f"{name}: numbers that rise are needed, at least one", name)
    return values


def _list(value: object, name: str) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise Refusal(f"{name}={physics.short_repr(value)}: a list is needed", name)
    return value
