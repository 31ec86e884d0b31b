"""Runs inside an engine's own environment: ask its parser what it makes of commands. Called by ``benchmarks/parsers.py``.

Standard input has a JSON list of [program, words …]; standard output gets one line of JSON: by program its version, its options
with their choices, and what it refuses. Nothing of commtax is imported here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from unittest.mock import MagicMock

Parser = argparse.ArgumentParser
MOST_MISSING = 40  # libraries of GPUs and pictures that need not be installed


class FoundParserError(Exception):
    """The parser that a program was about to use."""


def caught(run: Callable[[], object]) -> Parser:
    """The parser that a function makes for itself and would parse with."""
    usual = argparse.ArgumentParser.parse_args

    def stop(self: Parser, *_args: object, **_named: object) -> argparse.Namespace:
        raise FoundParserError(self)

    argparse.ArgumentParser.parse_args = stop  # type: ignore[assignment,method-assign]
    try:
        run()
    except FoundParserError as found:
        parser: Parser = found.args[0]
        return parser
    finally:
        argparse.ArgumentParser.parse_args = usual  # type: ignore[method-assign]
    raise SystemExit("the program parsed nothing")


def filled(module: str, add: str, make: Callable[[], Parser] = Parser) -> Parser:
    """A parser that a function of an engine fills."""
    *path, name = add.split(".")
    holder: object = importlib.import_module(module)
    for part in path:
        holder = getattr(holder, part)
    parser = make()
    getattr(holder, name)(parser)
    return parser


def flexible() -> Parser:
    parser: Parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    return parser


VLLM_ARGUMENTS = tuple(f"vllm.entrypoints.{place}.cli_args" for place in ("common", "launchers", "openai"))  # newest first


def first(modules: tuple[str, ...]) -> str:
    """The one that is there."""
    return next(name for name in modules if importlib.util.find_spec(name.rpartition(".")[0]) and importlib.util.find_spec(name))


def module_of(name: str) -> object:
    return importlib.import_module(name)


PARSERS: dict[str, tuple[str, Callable[[], Parser]]] = {
    "vllm serve": ("vllm", lambda: filled(first(VLLM_ARGUMENTS), "make_arg_parser", flexible)),
    "vllm bench serve": ("vllm", lambda: filled("vllm.benchmarks.serve", "add_cli_args", flexible)),
    "vllm-router": ("vllm-router", lambda: caught(lambda: module_of("vllm_router.launch_router").parse_router_args([]))),  # type: ignore[attr-defined]
    "sglang.launch_server": ("sglang", lambda: filled("sglang.srt.server_args", "ServerArgs.add_cli_args")),
    "sglang.bench_serving": ("sglang", lambda: caught(lambda: module_of("sglang.benchmark.serving").cli_main())),  # type: ignore[attr-defined]
    "sglang_router.launch_router": (
        "sglang-router",
        lambda: caught(lambda: module_of("sglang_router.launch_router").parse_router_args([])),  # type: ignore[attr-defined]
    ),
}
"""By program: the package that has it, and how its parser is made."""


def made(make: Callable[[], Parser]) -> Parser:
    """A program's parser; libraries that its modules import and no parser uses are stood in for where they are missing."""
    for _ in range(MOST_MISSING):
        try:
            return make()
        except ModuleNotFoundError as error:
            if not error.name or error.name.split(".")[0] in {package.replace("-", "_") for package, _ in PARSERS.values()}:
                raise
            sys.modules[error.name] = MagicMock(name=error.name)
    return make()


def options(parser: Parser) -> Iterator[tuple[str, list[str] | None]]:
    """Every long option with its choices."""
    for action in parser._actions:
        for flag in action.option_strings:
            if flag.startswith("-"):
                yield flag.lstrip("-"), [str(choice) for choice in action.choices] if action.choices else None


def refusal(parse: Callable[[list[str]], object], words: list[str]) -> str:
    """Why a command is refused; "" where it is read."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            parse(words)
    except SystemExit:
        return " ".join(said.getvalue().split())[-300:] or "refused"
    except Exception as error:  # whatever it is, the command would not start
        return f"{type(error).__name__}: {error}"
    return ""


def titan(words: list[str]) -> object:
    """torchtitan makes its parser from the configuration that the words name."""
    return module_of("torchtitan.config.manager").ConfigManager().parse_args(words)  # type: ignore[attr-defined]


def dynamo(words: list[str]) -> object:
    """Dynamo's worker for vLLM adds vLLM's own parser to its own."""
    return module_of("dynamo.vllm.args")._parse_cli_args(words)  # type: ignore[attr-defined]


CALLED: dict[str, tuple[str, Callable[[list[str]], object]]] = {
    "torchtitan.train": ("torchtitan", titan),
    "dynamo.vllm": ("ai-dynamo", dynamo),
}
"""By program: the package, and what parses its words where no parser can be had by itself."""


def is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def asked(program: str, own: list[list[str]]) -> dict[str, object]:
    """What one program's parser knows, and which commands it refuses."""
    if program in CALLED and is_installed(CALLED[program][0]):
        package, parse = CALLED[program]
        refused = {" ".join(words): said for words in own if (said := refusal(parse, words))}
        return {"package": package, "version": version(package), "refused": refused, "options": {}}
    if program not in PARSERS or not is_installed(PARSERS[program][0]):
        return {"package": program, "version": "", "refused": {}, "options": {}}
    package, make = PARSERS[program]
    try:
        parser = made(make)
    except ImportError as error:
        return {"package": package, "version": "", "refused": {"": f"not installed here ({error})"}, "options": {}}
    refused = {" ".join(words): said for words in own if (said := refusal(parser.parse_args, words))}
    return {"package": package, "version": version(package), "refused": refused, "options": dict(options(parser))}


def main() -> None:
    calls: list[list[str]] = json.load(sys.stdin)
    keep, sys.stdout = sys.stdout, io.StringIO()
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    answer = {}
    for program in dict.fromkeys(call[0] for call in calls):
        own = [call[1:] for call in calls if call[0] == program]
        answer[program] = {**asked(program, own), "read": len(own)}
    sys.stdout = keep
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
