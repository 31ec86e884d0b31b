"""The application: the page's files, and one endpoint for each question. Nothing is written, and nothing else is read."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from commtax import __version__
from commtax.files import table
from commtax.report.view.state import KEYS, Key
from commtax.web.answering import ANSWERS, DROPPED, Written, write_answer
from commtax.web.assets import served_files
from commtax.web.guard import API, BODIES, CLAIM, FILE_TYPE, HTTP, NAME, App, Guard, problem

Asker = Callable[[str, bytes], Coroutine[object, object, Written]]  # who answers, from a question's name and query as they came
Endpoint = Callable[[Request], Awaitable[Response]]
Schema = dict[str, object]
VALUE = "integer | number | string | null"  # what a control may be set to
MOST_KEPT = 32 * 2**20  # bytes of answers and their questions that are kept to be given again


async def here(name: str, query: bytes) -> Written:
    """Answer at once and without any bound, for tests and for those who serve nobody else."""
    return write_answer(name, query)


def create_app(host: str = "127.0.0.1", asker: Asker = here) -> App:
    """Return the guarded application. ``host`` is the name it is served under, beside loopback's."""
    app = FastAPI(title="commtax", version=__version__, docs_url=None, redoc_url=None, description=__doc__ or "")
    kept = KeptAnswers(asker)
    errors: dict[int | str, Schema] = {status: _response("Problem", text) for status, text in HTTP["errors"].items()}

    def add(name: str, endpoint: Endpoint, method: str, extra: dict[str, object] | None) -> None:
        summary, shape = HTTP["answers"][name]
        responses = {200: _response(shape, "Successful Response"), **errors}
        app.add_api_route(f"{API}{name}", endpoint, methods=[method], summary=summary, responses=responses, openapi_extra=extra)

    for name, (_, extra) in ANSWERS.items():
        add(name, _endpoint(name, kept), "GET", {"parameters": parameters(extra)} if name != "catalog" else None)
    body = {"required": True, "content": {FILE_TYPE.decode(): {"schema": {"type": "string", "format": "binary"}}}}
    add(DROPPED, _drop(asker), "POST", {"parameters": parameters((NAME, BODIES, CLAIM)), "requestBody": body})
    for name, (content, kind) in served_files().items():
        app.add_route("/" if name == "index.html" else f"/{name}", _file(content, kind), methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _missing)
    app.openapi()["components"] = {"schemas": dict(_shapes())}
    return Guard(app, host)


def _response(shape: str, text: str) -> Schema:
    return {"description": text, "content": {"application/json": {"schema": schema_of(f"#{shape}")}}}


class KeptAnswers:
    """An asker that gives good answers again, the latest ``MOST_KEPT`` bytes of them."""

    def __init__(self, asker: Asker) -> None:
        self.asker, self.nbytes = asker, 0
        self.answers: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    async def __call__(self, name: str, query: bytes) -> Written:
        key = name, query
        if key in self.answers:
            self.answers.move_to_end(key)
            return 200, self.answers[key]
        status, body = await self.asker(name, query)
        if status == 200 and key not in self.answers:  # others may have asked meanwhile
            self.answers[key] = body
            self.nbytes += len(query) + len(body)
        while self.nbytes > MOST_KEPT:
            (_, oldest), old = self.answers.popitem(last=False)
            self.nbytes -= len(oldest) + len(old)
        return status, body


def _endpoint(name: str, asker: Asker) -> Endpoint:
    """Return an endpoint for one question, which works as long as somebody waits for its answer."""

    async def ask(request: Request) -> Response:
        answer = await _while_wanted(request, asker(name, request.scope["query_string"]))
        return Response(status_code=400) if answer is None else _answered(*answer)  # 400 to nobody: the client is gone

    ask.__name__ = name
    return ask


def _answered(status: int, body: bytes) -> Response:
    headers = {"cache-control": "no-store"} | ({"retry-after": "1"} if status == 429 else {})
    return Response(body, status, media_type="application/json", headers=headers)


def _drop(asker: Asker) -> Endpoint:
    async def audit(request: Request) -> Response:
        return _answered(*await asker(DROPPED, request.scope["query_string"] + b"\0" + (await request.body())))

    return audit


async def _while_wanted(request: Request, work: Coroutine[object, object, Written]) -> Written | None:
    """Return what the work brings, or give it up when the client hangs up."""

    async def wait_for_hangup() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, gone = asyncio.create_task(work), asyncio.create_task(wait_for_hangup())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else None
    finally:
        answer.cancel()
        gone.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


def _file(body: bytes, kind: str) -> Endpoint:
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'

    async def serve(request: Request) -> Response:
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=kind, headers=headers)

    return serve


async def _missing(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    texts = {404: "no such page; the API is under /api/, described in /openapi.json"}
    return Response(problem(texts.get(status, str(getattr(error, "detail", ""))), "path"), status, media_type="application/json")


def schema_of(kind: str) -> Schema:
    if " | " in kind:
        return {"anyOf": [schema_of(one) for one in kind.split(" | ")]}
    inner = kind[1:-1]
    if kind[0] == "#":
        return {"$ref": f"#/components/schemas/{kind[1:]}"}
    if kind[0] == "[":
        return {"type": "array", "items": schema_of(inner)}
    if kind[0] == "{":
        return {"type": "object", "additionalProperties": schema_of(inner)}
    if kind[0] == "(":
        items = [schema_of(one) for one in inner.split(", ")]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if kind.startswith("one of "):
        return {"type": "string", "enum": kind.split()[2:]}
    return schema_of(VALUE) if kind == "value" else {} if kind == "any" else {"type": kind}


def _shapes() -> Iterator[tuple[str, Schema]]:
    for name, row in table("web/shapes.toml").items():
        keys = {key: kind for key, kind in row.items() if isinstance(kind, str) and key != "about"}
        properties = {key.rstrip("?"): schema_of(kind) for key, kind in keys.items()}
        required, more = [key for key in keys if not key.endswith("?")], row.get("open", False)
        shape: Schema = {"type": "object", "description": row.get("about", name), "properties": properties}
        yield name, shape | {"required": required, "additionalProperties": more}


def parameters(extra: tuple[Key, ...]) -> list[Schema]:
    """Return the keys of the state as the schema tells them, from the table that reads them."""
    place = {"in": "query", "required": False}
    return [{"name": k.name, **place, "description": k.help, "schema": _schema(k)} for k in (*KEYS, *extra)]


def _schema(key: Key) -> Schema:
    if key.is_number:
        kind = "integer" if isinstance(key.default, int) else "number"
        return {"type": kind, "minimum": key.low, "maximum": key.high, "default": key.default}
    text: Schema = {"type": "string", "default": key.default}
    if key.words:
        return text | {"enum": list(key.words)}
    text |= {"maxLength": key.length} | ({"pattern": f"^({key.pattern})?$"} if key.pattern else {})
    return text | ({"examples": HTTP["examples"][key.name]} if key.name in HTTP["examples"] else {})
