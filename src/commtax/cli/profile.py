"""``commtax profile``: what a profile holds, what changed, and what it tells of a question."""

from pathlib import Path

import click

from commtax import catalog
from commtax.catalog.profile_files import load, load_profile
from commtax.cli.help import VerbGroup
from commtax.cli.options import GivenOptions, Verb, add_verb_options
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
    """What a profile holds, what changed between two, what one tells of a question: show, diff, check."""


def _files(command: click.decorators.FC) -> click.decorators.FC:
    return click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))(command)


@profile_command.command("show", cls=Verb)
@_files
@add_verb_options("profile-show")
def show_command(files: tuple[Path, ...], as_json: bool) -> None:
    """What a profile holds: when and where it was measured, its runs, collectives, kernels and sources."""
    Output(as_json).answer(profiles.profile_document, profiles.show_profile, _joined(files))


@profile_command.command("diff", cls=Verb)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@add_verb_options("profile-diff")
def diff_command(first: Path, second: Path, as_json: bool) -> None:
    """What changed from A to B: constants and runs in per cent, and what only one of them holds."""
    found = difference(load(first), load(second))
    Output(as_json).answer(profiles.difference_document, profiles.show_difference, found)


@profile_command.command("check", cls=Verb)
@_files
@add_verb_options("profile-check")
def check_command(files: tuple[Path, ...], as_json: bool, **options: object) -> None:
    """Can it be read, does it hold physics, and what does it tell of a question? Exit 1: nothing of it, 2: not readable."""
    output, own = Output(as_json), _joined(files)
    found = coverage(own, _asked(GivenOptions(options), output))
    output.answer(profiles.coverage_document, profiles.show_coverage, found, code=0 if found.used else TELLS_NOTHING)


def _joined(files: tuple[Path, ...]) -> Profile:
    own = load_profile(files)
    if own is None:
        raise Refusal("file: at least one profile is needed")
    return own


def _asked(given: GivenOptions, output: Output) -> ProfileRequest:
    """What is asked of it: what was given, and nothing else."""
    named = given.engine
    version = named.partition("@")[2]
    return ProfileRequest(
        cluster=output.read(cluster_of(given)) if given.cluster else None,
        engine=catalog.engine(named) if named else None,
        version=version,
        model=catalog.model(given.model) if given.model else None,
        dtype=dtype_of(given.dtype),
        sizes={axis: given[axis] for axis in ("tp", "pp", "dp", "ep") if given[axis] is not None},
    )
