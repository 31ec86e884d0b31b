"""What flags say is read by attribute: a name that no flag, option or line of code sets would read as nothing, so none may be."""

import ast

from commtax.catalog.programs import programs
from commtax.launch.flags import TORCHRUN, flags_of
from commtax.options import options
from paths import SOURCE
from source import nodes

FILES = [*sorted((SOURCE / "launch").glob("*.py")), SOURCE / "runs" / "logs" / "training_audit.py", SOURCE / "cli" / "pasting.py"]
HOLDERS = ("values", "options")


def names_in(tree):
    """Names that a source reads off what flags say, and those that it sets."""
    reads, sets = set(), set()
    for node in tree:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FlagValues":
            sets |= {word.arg for word in node.keywords}
        elif isinstance(node, ast.Attribute) and (getattr(node.value, "attr", "") or getattr(node.value, "id", "")) in HOLDERS:
            (reads if isinstance(node.ctx, ast.Load) else sets).add(node.attr)
    return reads - set(dir(dict)), sets


def test_every_name_that_is_read_is_one_that_something_sets():
    found = [names_in(nodes(path)) for path in FILES]
    read, known = (set().union(*names) for names in zip(*found, strict=True))
    tables = [TORCHRUN, *(flags_of(one.key) for one in programs())]
    known |= {name for table in tables for name, _ in table.flags.values()}
    assert len(read) > 40
    assert read <= known | set(options())


def test_a_misspelt_name_is_seen():
    reads, sets = names_in(ast.walk(ast.parse("values.eagre or reading.values.tp\nreading.values.dp = 1")))
    assert (reads, sets) == ({"eagre", "tp"}, {"dp"})
