"""``python -I leash.py PARENT COMMAND…``: a program that never outlives whoever started it.

It leads a session with the program in it. When the starter is gone, killed or not, the whole group is ended; else the
program's end is this one's, exit code or signal.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

LOOK_S = 0.2
MEANT_FOR_THE_PROGRAM = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def leash_command(command: Sequence[str]) -> list[str]:
    """Return the command line that runs ``command`` on this process's leash, to start in a session of its own."""
    return [sys.executable, "-I", __file__, str(os.getpid()), *command]  # alone: what the package loads is for its starter


def main(argv: Sequence[str]) -> NoReturn:
    parent = int(argv[0])
    program = subprocess.Popen(argv[1:])
    for sign in MEANT_FOR_THE_PROGRAM:  # after the program's start, because it would inherit being deaf
        signal.signal(sign, signal.SIG_IGN)
    while True:
        with suppress(subprocess.TimeoutExpired):
            end_as(program.wait(LOOK_S))
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)


def end_as(code: int) -> NoReturn:
    """End with the program's exit code, or by its signal (without a second core file)."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler to set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(LOOK_S)
    sys.exit(abs(code))


if __name__ == "__main__":
    main(sys.argv[1:])
