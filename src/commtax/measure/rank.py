"""``python -m commtax.measure.rank``: one rank of a run, which says that it lives before it loads anything heavy."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path

from commtax.measure.launch import BEAT_S, FOLDER, PARENT, beat_file


def beat(folder: Path, rank: int, parent: int) -> None:
    """Touch this rank's file while the launcher lives; end, and take the run's folder along, once it is gone, however it went."""
    file = beat_file(folder, rank)
    while os.getppid() == parent:
        try:
            file.touch()
        except OSError:
            break
        time.sleep(BEAT_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> None:
    folder, rank, parent = Path(os.environ[FOLDER]), int(os.environ["RANK"]), int(os.environ[PARENT])
    threading.Thread(target=beat, args=(folder, rank, parent), daemon=True).start()
    importlib.import_module("commtax.measure.worker").main()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: taking gloo's threads down in order can hang or abort when a peer is gone
