"""The step of the action that predicts: launch files against those of the base branch, or a run against its prediction.

Writes the answer as Markdown to a file and to the job's summary, and says in the step's outputs where it is and what follows.
Whatever a pull request may write (paths, files) reaches commtax as an argument and never a shell.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

OK, NOT_ALLOWED, ERROR = "ok", "not-allowed", "error"
VERDICTS = {0: OK, 1: NOT_ALLOWED, 3: NOT_ALLOWED}  # 3: nothing that was measured could be judged


def main() -> None:
    launches, runs = lines("COMMTAX_LAUNCH"), lines("COMMTAX_RUN")
    if not launches:
        sys.exit("launch: name at least one file")
    answers = [audited(runs, launches[0])] if runs else [compared(path) for path in launches]
    text = "\n".join(markdown for _, markdown in answers)
    found = [verdict for verdict, _ in answers if verdict]
    where = Path(os.environ.get("RUNNER_TEMP") or tempfile.gettempdir(), "commtax.md")
    where.write_text(text, encoding="utf-8")
    append("GITHUB_STEP_SUMMARY", text)
    append("GITHUB_OUTPUT", f"markdown={where}\nchanged={str(bool(found)).lower()}\nverdict={worst(found)}")
    print(text)


def compared(path: str) -> tuple[str, str]:
    """The verdict on a launch file, "" where it is as before, and what to say of it."""
    before = at_base(path)
    if not Path(path).is_file():
        return ("", f"`{path}` is not there any more.\n") if before is not None else missing(path)
    if before == Path(path).read_bytes():
        return "", f"`{path}` is not changed.\n"
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, "base", Path(path).name)
        if before is not None:
            old.parent.mkdir()
            old.write_bytes(before)
        rules = os.environ.get("COMMTAX_FAIL_ON") or "does-not-fit"
        return asked("diff", str(old) if before is not None else os.devnull, path, *arguments(), "--fail-on", rules, of=path)


def audited(runs: list[str], launch: str) -> tuple[str, str]:
    """The verdict on a run, and what to say of it."""
    for path in (*runs, launch):
        if not Path(path).exists():
            return missing(path)
    verdict, text = asked("audit", *runs, "--from", launch, *arguments(), of=", ".join(runs))
    never = os.environ.get("COMMTAX_FAIL_ON") == "never"
    return OK if never and verdict == NOT_ALLOWED else verdict, text


def missing(path: str) -> tuple[str, str]:
    """A path of the workflow that nothing stands at, here and at the base: a wrong name must not pass."""
    print(f"::error::{path}: no such file", file=sys.stderr)
    return ERROR, f"### ❌ `{path}`\n\nThere is no such file, here or on the base branch: correct the path in the workflow.\n"


def asked(*words: str, of: str) -> tuple[str, str]:
    """What commtax answers."""
    done = subprocess.run(
        [sys.executable, "-m", "commtax", *words, "--markdown"], capture_output=True, text=True, encoding="utf-8", check=False
    )
    print(done.stderr, file=sys.stderr, end="")
    if done.returncode in VERDICTS:
        return VERDICTS[done.returncode], done.stdout
    said = done.stderr.strip().removeprefix("error: ").replace("```", "'''")
    return ERROR, f"### ❌ `{of}`\n\nThere is no prediction:\n\n```text\n{said}\n```\n"


def at_base(path: str) -> bytes | None:
    """A file as it is in the base commit, None where that does not have it."""
    base = os.environ.get("COMMTAX_BASE") or base_of_event()
    if not base:
        sys.exit("base: this event has no pull request; say which commit to compare with")
    if git("cat-file", "-e", f"{base}^{{commit}}").returncode:  # a shallow clone lacks it
        fetched = git("fetch", "--quiet", "--depth=1", "origin", base)
        if fetched.returncode:
            sys.exit(f"base: {base} cannot be fetched: {fetched.stderr.decode(errors='replace').strip()}")
    shown = git("show", f"{base}:./{path}")
    return None if shown.returncode else shown.stdout


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], capture_output=True, check=False)


def base_of_event() -> str:
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    return str(event.get("pull_request", {}).get("base", {}).get("sha", ""))


def worst(found: list[str]) -> str:
    return next((verdict for verdict in (ERROR, NOT_ALLOWED) if verdict in found), OK)


def arguments() -> list[str]:
    return shlex.split(os.environ.get("COMMTAX_ARGUMENTS", ""))


def lines(name: str) -> list[str]:
    return [line.strip() for line in os.environ.get(name, "").splitlines() if line.strip()]


def append(name: str, text: str) -> None:
    """To a file that the runner reads, where there is one."""
    if path := os.environ.get(name):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")


if __name__ == "__main__":
    main()
