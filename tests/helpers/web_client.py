"""A client for the application without a socket: one request, its status, headers and JSON."""

import asyncio
import json
from functools import lru_cache
from urllib.parse import urlencode

from commtax.web.app import create_app


@lru_cache(maxsize=1)
def app():
    return create_app()


def ask(path, query=None, method="GET", host="127.0.0.1:8080", headers=(), raw=None, body=b""):
    """``query`` is a mapping or a list of pairs; ``raw`` a query string as it is."""
    text = raw if raw is not None else urlencode(query or {}).encode()
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": text, "root_path": "", "server": ("127.0.0.1", 8080), "client": ("127.0.0.1", 1),
        "headers": [(b"host", host.encode("latin-1")), *headers],
    }  # fmt: skip
    sent = []
    asked = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if not asked:
            await asyncio.Event().wait()  # a client that stays on the line
        return asked.pop()

    async def send(message):
        sent.append(message)

    asyncio.run(app()(scope, receive, send))
    status = sent[0]["status"]
    return status, {k.decode(): v.decode() for k, v in sent[0]["headers"]}, b"".join(m.get("body", b"") for m in sent[1:])


def get(name, **query):
    """A good answer of one endpoint."""
    status, _, body = ask(f"/api/{name}", query)
    assert status == 200, body
    return json.loads(body)


def refused(name, query):
    """A refusal in its one shape, and its status."""
    status, headers, body = ask(f"/api/{name}", query)
    found = json.loads(body)
    assert 400 <= status < 500, (status, query)
    assert headers["content-type"].startswith("application/json")
    assert set(found) == {"error", "argument", "rule", "nearest", "instead"}
    return status, found
