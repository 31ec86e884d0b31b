"""JSON of collectives' tests as the text that the same programs print, which one reader then reads.

nccl-tests (``-J``) writes one object with its configuration, devices, results and average; rccl-tests (``-x``) an object for each
size and each of out of place and in place, in a list or one a line.
"""

import json
from collections.abc import Iterator

from commtax.files import Json, JsonObject, need_list, need_number, need_object, need_whole
from commtax.runs.results.nccl_tests import OPS
from commtax.statement import Refusal
from commtax.wordings import split_lines

_KEYS = (b'"bus_bw"', b'"busBw"')


def looks_like(head: bytes) -> bool:
    """Whether one of both stands in the beginning of a file."""
    return any(key in head for key in _KEYS) and (b'"out_of_place"' in head or b'"inPlace"' in head)


def text_of_json(text: str, name: str) -> str:
    """Header, devices, rows and end as far as they are told."""
    try:
        told = list(_objects(text))
        lines = list(_nccl(told[0])) if told and "results" in told[0] else list(_rccl(told))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Refusal(f"'{name}': results of collectives, and not as nccl-tests or rccl-tests write them ({error!r:.80})") from None
    return "\n".join(lines)


def _objects(text: str) -> Iterator[JsonObject]:
    """The objects of a text: itself, those of a list, or one of each line; one that is cut off ends it."""
    try:
        whole: Json = json.loads(text)
        yield from map(need_object, whole if isinstance(whole, list) else [whole])
    except json.JSONDecodeError:
        for line in split_lines(text):
            try:
                yield need_object(json.loads(line.strip().rstrip(",")))
            except json.JSONDecodeError:
                continue


def _op(name: str) -> str:
    """The program of an operation that is named in any way; "" where it is none of them."""
    plain = name.lower().rpartition("/")[2].removesuffix("_perf").replace("_", "").replace("-", "")
    return next((program for program in reversed(OPS) if program.replace("_", "") == plain), "")


def _nccl(told: JsonObject) -> Iterator[str]:
    config = need_object(told.get("config", {}))
    program = next((op for word in (*need_list(told.get("args", [])), told.get("collective", "")) if (op := _op(str(word)))), "")
    if program:
        yield f"# Collective test starting: {program}_perf"
    if "minimum_bytes" in config:
        step = f"{config['step_factor']}(factor)" if "step_factor" in config else f"{config.get('step_bytes', 0)}(bytes)"
        sizes = f"minBytes {config['minimum_bytes']} maxBytes {config['maximum_bytes']} step: {step}"
        yield f"# nThread {config.get('nthreads', 1)} nGpus {config.get('ngpus', 1)} {sizes}"
    for d in map(need_object, need_list(config.get("devices", told.get("devices", [])))):
        place = f"Pid {d.get('pid', 0)} on {d['hostname']} device {d.get('device', 0)} [{d.get('device_hex', '?')}]"
        yield f"#  Rank {d.get('rank', 0)} Group {d.get('group', 0)} {place} {d['device_info']}"
    rows = [need_object(row) for row in need_list(told["results"])]
    ways = [(row, need_object(row.get("out_of_place") or {}), need_object(row.get("in_place") or {})) for row in rows]
    yield from _table(ways, ("alg_bw", "bus_bw", "nwrong"))
    if average := told.get("average_bus_bandwidth"):
        yield f"# Avg bus bandwidth    : {need_number(need_object(average)['bandwidth'])}"


def _rccl(told: list[JsonObject]) -> Iterator[str]:
    """Rows of both ways, paired by size; the number of GPUs as a list of ranks."""
    if not told:
        return
    if program := _op(str(told[0].get("name", ""))):
        yield f"# Collective test starting: {program}_perf"
    for rank in range(need_whole(told[0].get("ranks", told[0].get("gpus", 0)))):
        yield f"#  Rank {rank} Group 0"
    ways: dict[tuple[str, ...], dict[int, JsonObject]] = {}
    for row in told:
        key = str(row.get("numCycle", 0)), str(row.get("type", "")), str(row.get("redop", "")), str(row["size"])
        ways.setdefault(key, {})[need_whole(row["inPlace"])] = row
    yield from _table([(next(iter(w.values())), w.get(0, {}), w.get(1, {})) for w in ways.values()], ("algBw", "busBw", "#wrong"))
    yield "# Out of bounds values"


def _table(rows: list[tuple[JsonObject, JsonObject, JsonObject]], keys: tuple[str, str, str]) -> Iterator[str]:
    """Rows as a table has them: both ways where every row has both, else one."""
    whole = all(out and again for _, out, again in rows)
    for row, out, again in rows:
        ways = [way for way in (out, again) if way][: 2 if whole else 1]
        cells = [cell for way in ways for cell in (_time(way), way[keys[0]], way[keys[1]], way.get(keys[2], way.get("wrong", 0)))]
        figures = " ".join("N/A" if cell is None else str(cell) for cell in cells)
        size, redop, root = need_whole(row["size"]), row.get("redop") or "none", str(row.get("root", -1)).strip()
        yield f"{size} {row.get('count', size // 4)} {row.get('type', 'float')} {redop} {root} {figures}"


def _time(way: JsonObject) -> float:
    return need_number(way["time"] if "time" in way else way["cpu_time"])
