"""The application: the page's files, and one GET endpoint for each question. Nothing is written, and nothing else is read."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from commtax import __version__
from commtax.report.view import answers, legal_instead
from commtax.report.view.state import KEYS, Key, RefusedError, parse, refusal
from commtax.web import schemas
from commtax.web.assets import page_files
from commtax.web.guard import App, Guard, problem

Answer = Callable[[Any], dict[str, Any]]
EXAMPLES = {
    "m": ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"),
    "c": ("8xh100-sxm", "2x8xh200-sxm", "4x4090-pcie"),
    "intra": ("pcie5",),
    "inter": ("10gbe", "ib-ndr"),
    "e": ("vllm", "megatron", "fsdp"),
    "as": ("none", "dp"),
}
"""Words that a reader of the schema may try."""
SLOW = {"compare", "fit", "plan", "pipeline"}
"""Answers that take longer than a blink: they run beside the loop, one at a time."""


def create_app(host: str = "127.0.0.1") -> App:
    """The guarded application; ``host`` is the name it is served under, beside loopback's."""
    app = FastAPI(title="commtax", version=__version__, docs_url=None, redoc_url=None, description=__doc__ or "")
    turn = asyncio.Lock()
    for name, (answer, model, extra) in view_endpoints().items():
        app.add_api_route(
            f"/api/{name}",
            _endpoint(name, answer, extra, turn),
            methods=["GET"],
            summary=(answer.__doc__ or name).strip().split("\n")[0],
            responses={200: {"model": model}, **schemas.ERRORS},
            openapi_extra={"parameters": parameters(extra if name != "catalog" else ())} if name != "catalog" else None,
        )
    for name in page_files():
        app.add_route("/" if name == "index.html" else f"/{name}", _file(name), methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _missing)
    return Guard(app, host)


def view_endpoints() -> dict[str, tuple[Answer, Any, tuple[Key, ...]]]:
    """Name, what answers, the shape of the answer, and keys beside the state's."""
    a = answers
    return {
        "view": (a.view_answer, schemas.View, ()),
        "bill": (a.bill_answer, schemas.Bill, ()),
        "fit": (a.fit_answer, schemas.Fit, ()),
        "compare": (a.compare_answer, schemas.Grid, (a.GRID,)),
        "pipeline": (a.pipeline_answer, schemas.Pipeline, ()),
        "plan": (a.plan_answer, schemas.Plans, ()),
        "catalog": (a.catalog_answer, schemas.Catalog, ()),
    }


def _endpoint(name: str, answer: Answer, extra: tuple[Key, ...], turn: asyncio.Lock) -> Callable[[Request], Awaitable[Response]]:
    """One question: read the state, answer it, or say which rule it breaks."""

    @lru_cache(maxsize=256)
    def written(question: Any) -> bytes:
        return json.dumps(answer(question), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    async def ask(request: Request) -> Response:
        question = None
        try:
            question = _question(name, request, extra)
            if name in SLOW:
                async with turn:
                    body = await asyncio.to_thread(written, question)
            else:
                body = written(question)
        except (ValueError, OverflowError) as error:
            found = refusal(error if isinstance(error, ValueError) else ValueError(str(error)))
            return _refused(found, legal_instead(question) if name == "view" and question and not found.malformed else None)
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    ask.__name__ = name
    return ask


def _question(name: str, request: Request, extra: tuple[Key, ...]) -> Any:
    pairs = request.query_params.multi_items()
    if name == "catalog":
        if pairs:
            raise RefusedError(f"unknown key '{pairs[0][0][:40]}': the catalogue takes none", pairs[0][0][:40])
        return None
    if not extra:
        return parse(pairs)
    more = {key.name: key for key in extra}
    own = [(n, more[n].read(text)) for n, text in pairs if n in more]
    if len({n for n, _ in own}) != len(own):
        raise RefusedError(f"{own[0][0]}: given twice", own[0][0])
    state = parse((n, text) for n, text in pairs if n not in more)
    return (state, *(dict(own).get(key.name, key.default) for key in extra))


def _refused(found: RefusedError, instead: dict[str, Any] | None) -> Response:
    """400 where the question cannot be read, 422 where it breaks a rule of the model, the cluster or the engine."""
    body = problem(found.rule, found.argument, found.rule, found.nearest, instead)
    return Response(body, 400 if found.malformed else 422, media_type="application/json")


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
    words = {404: "no such page; the API is under /api/, described in /openapi.json"}
    return Response(problem(words.get(status, str(getattr(error, "detail", ""))), "path"), status, media_type="application/json")


def parameters(extra: tuple[Key, ...]) -> list[dict[str, Any]]:
    """The keys of the state as the schema tells them: the same table that reads them."""
    return [
        {"name": k.name, "in": "query", "required": False, "description": k.text, "schema": _schema(k)} for k in (*KEYS, *extra)
    ]


def _schema(key: Key) -> dict[str, Any]:
    if key.is_number:
        kind = "integer" if isinstance(key.default, int) else "number"
        return {"type": kind, "minimum": key.low, "maximum": key.high, "default": key.default}
    found: dict[str, Any] = {"type": "string", "default": key.default}
    if key.words:
        return {**found, "enum": list(key.words)}
    found |= {"maxLength": key.length} | ({"pattern": f"^({key.pattern})?$"} if key.pattern else {})
    return found | ({"examples": list(EXAMPLES[key.name])} if key.name in EXAMPLES else {})
