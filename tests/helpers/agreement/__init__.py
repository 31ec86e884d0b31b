"""Laws that hold two surfaces together: the same matter asked twice, through two verbs, views or units, gets one answer.

Each module here holds the laws of one pair of surfaces, in a dictionary ``LAWS`` like that of ``laws.py``. A law returns "" where
both surfaces say the same, None where the question is refused, else the contradiction. ``benchmarks/laws.py --agreement`` asks
thousands of new questions, ``tests/verbs/test_laws.py`` the same few every time.
"""

from importlib import import_module
from pathlib import Path

MODULES = tuple(import_module(f"{__name__}.{path.stem}") for path in sorted(Path(__file__).parent.glob("[a-z]*.py")))
LAWS = {name: law for module in MODULES for name, law in module.LAWS.items()}
