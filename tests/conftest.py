"""Laws are about values: no deadline, because machines are shared; a failure prints what reproduces it. Nothing is left behind."""

import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings

settings.register_profile("commtax", deadline=None, print_blob=True)
settings.load_profile("commtax")

# A shell's background job ignores interrupts, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)
COMPILED = tempfile.TemporaryDirectory(prefix="torchinductor-")  # torch makes one when transformers loads it, and leaves it
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", COMPILED.name)


def pytest_unconfigure(config):
    """The folder of folders of tests, which pytest empties when all is well and leaves."""
    COMPILED.cleanup()
    if not hasattr(config, "workerinput"):
        for folder in Path(tempfile.gettempdir()).glob("pytest-of-*"):
            with suppress(OSError):
                folder.rmdir()
