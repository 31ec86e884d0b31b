"""Wheels and source archives, built for real, and man pages that say what help says."""

import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes

import click
import pytest
import yaml

import commtax
from commtax.cli.app import VERBS, commands
from paths import DOCUMENTS, ROOT
from tables import tables

DATA = tables(__file__)
PROJECTS = {"commtax": (ROOT, "src/commtax"), "commtax_lab": (ROOT / "laboratory", "commtax_lab")}
JUNK = re.compile(r"__pycache__|\.pyc$|/tests?/|\.egg-info|/\.")
BUILD = DATA["build"]
"""What ``python -m build`` asks the backend, without an environment of its own: an archive, a wheel, and one of the archive."""


def shipped(folder):
    return {
        str(path.relative_to(folder.parent)) for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module", params=PROJECTS)
def built(request, tmp_path_factory):
    """A project's name and folder, its archive, the wheel from the repository, and the wheel from the archive."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: nothing can be built")
    folder, package = PROJECTS[request.param]
    out = tmp_path_factory.mktemp(request.param)
    done = subprocess.run([sys.executable, "-c", BUILD, str(folder), str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    archive, wheel = done.stdout.split()[-2:]
    return request.param, folder / package, out / archive, out / wheel, out / "again" / wheel


def contents(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built):
    name, folder, _, wheel, _ = built
    files = contents(wheel)
    own = {path for path in files if path.startswith(f"{name}/")}
    assert own == shipped(folder)
    others = {re.sub(r"^[\w.-]+\.(dist-info|data)/", "", path) for path in files.keys() - own}
    pages = {path for path in others if re.fullmatch(r"data/share/man/man1/commtax[\w-]*\.1", path)}
    assert others - pages <= {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert not [path for path in files if JUNK.search(path)]


def test_the_archive_makes_the_same_wheel(built):
    _, _, archive, wheel, again = built
    assert contents(wheel) == contents(again)
    with tarfile.open(archive) as file:
        paths = [member.name.partition("/")[2] for member in file.getmembers()]
    assert not [path for path in paths if JUNK.search(f"/{path}") and path != ".gitignore"]
    assert {"pyproject.toml", "PKG-INFO"} <= set(paths)


def test_metadata_says_what_the_project_says(built):
    name, _, _, wheel, _ = built
    stem = f"{name}-{commtax.__version__}"
    assert wheel.name == f"{stem}-py3-none-any.whl"
    files = contents(wheel)
    said = message_from_bytes(files[f"{stem}.dist-info/METADATA"])
    assert (said["Version"], said["Requires-Python"]) == (commtax.__version__, ">=3.11")
    plain = [line for line in said.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(plain) <= 5
    if name == "commtax":
        assert said["Description-Content-Type"] == "text/markdown"
        assert b"commtax = commtax.__main__:main" in files[f"{stem}.dist-info/entry_points.txt"]


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == commtax.__version__
    asked = {line.replace(" ", "") for line in recipe["requirements"]["run"]}
    assert asked == {*project["project"]["dependencies"], f"python{project['project']['requires-python']}"}
    assert {line.replace(" ", "") for line in recipe["requirements"]["host"]} >= set(project["build-system"]["requires"])
    points = {f"{name} = {place}" for name, place in project["project"]["scripts"].items()}
    assert set(recipe["build"]["python"]["entry_points"]) == points
    assert recipe["about"]["summary"] == project["project"]["description"]
    assert recipe["about"]["license"] == project["project"]["license"]


def test_the_container_copies_what_the_build_needs_and_ignores_the_rest():
    """Everything that the build reads is let in and copied; it runs without rights, on a base of a known version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {"pyproject.toml", "hatch_build.py", project["project"]["readme"], *project["project"]["license-files"], "src"}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    container = (ROOT / "Containerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)$", container, re.M) for word in line.split()[:-1]}
    assert needed <= let_in == copied
    assert all((ROOT / name).exists() for name in copied)
    assert re.findall(r"^USER (\S+)", container, re.M)[-1] not in ("root", "0")
    assert all(":" in base and not base.endswith(":latest") for base in re.findall(r"^FROM (\S+)", container, re.M))


@pytest.fixture(scope="module")
def pages():
    return dict(runpy.run_path(str(DOCUMENTS / "man_pages.py"))["pages"]())


def test_every_command_has_a_page_with_every_option(pages):
    app = commands([])
    assert {f"commtax-{verb}.1" for verb in VERBS} | {"commtax.1"} <= pages.keys()
    for verb in VERBS:
        page = pages[f"commtax-{verb}.1"].replace("\\-", "-")
        for option in app.commands[verb].params:
            if isinstance(option, click.Option) and not option.hidden:
                assert any(flag in page for flag in option.opts), (verb, option.name)


def test_groff_takes_the_pages_without_a_warning(pages, tmp_path):
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    for name, text in pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"commtax-plan\s+-\s+\w", done.stdout)
