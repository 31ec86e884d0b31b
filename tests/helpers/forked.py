"""Ranks that are forks of this process instead of new interpreters: loading torch takes them longer than what most are asked.

What a rank does is its own program, unchanged; that it starts as a process of its own is held by tests that start one.
"""

import os
import runpy
import signal
import sys
import warnings
from contextlib import contextmanager

from commtax_lab.measure import launch

RANK = ["-m", "commtax_lab.measure.rank"]


class Forked:
    """What the launcher asks of a process."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self, how=os.WNOHANG):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self):
        return self.poll(0)


@contextmanager
def forked_ranks():
    """Until the end, the launcher's ranks are forks; whatever else it starts is a process as before."""
    plain = launch.start_process

    def started(command, log, env):
        if list(command[1:]) != RANK or "torch" not in sys.modules:
            return plain(command, log, env)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of threads, which only wait for news here
            pid = os.fork()
        if pid:
            return Forked(pid)
        become_rank(log, env)
        return None

    launch.start_process = started
    try:
        yield
    finally:
        launch.start_process = plain


def become_rank(log, env):
    """As a new process would be: its own session, files, handlers, variables and warnings."""
    try:
        os.setsid()
        for number, file, how in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
            os.dup2(os.open(file, how, 0o644), number)
        os.dup2(1, 2)
        os.closerange(3, 1024)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(sign) is not signal.SIG_IGN:
                signal.signal(sign, signal.default_int_handler if sign is signal.SIGINT else signal.SIG_DFL)
        warnings.resetwarnings()
        os.environ.clear()
        os.environ.update(env)
        runpy.run_module(RANK[1], run_name="__main__", alter_sys=True)
    finally:
        os._exit(1)
