"""``commtax profile``: its measurements, what changed between two, and what it tells of a question."""

from pathlib import Path

import click

from commtax import catalog
from commtax.catalog.profile_files import load, load_profile
from commtax.cli.help import VerbGroup
from commtax.cli.options import CommandOptions, Verb, add_verb_options
from commtax.cli.order import cluster_of
from commtax.cli.output import Output
from commtax.report import profiles
from commtax.rules.values import dtype as dtype_of
from commtax.spec import Profile
from commtax.statement import Refusal
from commtax.verbs.profiles import ProfileRequest, coverage, difference

TELLS_NOTHING = 1  # the exit code of a profile that tells nothing of what is asked


@click.group("profile", cls=VerbGroup)
def profile_command() -> None:
    """Show what a profile holds, what changed between two, and what one tells of a question: show, diff, check."""


def _files(command: click.decorators.FC) -> click.decorators.FC:
    return click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))(command)


@profile_command.command("show", cls=Verb)
@_files
@add_verb_options("profile-show")
def show_command(files: tuple[Path, ...], as_json: bool) -> None:
    """Show what a profile holds: when and where it was measured, its runs, collectives, kernels and sources."""
    Output(as_json).answer(profiles.profile_document, profiles.show_profile, _joined(files))


@profile_command.command("diff", cls=Verb)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@add_verb_options("profile-diff")
def diff_command(first: Path, second: Path, as_json: bool) -> None:
    """Show what changed from A to B: constants and runs in per cent, and what only one of them holds."""
    Output(as_json).answer(profiles.difference_document, profiles.show_difference, difference(load(first), load(second)))


@profile_command.command("check", cls=Verb)
@_files
@add_verb_options("profile-check")
def check_command(files: tuple[Path, ...], as_json: bool, **options: object) -> None:
    """Check that it can be read and holds physics, and what it tells of a question. Exit 1: nothing of it, 2: not readable."""
    output, profile = Output(as_json), _joined(files)
    wanted = CommandOptions(options)
    request = ProfileRequest(
        cluster=output.read(cluster_of(wanted)) if wanted.cluster else None,
        engine=catalog.engine(wanted.engine) if wanted.engine else None,
        version=wanted.engine.partition("@")[2],
        model=catalog.model(wanted.model) if wanted.model else None,
        dtype=dtype_of(wanted.dtype),
        sizes={axis: wanted[axis] for axis in ("tp", "pp", "dp", "ep") if wanted[axis] is not None},
    )
    covered = coverage(profile, request)
    output.answer(profiles.coverage_document, profiles.show_coverage, covered, code=0 if covered.used else TELLS_NOTHING)


def _joined(files: tuple[Path, ...]) -> Profile:
    profile = load_profile(files)
    if profile is None:
        raise Refusal("file: at least one profile is needed")
    return profile
