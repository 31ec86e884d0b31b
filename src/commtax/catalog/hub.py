"""``config.json`` of a Hub id, by way of the Hub's own client and cache (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).

One attempt, a bounded wait, and what failed once is not tried again: many names in one run must not wait for each other.
"""

import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

REACH_SECONDS = 4.0  # to find the Hub at all
FETCH_SECONDS = 20.0  # … and to get a small file from it
FORGET_SECONDS = 60.0  # what failed is tried again after this: a notebook lives longer than a lost network
_failed: dict[str, tuple[float, str]] = {}  # when and why, by name and by endpoint
T = TypeVar("T")


def file(name: str, file_name: str = "config.json") -> str:
    """A file of a repository on this machine, fetched if it must be; ``LookupError`` says why there is none."""
    return _once(f"{name}/{file_name}", LookupError, lambda: _fetched(name, file_name))


def optional(name: str, file_name: str) -> str:
    """A file that a repository may have; "" where it has none."""
    try:
        return file(name, file_name)
    except LookupError:
        return ""


def cached(name: str) -> bool:
    """Whether the client keeps a repository's config on this machine; never a look at the network."""
    try:
        import huggingface_hub as hub

        return name.count("/") == 1 and isinstance(hub.try_to_load_from_cache(name, "config.json"), str)
    except Exception:  # no client, or a name that it does not take
        return False


def _once(what: str, failure: type[Exception], work: Callable[[], T]) -> T:
    """What failed once fails again, and is tried again when it is old."""
    if what not in _failed or time.monotonic() - _failed[what][0] > FORGET_SECONDS:
        try:
            return work()
        except failure as error:
            _failed[what] = (time.monotonic(), str(error) or type(error).__name__)
    raise failure(_failed[what][1])


def _fetched(name: str, file_name: str) -> str:
    try:
        import huggingface_hub as hub
        import huggingface_hub.constants
    except ImportError:
        raise LookupError("to look it up on the Hub: pip install 'commtax[hub]'") from None
    try:
        kept = hub.try_to_load_from_cache(name, file_name)
        if isinstance(kept, str):
            return kept
        if not hub.constants.HF_HUB_OFFLINE:
            _reach(hub.constants.ENDPOINT)
        return str(_within(FETCH_SECONDS, lambda: hub.hf_hub_download(name, file_name)))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LookupError(f"and the Hub did not give it: {reason}") from None


def _reach(endpoint: str) -> None:
    """Look first: the client would try an unreachable Hub for half a minute, name after name."""
    if address := _address(endpoint):
        connect = partial(socket.create_connection, address, REACH_SECONDS)
        _once(endpoint, OSError, lambda: _within(REACH_SECONDS, lambda: connect().close()))


def _address(endpoint: str) -> tuple[str, int] | None:
    """Where the first connection goes: to the Hub, or to the proxy before it; None where only the client knows (SOCKS)."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    there = urlsplit(endpoint)
    known = getproxies()
    proxy = known.get(there.scheme) or known.get("all", "")
    if proxy and not proxy_bypass(there.hostname or ""):
        there = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        if there.scheme not in ("http", "https"):
            return None
    return there.hostname or "", there.port or (80 if there.scheme == "http" else 443)


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """Do it in so many seconds or give it up: names are resolved, and clients try again, without a limit of their own."""
    answers: list[Any] = []
    faults: list[Exception] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as error:
            faults.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if faults:
        raise faults[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answers[0]
