"""Where the program begins: nothing large is imported yet, so that an interrupt is answered from the first moment."""

import atexit
import gc
import os
import signal
import sys

GARBAGE = 200_000  # objects between looks for garbage: at the usual 700 a tenth of a command's time goes into finding none


def main() -> None:
    """Run a command line, or answer a shell that completes one."""
    if "_COMMTAX_COMPLETE" in os.environ:
        from commtax.cli import completing

        return completing.main()
    gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # nor is it looked for at the end, when all memory is given back
    _open_streams()
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a job in the background ignores it
    if usual:
        signal.signal(signal.SIGINT, _leave)  # half-imported modules must not meet an exception
    _import_numpy()
    from commtax.cli import main as run

    try:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        _leave()


def _import_numpy() -> None:
    """Import NumPy without the threads of its linear algebra, which no verb needs and whose start outlasts many answers."""
    unset = "OPENBLAS_NUM_THREADS" not in os.environ
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import numpy  # noqa: F401

    if unset:
        del os.environ["OPENBLAS_NUM_THREADS"]  # ranks that are started to be measured have their own


def _leave(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def _open_streams() -> None:
    """Open closed standard streams to nowhere: their numbers must not go to the next file that is opened."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode))  # noqa: SIM115


if __name__ == "__main__":
    main()
