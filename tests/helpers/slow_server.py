"""``commtax web`` with workers that get stuck (``slow_nursery``) and with shorter times, so that tests need not wait."""

import contextlib
import sys

from commtax.web import pool, server
from commtax.web.server import listen, run_server

if __name__ == "__main__":
    server.HEAD_S = 1.5
    pool.limit_of = lambda _: 2.0
    pool.WAIT_S = 1.0
    bound = listen("127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{bound.getsockname()[1]}/\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        run_server("127.0.0.1", bound, pool.WorkerPool("slow_nursery"))
