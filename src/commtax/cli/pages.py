"""``--html``: the page's pictures of an answer in one file that opens anywhere."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from commtax.files import write_text

if TYPE_CHECKING:
    from commtax.planner import ServingPlans, TrainPlans
    from commtax.report.view.offline import Page
    from commtax.verbs.explained import Explained


def write_bill_page(path: str, step: Explained) -> None:
    if path:
        from commtax.report.view.offline import bill_page

        _write(path, bill_page(step, _command()))


def write_plan_page(path: str, plans: ServingPlans | TrainPlans) -> None:
    if path:
        from commtax.report.view.offline import plan_page

        _write(path, plan_page(plans, _command()))


def _write(path: str, page: Page) -> None:
    from commtax.web.assets import offline

    write_text(path, offline(page), "html")


def _command() -> str:
    """The running command as it was typed, without the file that it writes."""
    context = click.get_current_context(silent=True)
    typed = context.obj if context and isinstance(context.obj, list) else []
    kept = [w for before, w in zip(["", *typed], typed, strict=False) if before != "--html" and not w.startswith("--html")]
    return shlex.join(["commtax", *kept])
