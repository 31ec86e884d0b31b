"""How long requests are: the data sets that ship here as tables of quantiles, and the one way to spell a distribution."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from io import StringIO
from typing import Literal, TypedDict

import numpy as np

from commtax.catalog.loader import did_you_mean, find, plain_record, stems, suggest, table
from commtax.files import TABLE_BYTES, expand_home, read_text
from commtax.records import dataclass
from commtax.spec.stream import MOST_TOKENS, Array, Lengths, lognormal_of_quantiles, lognormal_with_mean
from commtax.statement import Refusal
from commtax.units import parse_count

Side = Literal["inputs", "outputs"]
COLUMNS: Mapping[Side, str] = {"inputs": "input_tokens", "outputs": "output_tokens"}
FORMS = "512, uniform:256-1024, lognormal:mean=512,p90=1200, sharegpt, mlperf-llama2-70b:mean=290 or file:PATH"
POINTS = 65  # quantiles of a data set that ships
FILE_POINTS = 1025  # … of a user's file, at most
_NUMBER = r"[0-9.][0-9.,_]*(?:[eE][-+]?[0-9]+)?[kKmMgG]?"
_ROOMIEST = 2.2729  # exp(1.2816^2 / 2): a lognormal's p90 is at most that many means
PublishedLengths = TypedDict("PublishedLengths", {"mean": float, "quantiles": list[float]})  # noqa: UP013


@dataclass(frozen=True, slots=True)
class DataSet:
    """Lengths of one data set, as its file has them: one source for all of its numbers."""

    key: str
    name: str
    samples: int
    source: str
    licence: str
    inputs: PublishedLengths
    outputs: PublishedLengths | None = None
    correlation: float = 0.0
    note: str = ""
    aliases: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def data_set(stem: str) -> DataSet:
    return plain_record(DataSet, table("lengths", stem), f"lengths/{stem}")


def lengths(text: str | float, side: Side = "inputs", argument: str = "lengths") -> Lengths:
    """Return a distribution as users spell it, where a data set has one for prompts and one for answers.

    >>> lengths("512").mean, lengths("uniform:256-1024").mean, lengths("sharegpt", "outputs").mean
    (512.0, 640.0, 198.343)
    >>> round(lengths("mlperf-llama2-70b:mean=290", "outputs").mean), round(lengths("lognormal:mean=512,p90=1024").sigma, 2)
    (290, 0.78)
    """
    word = text.strip() if isinstance(text, str) else str(text)
    if re.fullmatch(_NUMBER, word):
        return Lengths("constant", _tokens(word, argument))
    kind, _, rest = word.partition(":")
    if kind.lower() == "file" and rest:
        return _from_file(rest, side, argument)
    if kind.lower() == "uniform":
        match = re.fullmatch(rf"({_NUMBER})-({_NUMBER})", rest)
        if not match:
            raise Refusal(f"{argument} 'uniform:{rest[:40]}': write the least and the most, such as uniform:256-1024", argument)
        low, high = (np.rint(_tokens(part, argument)).item() for part in match.groups())
        if low > high:
            nearest = f"uniform:{high:g}-{low:g}"
            raise Refusal(f"{argument} 'uniform:{rest}': the least comes first; nearest valid: {nearest}", argument, (nearest,))
        return Lengths("uniform", (low + high) / 2, low, high)
    return _lognormal(rest, argument) if kind.lower() == "lognormal" else _data_set_lengths(word, side, argument)


def _tokens(text: str, argument: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float(parse_count(text, argument))
    if not 1 <= value <= MOST_TOKENS:
        nearest = 1 if value < 1 else MOST_TOKENS
        raise Refusal(f"{argument}={text}: 1 to {MOST_TOKENS:,} tokens; nearest valid: {nearest}", argument, (nearest,))
    return value


def _options(rest: str, allowed: tuple[str, ...], argument: str, kind: str) -> dict[str, float]:
    values = {}
    for part in rest.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in allowed or not equals:
            hint = suggest(name, allowed) or f"; it takes {', '.join(f'{n}=' for n in allowed)}"
            raise Refusal(f"{argument} '{kind}:{rest[:60]}': unknown part '{part[:20]}'{hint}", argument, allowed)
        if name != "sigma":
            values[name] = _tokens(value, argument)
        elif not 0 <= (sigma := _number(value)) <= 4:
            nearest, rule = 4 if sigma > 4 else 1, "no spread of logarithms from 0 to 4"
            raise Refusal(f"{argument}: sigma={value[:20]} is {rule}; nearest valid: {nearest}", argument, (nearest,))
        else:
            values[name] = sigma
    return values


def _number(text: str) -> float:
    """Return a plain number, or -1 for what is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0


def _lognormal(rest: str, argument: str) -> Lengths:
    shape = _options(rest, ("mean", "p50", "p90", "sigma", "max"), argument, "lognormal")
    most = shape.pop("max", None)
    where, names = f"{argument} 'lognormal:{rest}'", set(shape)
    if len(names) < 2 or ("sigma" in names and (len(names) > 2 or "p90" in names)):
        raise Refusal(f"{where}: give two of mean, p50 and p90, or sigma with mean or p50; such as mean=512,p90=1200", argument)
    mean, p50, p90 = (shape.get(name) for name in ("mean", "p50", "p90"))
    if mean and p50 and p50 > mean:
        raise Refusal(f"{where}: the median of a lognormal lies below its mean; nearest valid: p50={mean:g}", argument)
    if p50 and p90 and p90 < p50:
        raise Refusal(f"{where}: p90 lies below p50; nearest valid: p90={p50:g}", argument)
    if mean and p90 and not mean <= p90 <= _ROOMIEST * mean:
        nearest = mean if p90 < mean else _ROOMIEST * mean
        raise Refusal(f"{where}: p90 of a lognormal is 1 to {_ROOMIEST:.3g} means; nearest valid: p90={nearest:.4g}", argument)
    if "sigma" in shape:
        fitted = Lengths("lognormal", mean or shape["p50"] * float(np.exp(shape["sigma"] ** 2 / 2)), sigma=shape["sigma"])
    else:
        fitted = lognormal_with_mean(**shape) if "mean" in shape else lognormal_of_quantiles(**shape)
    return replace(fitted, high=most) if most else fitted


def _data_set_lengths(word: str, side: Side, argument: str) -> Lengths:
    match = re.fullmatch(rf"([^*:]+)(?:\*({_NUMBER}))?(?::(.*))?", word)
    stem = find("lengths", match[1]) if match else ""
    if not match or not stem:
        near = did_you_mean(match[1] if match else word[:40], "lengths")
        raise Refusal(f"{argument} '{word[:60]}': no distribution{near or '; write ' + FORMS}", argument, stems("lengths"))
    data = data_set(stem)
    column = data.inputs if side == "inputs" else data.outputs
    if not column:
        rule = f"its {side} are not published; name another data set or a length, such as 1024"
        raise Refusal(f"{argument} '{data.key}': {rule}", argument)
    points = tuple(float(q) for q in column["quantiles"])
    plain_lengths = Lengths("quantiles", float(column["mean"]), quantiles=points, source=data.key, correlation=data.correlation)
    options = _options(match[3], ("mean", "max"), argument, word.partition(":")[0]) if match[3] is not None else {}
    factor = _number(match[2] or "1")
    if not 1e-3 <= factor <= 1e3:
        raise Refusal(f"{argument}: '*{match[2]}' is no factor from 0.001 to 1000; nearest valid: *1", argument)
    whole = plain_lengths.scaled(factor * (options["mean"] / plain_lengths.mean if "mean" in options else 1.0))
    return replace(whole, high=options["max"]) if "max" in options else whole


def _from_file(path: str, side: Side, argument: str) -> Lengths:
    """Return the lengths of a user's file: one column of numbers, or a CSV with ``input_tokens`` and ``output_tokens``."""
    import csv

    lines = csv.reader(StringIO(read_text(expand_home(path), argument, most=TABLE_BYTES), newline=""))
    try:
        rows = [(lines.line_num, cells) for cells in lines if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise Refusal(f"{argument} 'file:{path}': cannot be read as CSV ({error})", argument) from None
    if not rows:
        raise Refusal(f"{argument} 'file:{path}': empty; a number of tokens a line is needed", argument)
    names = [cell.strip() for cell in rows[0][1]]
    if not any(name in names for name in COLUMNS.values()):
        headed = len(names) == 1 and not re.fullmatch(_NUMBER, names[0])
        return quantile_lengths(_column(rows[headed:], 0, path, argument), FILE_POINTS)
    if COLUMNS[side] not in names:
        raise Refusal(f"{argument} 'file:{path}': no column {COLUMNS[side]}; it has {', '.join(names)[:80]}", argument)
    columns = {side: _column(rows[1:], names.index(COLUMNS[side]), path, argument)}
    columns |= {one: _column(rows[1:], names.index(name), path, argument) for one, name in COLUMNS.items() if name in names}
    linked = rank_correlation(*columns.values()) if len(columns) > 1 else 0.0
    return replace(quantile_lengths(columns[side], FILE_POINTS), source=f"file:{path}", correlation=linked)


def _column(rows: list[tuple[int, list[str]]], place: int, path: str, argument: str) -> Array:
    values = []
    for line, cells in rows:
        text = cells[place].strip() if place < len(cells) else ""
        value = _number(text)
        if not 1 <= value <= MOST_TOKENS:
            raise Refusal(f"{argument} 'file:{path}': line {line}: '{text[:20]}' is not 1 to {MOST_TOKENS:,} tokens", argument)
        values.append(value)
    if not values:
        raise Refusal(f"{argument} 'file:{path}': no line below its header", argument)
    return np.array(values)


def quantile_lengths(values: Array, points: int = POINTS) -> Lengths:
    """Return a sample as evenly spaced quantiles, the highest of which are moved so that what is drawn keeps the sample's mean.

    A straight line from the last but one to the longest of all, which stands alone, would draw far too many long ones.

    >>> tuple(quantile_lengths(np.array(seen), 3).quantiles for seen in ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0, 6.0]))
    ((1.0, 2.5, 4.0), (1.0, 1.0, 5.0))
    """
    mean, points = float(np.mean(values)), min(points, len(values))
    quantiles = np.quantile(values, np.linspace(0, 1, points))
    if points > 2:
        # Move quantiles from the highest down, each between its neighbours, until straight lines through them have this mean.
        missing = mean * (len(quantiles) - 1) - (quantiles[1:] + quantiles[:-1]).sum() / 2
        most = quantiles[-1]
        for place in range(len(quantiles) - 1, 0, -1):
            weight = 0.5 if place == len(quantiles) - 1 else 1.0
            before = quantiles[place]
            most = quantiles[place] = np.clip(before + missing / weight, quantiles[place - 1], most)
            missing -= weight * (quantiles[place] - before)
    return Lengths("quantiles", mean, quantiles=tuple(quantiles.tolist()))


def rank_correlation(first: Array, second: Array) -> float:
    """Return Spearman's correlation of ranks, equal values sharing theirs, or 0 where one side does not vary.

    >>> rank_correlation(np.array([1, 2, 3]), np.array([9, 7, 5])), rank_correlation(np.array([1, 1]), np.array([2, 3]))
    (-1.0, 0.0)
    """
    ranks = []
    for values in (first, second):
        _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[which])
    return 0.0 if any(np.ptp(one) == 0 for one in ranks) else round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 9)
