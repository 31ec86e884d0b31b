"""A Dask cluster of two workers, one of which is killed while it works; it ends with its standard input.

Its first line is the scheduler's address. Run as a program, so that nothing of Dask lives in the process that tests.
"""

import os
import signal
import sys
import tempfile
import threading
import time

from distributed import Client, LocalCluster


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main():
    with (
        tempfile.TemporaryDirectory() as scratch,
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=scratch, silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        say(cluster.scheduler_address)
        threading.Thread(target=_kill_one, args=(cluster, pids), daemon=True).start()
        sys.stdin.read()


def _kill_one(cluster, pids):
    """The first worker that has something to do."""
    while True:
        busy = [address for address, worker in dict(cluster.scheduler.workers).items() if worker.processing]
        if busy:
            os.kill(pids[busy[0]], signal.SIGKILL)
            say("killed")
            return
        time.sleep(0.002)


if __name__ == "__main__":
    main()
