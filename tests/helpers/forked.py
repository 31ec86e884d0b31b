"""Programs, ranks among them, that are forks of this process instead of new interpreters: loading torch takes most of their time.

What runs is the program itself, unchanged; that it starts as a process of its own is held by tests that start one.
"""

import os
import runpy
import signal
import sys
import tempfile
import traceback
import warnings
from contextlib import contextmanager

from cli_run import Done
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

    def send_signal(self, sign):
        os.kill(self.pid, sign)


class ForkedProgram(Forked):
    """``python -m MODULE …`` in a fork of this process, which has loaded already what a new interpreter takes seconds to load."""

    def __init__(self, module, *words, stdin=None, stdout=None, env=None):
        self._told = tempfile.TemporaryFile("w+")  # noqa: SIM115
        reads, writes = (None, stdout) if stdout is not None else os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        super().__init__(fork())
        if not self.pid:
            become_program(module, words, (nothing if stdin is None else stdin, writes, self._told.fileno()), env or os.environ)
        os.close(nothing)
        if stdout is None:
            os.close(writes)
            self.stdout = os.fdopen(reads)

    def communicate(self):
        """What it has not yet said on its standard output, and all that it told on the other."""
        out = self.stdout.read() if hasattr(self, "stdout") else ""
        self.wait()
        self._told.seek(0)
        with self._told:
            return out, self._told.read()


def run_forked(module, *words, env=None):
    """A program from its beginning to its end."""
    program = ForkedProgram(module, *map(str, words), env=env)
    with program.stdout:
        out, told = program.communicate()
    return Done(program.returncode, out, told)


def fork():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of threads, which only wait for news here
        return os.fork()


@contextmanager
def forked_ranks():
    """Until the end, the launcher's ranks are forks; whatever else it starts is a process as before."""
    plain = launch.start_process

    def started(command, log, env):
        if list(command[1:]) != RANK or "torch" not in sys.modules:
            return plain(command, log, env)
        if pid := fork():
            return Forked(pid)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        become_program(RANK[1], (), (os.open(os.devnull, os.O_RDONLY), said, said), env)
        return None

    launch.start_process = started
    try:
        yield
    finally:
        launch.start_process = plain


def become_program(module, words, streams, env):
    """As a new process would be: its own session, files, handlers, variables and warnings. It ends here."""
    code = 1
    try:
        os.setsid()
        for number, file in enumerate(streams):
            os.dup2(file, number)
        os.closerange(3, 1024)
        streamed = [open(number, "w" if number else "r", buffering=1, closefd=False) for number in range(3)]  # noqa: SIM115
        sys.stdin, sys.stdout, sys.stderr = streamed
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(sign) is not signal.SIG_IGN:
                signal.signal(sign, signal.default_int_handler if sign is signal.SIGINT else signal.SIG_DFL)
        warnings.resetwarnings()
        os.environ.clear()
        os.environ.update(env)
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
