"""The application: the page's files, and one GET endpoint for each question. Nothing is written, and nothing else is read."""

import asyncio
import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from commtax import __version__
from commtax.records import dataclass
from commtax.report.bills import PricedAnswer
from commtax.report.documents import LEFT_OUT, Value
from commtax.report.exact import FitAnswer
from commtax.report.view import Instead
from commtax.report.view.pictures import Front
from commtax.report.view.state import KEYS, Key
from commtax.report.view.tour import Entry
from commtax.web.answering import ANSWERS, Written, written
from commtax.web.assets import page_files
from commtax.web.guard import HTTP, App, Guard, problem

Asker = Callable[[str, bytes], Coroutine[Any, Any, Written]]
"""Who answers: the name of a question and its query, as they came."""
Schema = dict[str, object]
PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
}
OPEN = (PricedAnswer, FitAnswer, Front, Entry)
"""Documents of which only the fields are told that all of their versions have."""
MOST_KEPT = 32 * 2**20
"""Bytes of answers and their questions that are kept to be given again."""


async def here(name: str, query: bytes) -> Written:
    """Answers computed at once and without any bound: for tests and for those who serve nobody else."""
    return written(name, query)


def create_app(host: str = "127.0.0.1", asker: Asker = here) -> App:
    """The guarded application; ``host`` is the name it is served under, beside loopback's."""
    app = FastAPI(title="commtax", version=__version__, docs_url=None, redoc_url=None, description=__doc__ or "")
    kept, parts = Kept(asker), dict[str, Schema]()
    errors: dict[int | str, Any] = {status: _response(Problem, text, parts) for status, text in HTTP["errors"].items()}
    for name, (summary, shape, _, extra) in ANSWERS.items():
        app.add_api_route(
            f"/api/{name}",
            _endpoint(name, kept),
            methods=["GET"],
            summary=summary,
            responses={200: _response(shape, "Successful Response", parts), **errors},
            openapi_extra={"parameters": parameters(extra)} if name != "catalog" else None,
        )
    for name in page_files():
        app.add_route("/" if name == "index.html" else f"/{name}", _file(name), methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _missing)
    app.openapi()["components"] = {"schemas": parts}
    return Guard(app, host)


def _response(shape: type, text: str, parts: dict[str, Schema]) -> Schema:
    """A response in the schema: what it means, and the shape of its body."""
    return {"description": text, "content": {"application/json": {"schema": schema_of(shape, parts)}}}


class Kept:
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
            (_, asked), old = self.answers.popitem(last=False)
            self.nbytes -= len(asked) + len(old)
        return status, body


def _endpoint(name: str, asker: Asker) -> Callable[[Request], Awaitable[Response]]:
    """One question, as long as somebody waits for its answer."""

    async def ask(request: Request) -> Response:
        answer = await _while_wanted(request, asker(name, request.scope["query_string"]))
        if answer is None:
            return Response(status_code=400)  # to nobody: the client is gone
        status, body = answer
        headers = {"cache-control": "no-store"} | ({"retry-after": "1"} if status == 429 else {})
        return Response(body, status, media_type="application/json", headers=headers)

    ask.__name__ = name
    return ask


async def _while_wanted(request: Request, work: Coroutine[Any, Any, Written]) -> Written | None:
    """What the work brings; it is given up when the client hangs up."""
    asked, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((asked, gone), return_when=asyncio.FIRST_COMPLETED)
        return await asked if asked.done() else None
    finally:
        asked.cancel()
        gone.cancel()
        await asyncio.gather(asked, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    body, kind = page_files()[name]
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


@dataclass(frozen=True, slots=True)
class Problem:
    """Every refusal: what, under which key, by which rule, and the nearest values that would do."""

    error: str
    argument: str
    rule: str
    nearest: Sequence[Value]
    instead: Instead | None


def schema_of(kind: Any, parts: dict[str, Schema]) -> Schema:
    """The JSON schema of a document, derived from its own types; records join the named ``parts`` and are referred to."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if is_dataclass(kind):
        return _reference(kind, parts)
    if origin is Literal:
        return {"type": "string", "enum": list(inner)}
    if origin in (UnionType, Union):
        return {"anyOf": [schema_of(one, parts) for one in inner]}
    if origin is tuple and inner[-1] is not ...:
        items = [schema_of(one, parts) for one in inner]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": schema_of(inner[0], parts)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1], parts)}
    return {}  # whatever JSON holds


def _reference(kind: Any, parts: dict[str, Schema]) -> Schema:
    name = kind.__name__
    if name not in parts:
        parts[name] = {}  # a record inside itself refers to what is being written
        hints = get_type_hints(kind)
        generated = (kind.__doc__ or "").startswith(f"{name}(")  # what a dataclass without words of its own is given
        parts[name] = {
            "type": "object",
            **({} if generated else {"description": inspect.getdoc(kind)}),
            "properties": {f.name.rstrip("_"): schema_of(hints[f.name], parts) for f in fields(kind)},
            "required": [f.name.rstrip("_") for f in fields(kind) if f.default is not LEFT_OUT],
            "additionalProperties": kind in OPEN,
        }
    return {"$ref": f"#/components/schemas/{name}"}


def parameters(extra: tuple[Key, ...]) -> list[Schema]:
    """The keys of the state as the schema tells them: the same table that reads them."""
    return [
        {"name": k.name, "in": "query", "required": False, "description": k.help, "schema": _schema(k)} for k in (*KEYS, *extra)
    ]


def _schema(key: Key) -> Schema:
    if key.is_number:
        kind = "integer" if isinstance(key.default, int) else "number"
        return {"type": kind, "minimum": key.low, "maximum": key.high, "default": key.default}
    text: Schema = {"type": "string", "default": key.default}
    if key.words:
        return text | {"enum": list(key.words)}
    text |= {"maxLength": key.length} | ({"pattern": f"^({key.pattern})?$"} if key.pattern else {})
    return text | ({"examples": HTTP["examples"][key.name]} if key.name in HTTP["examples"] else {})
