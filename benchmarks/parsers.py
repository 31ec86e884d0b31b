"""Do the engines read what ``--emit`` writes? ``python benchmarks/parsers.py ENGINE PYTHON [--write]``.

PYTHON is an interpreter in whose environment the engine is installed; its parser needs no GPU. Every command of
``commtax_lab.emitted`` is handed to that parser, and what it refuses is listed. ``--write`` records the parser's options, by
which tests/launch checks every flag that is written, engine or not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from commtax.toml_text import write_toml
from commtax_lab.emitted import parsed_calls

PROBE = Path(__file__).with_name("parser_probe.py")
RECORDED = Path(__file__).parents[1] / "tests" / "launch" / "engine_options.toml"


HEAD = """Options that the engines' own parsers know, recorded by benchmarks/parsers.py --write from installed packages.
By program: the package and its version, the options by name, and the words that those of ours take which have a list of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("python")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    named = list(parsed_calls(given.engine))
    calls = json.dumps([call for _, call in named])
    done = subprocess.run([given.python, str(PROBE)], input=calls, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    answer = json.loads(done.stdout.splitlines()[-1])
    for program, own in answer.items():
        if not own["version"] and not own["refused"]:
            print(f"{program}: {own['read']} commands that no parser here reads")
            continue
        print(f"{program} of {own['package']} {own['version']}: {own['read']} commands read, {len(own['refused'])} refused")
        for words, said in own["refused"].items():
            print(f"  {words}\n    {said}")
    if given.write:
        record(answer, [call for _, call in named])
    sys.exit(any(own["refused"] for own in answer.values()))


def record(answer: dict[str, dict[str, Any]], calls: list[list[str]]) -> None:
    """Keep what the parsers know beside what was recorded of others."""
    kept: dict[str, Any] = tomllib.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    used = {word.lstrip("-").partition("=")[0] for call in calls for word in call if word.startswith("--")}
    for program, own in ((program, own) for program, own in answer.items() if own["options"]):
        chosen = {name: " ".join(choices) for name, choices in own["options"].items() if choices and name in used}
        told = {"package": own["package"], "version": own["version"], "options": " ".join(sorted(own["options"]))}
        kept[program] = {**told, "choices": chosen}
    RECORDED.write_text(write_toml(kept, HEAD.splitlines()))


if __name__ == "__main__":
    main()
