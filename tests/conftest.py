"""Laws are about values: no deadline, because machines are shared; and the same questions every time, so that what fails is the
change and not its luck (``benchmarks/laws.py`` asks new ones by the thousand). Nothing is left behind."""

import gc
import os
import signal
import sys
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from commtax.__main__ import GARBAGE
from forked import forked_ranks

FEWER = 4
"""The profile ``few``, of ``make test``, asks a law this many times fewer questions than the usual one, of ``make test-all``."""
for name, count in (("few", 12 // FEWER), ("commtax", 12)):
    settings.register_profile(name, max_examples=count, deadline=None, print_blob=True, derandomize=True)
settings.load_profile("commtax")

# A shell's background job ignores interrupts, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)
# Bytecode is kept: hundreds of processes would each compile what the first of them could leave to the others.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("COLUMNS", None)  # a worker is told the width of the terminal that it does not write to
os.unsetenv("COLUMNS")  # and readline, which pytest loads, tells it behind Python's back
os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores: torch's threads would wait for each other
COMPILED = tempfile.TemporaryDirectory(prefix="torchinductor-")  # torch makes one when transformers loads it, and leaves it
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", COMPILED.name)

LONGEST = (
    *(
        "test_web_page",
        "test_web_views",
        "test_docs",
        "test_tasks",
        "test_validate",
        "test_plan_laws",
        "test_planner",
        "test_web_api",
    ),
    *("test_live", "test_calibrate", "test_fleets", "test_hostile_words", "test_experiment_vllm"),
    *("test_audit_hostile", "test_catalog", "test_experiment", "test_web_patience", "test_collectives"),
    *("test_records", "test_cli", "test_launch", "test_web_hostile", "test_adding"),
    *("test_serving_laws", "test_laws", "test_labs", "test_lab", "test_worth", "test_trace_pieces", "test_web_moves"),
    *("test_files", "test_practice", "test_profile", "test_audit_training", "test_blame", "test_live_serving"),
)
"""Files that take longest, the longest first: one that began last would leave the other workers idle."""
SLOW = {test for group in tomllib.loads(Path(__file__).with_name("slow.toml").read_text()).values() for test in group["tests"]}
TOGETHER = {"test_lab": "labs", "test_labs": "labs", "test_docs": "pages", "test_tasks": "pages"}
"""Files that share what is expensive: labs and those who grade them a live run, pages and tasks the answers to their commands."""


def pytest_ignore_collect(collection_path, config):
    """Files that are slow as a whole are not even loaded, with torch, by who leaves slow tests out."""
    left_out = config.option.markexpr == "not slow" and collection_path.name.startswith("test_")
    return True if left_out and collection_path.relative_to(config.rootpath).as_posix() in SLOW else None


@pytest.hookimpl(tryfirst=True)  # before pytest looks at marks
def pytest_collection_modifyitems(config, items):
    rank = {f"{name}.py": i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    laws = set()
    for item in items:
        if {item.nodeid.partition("[")[0], item.nodeid.partition("::")[0]} & SLOW:
            item.add_marker("slow")
        if is_hypothesis_test(test := drawn(getattr(item, "obj", None))):
            item.add_marker("law")
            laws.add(test)
    if config.getoption("--hypothesis-profile") == "few":
        ask_less(laws)


def drawn(test):
    """Return the function that ``each`` runs in a loop, or the test itself."""
    return drawn(test.test) if hasattr(test, "test") else test


def ask_less(laws):
    """Divide the examples of laws that state a number; those of all others are the profile's."""
    for law in laws:
        usual = law._hypothesis_internal_use_settings
        if usual.max_examples != settings.default.max_examples:
            law._hypothesis_internal_use_settings = settings(usual, max_examples=-(-usual.max_examples // FEWER))


@pytest.fixture(autouse=True, scope="session")
def quick_ranks():
    with forked_ranks():
        yield


def pytest_collection_finish():
    """What is loaded by now stays: torch alone is a million objects, which every collection of garbage would look at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])  # as every command does


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Whole files to a worker, in the order above; those that share something to one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = Path(super()._split_scope(nodeid))
            return TOGETHER.get(file.stem, str(file))

    config.option.loadscopereorder = False
    return Files(config, log)


def pytest_unconfigure(config):
    """The folder of folders of tests, which pytest empties when all is well and leaves."""
    COMPILED.cleanup()
    if not hasattr(config, "workerinput"):
        for folder in Path(tempfile.gettempdir()).glob("pytest-of-*"):
            with suppress(OSError):
                folder.rmdir()
