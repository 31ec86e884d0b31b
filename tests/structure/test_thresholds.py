"""Numbers that decide are data with a reason; code holds facts alone: factors of units, shapes of formats, codes."""

import ast

from commtax.shipped_tables import table
from commtax.thresholds import counts, levels
from each import each
from paths import SOURCE

ROOMS = ("launch", *(f"runs/{room}" for room in ("audit", "evidence", "traces", "logs", "results", "machines")))
FILES = [path for room in ROOMS[1:] for path in sorted((SOURCE / room).rglob("*.py"))]
ROWS = [
    (room, module, name, row)
    for room in ROOMS
    for module, rows in table(f"{room}/thresholds.toml").items()
    for name, row in rows.items()
]
FACTS = {
    *("MiB", "MB", "NS", "MS", "MINUTE_S"),  # factors of units
    *("DEVIATION", "TO_MEDIAN", "P99"),  # of a normal distribution
    *("ROUNDING", "ROUNDING_S", "TICK_S", "SAME_S", "PRINTED_GIB", "PRINTED_TIMES"),  # what numbers are resolved to
    *("INDENT", "GPU", "PROCESS", "_MARK", "_OVERLAP", "BEFORE_S", "MEAN_LENGTH", "SPREAD"),  # shapes of formats
    *("LATEST_NS", "EARLIEST_NS", "LONGEST_NS", "LARGE_US", "UNTOLD", "MOST_NAMES"),  # what fits in eight bytes
    *("KERNEL", "COPY", "LAUNCH", "ANNOTATION", "OPERATOR", "OTHER", "CALL", "TORCH_CALL", "RECORD", "SHARED", "OWN"),
    *("WORK", "STEP", "_ROLE", "_TRAINS", "_GRADIENT", "_COMPUTE", "_COMM", "_COPY", "_WAIT"),  # codes
}


def numbers(path):
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.Assign):
            continue
        (target,) = node.targets
        pairs = (
            zip(target.elts, node.value.elts, strict=True)
            if isinstance(node.value, ast.Tuple) and isinstance(target, ast.Tuple)
            else [(target, node.value)]
        )
        for name, value in pairs:
            parts = [x for x in ast.walk(value) if not isinstance(x, (ast.operator, ast.unaryop))]
            bare = all(isinstance(x, (ast.BinOp, ast.UnaryOp, ast.Constant)) for x in parts)
            held = [x.value for x in parts if isinstance(x, ast.Constant)]
            if bare and held and all(type(x) in (int, float) for x in held):
                yield name.id


@each("path", FILES)
def test_no_bare_threshold_stands_in_code(path):
    assert set(numbers(path)) <= FACTS


@each(("room", "module", "name", "row"), ROWS)
def test_each_threshold_has_a_reason_and_is_used(room, module, name, row):
    assert set(row) <= {"value", "unit", "reason", "basis", "false_alarms"}
    assert len(row["reason"]) > 5
    assert row["basis"]
    (path,) = (p for p in (SOURCE / room).rglob("*.py") if p.stem == module)
    own = counts if isinstance(row["value"], int) else levels
    assert getattr(own(f"{room.replace('/', '.')}.{module}"), name) == row["value"]
    assert f".{name}" in path.read_text() or any(f'.{module}").{name}' in p.read_text() for p in SOURCE.rglob("*.py"))
