"""Workers as they are, but a bill of 65,536 sequences and a plan of 2 GPUs never come to an end, inside one call into C.

It keeps the interpreter's lock, as one that computes would, and leaves the cores to others.
"""

import ctypes

from commtax.web import nursery
from commtax.web.answering import ANSWERS

nursery.SHARE = 5


def endless(answer):
    def wrapped(state):
        if state["b"] == 65_536 or state["c"] == "2xa100-80-sxm":
            while True:  # a signal ends the call
                ctypes.PyDLL(None).sleep(600)
        return answer(state)

    return wrapped


for name in ("bill", "plan"):
    answer, _ = ANSWERS[name]
    ANSWERS[name] = (endless(answer), ())
main = nursery.main
