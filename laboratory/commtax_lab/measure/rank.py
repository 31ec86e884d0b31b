"""``python -m commtax_lab.measure.rank``: one rank of a run, which ends with its launcher from before it loads anything heavy."""

import gc
import importlib
import os
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path

from commtax.statement import Refusal
from commtax_lab.measure.launch import FOLDER, LOOK_S, PARENT, REFUSAL, REFUSED, leave_value


def follow(folder: Path, parent: int) -> None:
    """End once the launcher is gone, however it went, and remove the run's folder."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> None:
    folder, parent = Path(os.environ[FOLDER]), int(os.environ[PARENT])
    threading.Thread(target=follow, args=(folder, parent), daemon=True).start()
    gc.disable()  # what is loaded stays: looking through it for garbage would be a tenth of the start
    worker = importlib.import_module("commtax_lab.measure.worker")
    gc.freeze()
    gc.enable()
    worker.main()


if __name__ == "__main__":
    try:
        main()
    except Refusal as refusal:
        leave_value(Path(os.environ[FOLDER]) / REFUSAL.format(os.environ["RANK"]), refusal)
        os._exit(REFUSED)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: taking gloo's threads down in order can hang or abort when a peer is gone
