"""Commands on a real terminal of our own: one process answers several questions at several widths."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

MARK = "\x1e"
ASK = f"""
import fcntl, json, struct, sys, termios
from commtax.cli import main
from commtax.cli.output import Output
asked = json.load(sys.stdin)
answer = Output.answer

def at_all_widths(*told, **how):
    for width in asked["widths"]:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        try:
            answer(*told, **how)
        except SystemExit:
            sys.stdout.write({MARK!r})
            sys.stdout.flush()
    sys.exit()

Output.answer = at_all_widths
for words in asked["questions"]:
    try:
        main(words)
    except SystemExit:
        pass
"""
SIGNS = re.compile("\x1b\\[([0-9;]*)m")
"""What turns colours on and off."""


def on_a_terminal(questions, widths, **environment):
    """What each of the questions prints at each of the widths: computed once, drawn anew after the terminal has changed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CI")}
    env = {**kept, "TERM": "xterm-256color", **environment}
    streams = {"stdin": subprocess.PIPE, "stdout": theirs, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", ASK], **streams, env=env, text=True)
    os.close(theirs)
    seen = []
    reader = threading.Thread(target=_read_all, args=(ours, seen))
    reader.start()
    _, err = child.communicate(json.dumps({"questions": questions, "widths": widths}), timeout=60)
    reader.join()
    os.close(ours)
    assert not child.returncode, err
    return b"".join(seen).decode().replace("\r\n", "\n").split(MARK)[:-1]


def _read_all(end, seen):
    """Until the other end is closed, which Linux tells as an error."""
    try:
        while piece := os.read(end, 1 << 16):
            seen.append(piece)
    except OSError:
        pass
