"""``commtax web``: the page, served from this machine to itself unless told otherwise."""

import os

import click

from commtax.cli.options import Verb, add_verb_options
from commtax.statement import Refusal


@click.command("web", cls=Verb)
@add_verb_options("web")
def web_command(port: int, host: str) -> None:
    """Serve the communication tax on a page that you can move (needs the extra [web])."""
    if not hasattr(os, "fork"):
        raise Refusal("web: needs a system that forks processes, such as Linux or macOS (on Windows: WSL)")
    try:
        from commtax.web.pool import WorkerPool
        from commtax.web.server import listen, run_server
    except ImportError as error:
        raise Refusal(f"web: {error.name} is missing; pip install 'commtax[web]'") from None
    bound = listen(host, port)
    click.echo(f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}/  (Ctrl-C ends it)")
    run_server(host, bound, WorkerPool())
