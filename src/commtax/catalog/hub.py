"""Files of a Hub id: from the cache of the Hub's client on this machine, else from the Hub, in one attempt with a bounded wait."""

import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from commtax.files import CONFIG_BYTES, read_bytes, replace_when_written

READ_SECONDS = 5.0  # to find the Hub, and between two pieces of its answer
FETCH_SECONDS = 20.0  # for all of a small file
FORGET_SECONDS = 60.0  # what failed is tried again after this: a notebook lives longer than a lost network
ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
ADDRESS = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?(/[\w./~-]*)?", re.ASCII)
COMMIT = re.compile(r"[0-9A-Za-z]{1,64}")
YES = ("1", "on", "yes", "true")
DENIED = {401: "it is private, gated or misspelt", 403: "it is private or gated"}
_failed: dict[str, tuple[float, str]] = {}  # when and why, by file and by endpoint
T = TypeVar("T")


def contents(name: str, file_name: str = "config.json") -> bytes:
    """Return a file of a repository, or raise ``LookupError`` with why there is none, and what to do."""
    if not ID.fullmatch(name):
        raise LookupError("not an id of the Hub, which is OWNER/NAME")
    return _remember_failure(f"{name}/{file_name}", LookupError, lambda: _fetch_file(name, file_name))


def optional_file(name: str, file_name: str) -> bytes:
    """Return a file that a repository may have, or nothing where it has none."""
    try:
        return contents(name, file_name)
    except LookupError:
        return b""


def is_cached(name: str) -> bool:
    """Return whether a repository's config is kept on this machine, without a look at the network."""
    return bool(ID.fullmatch(name)) and _cached_file(name, "config.json") is not None


def _remember_failure(what: str, failure: type[Exception], work: Callable[[], T]) -> T:
    if what not in _failed or time.monotonic() - _failed[what][0] > FORGET_SECONDS:
        try:
            return work()
        except failure as error:
            _failed[what] = (time.monotonic(), _reason(error))
    raise failure(_failed[what][1])


def _reason(error: Exception) -> str:
    text = str(error.reason if isinstance(error, URLError) else error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _fetch_file(name: str, file_name: str) -> bytes:
    if path := _cached_file(name, file_name):
        return read_bytes(path, "model", most=CONFIG_BYTES)
    place = endpoint()
    by_hand = f"save {place}/{name}/raw/main/{file_name} in a folder and name that, as in ./{name.partition('/')[2]}"
    if offline := next(filter(_set, ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")), ""):
        raise LookupError(f"{offline} is set, and {_cache()} does not hold it: unset it; or {by_hand}")
    if not ADDRESS.fullmatch(place):
        raise LookupError("HF_ENDPOINT is no address: write https://HOST")
    try:
        body, commit = _remember_failure(place, OSError, lambda: _run_with_timeout(lambda: _get(place, name, file_name)))
    except OSError as error:
        raise LookupError(f"{place} cannot be reached ({_reason(error)}): {by_hand}") from None
    folder = _repository(name)  # as the client lays it out; a repository of which it has another commit is left alone
    with suppress(OSError, ValueError):
        main = folder / "refs" / "main"
        if COMMIT.fullmatch(commit) and (not main.exists() or main.read_text(encoding="ascii").strip() == commit):
            for path, content in ((folder / "snapshots" / commit / file_name, body), (main, commit.encode())):
                path.parent.mkdir(parents=True, exist_ok=True)
                with replace_when_written(path) as part:
                    part.write_bytes(content)
    return body


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT", "").strip() or "https://huggingface.co").rstrip("/")


def _set(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in YES


def _home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(os.environ.get("HF_HOME") or f"{cache}/huggingface"))


def _cache() -> Path:
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expanduser(named)) if named else _home() / "hub"


def _repository(name: str) -> Path:
    return _cache() / f"models--{name.replace('/', '--')}"


def _cached_file(name: str, file_name: str) -> Path | None:
    with suppress(OSError, ValueError):
        commit = (_repository(name) / "refs" / "main").read_text(encoding="ascii").strip()
        path = _repository(name) / "snapshots" / commit / file_name
        if COMMIT.fullmatch(commit) and path.is_file():
            return path
    return None


class _Redirects(HTTPRedirectHandler):
    """Redirects to another address of the same kind, where the token comes along to the endpoint's own host only."""

    max_redirections = 5

    def __init__(self, place: str, token: str) -> None:
        self.place, self.token = place, token

    def redirect_request(  # the names are urllib's
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        new = urljoin(req.full_url, newurl)
        if urlsplit(new).scheme not in {"https", urlsplit(self.place).scheme}:
            fp.close()
            raise LookupError(f"{self.place} sends us to {new[:200]}, which is not https")
        request = super().redirect_request(req, fp, code, msg, headers, new)  # without what is not to be sent along
        if self.token and request and urlsplit(new)[:2] == urlsplit(self.place)[:2]:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        return request


def _get(place: str, name: str, file_name: str) -> tuple[bytes, str]:
    """Return a file's bytes and its commit, where the Hub tells it. ``OSError``: nobody answered."""
    secret = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    if not secret and not _set("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        with suppress(OSError, ValueError):
            secret = Path(os.environ.get("HF_TOKEN_PATH") or _home() / "token").read_text(encoding="ascii")[:1024]
    secret = secret.strip()
    token = secret if secret.isascii() and secret.isprintable() else ""
    request = Request(f"{place}/{name}/resolve/main/{file_name}", headers={"User-Agent": "commtax"})
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with build_opener(_Redirects(place, token)).open(request, timeout=READ_SECONDS) as answer:
            body, commit = answer.read(CONFIG_BYTES + 1), answer.headers.get("X-Repo-Commit") or ""
    except HTTPError as error:
        with error:
            which = "this HF_TOKEN may not read it" if token else "set HF_TOKEN to one that may read it"
            reasons = {code: f"{place} refuses it with {code}: {reason}; {which}" for code, reason in DENIED.items()}
            reasons[404] = f"{place} has no such model, or it has no {file_name}"
            raise LookupError(reasons.get(error.code, f"{place} answers with {error.code}; try again later")) from None
    except (HTTPException, ValueError) as error:  # ValueError: an address that nobody can have
        raise LookupError(f"{place} answers no HTTP ({type(error).__name__})") from None
    if len(body) > CONFIG_BYTES:
        raise LookupError(f"{place} has a {file_name} larger than {CONFIG_BYTES // 2**20} MiB, which is more than is read")
    return body, commit


def _run_with_timeout(work: Callable[[], T]) -> T:
    """Do it in ``FETCH_SECONDS`` or give it up: names are resolved, and slow answers come, without a limit of their own."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], FETCH_SECONDS).done:
        raise TimeoutError(f"no answer within {FETCH_SECONDS:g} s")
    return answer.result()
