"""Throw generated questions at the API by its own schema: no 5xx, nothing that the schema does not tell.

``python benchmarks/web_schema.py [--examples 300]``: seven endpoints, well over 2,000 cases. Needs schemathesis.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hostile_requests import Server

LEAST = 2000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=150)
    words = parser.parse_args()
    server = Server()
    settings = ["--checks", "all", "--mode", "all", "--max-examples", str(words.examples), "--workers", "2"]
    config = str(Path(__file__).resolve().with_name("schemathesis.toml"))
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", config, "run"]
    try:
        address = f"http://127.0.0.1:{server.port}/openapi.json"
        with tempfile.TemporaryDirectory() as folder:  # it keeps its own cache where it runs
            ran = subprocess.run([*command, address, *settings], capture_output=True, text=True, check=False, cwd=folder)
        alive = server.process.poll() is None
    finally:
        server.end()
    print(ran.stdout[-3000:])
    count = re.search(r"([\d,]+) generated", ran.stdout)
    cases = int(count[1].replace(",", "")) if count else 0
    print(f"{cases:,} cases, exit {ran.returncode}, the server {'lives' if alive else 'is gone'}")
    sys.exit(0 if ran.returncode == 0 and alive and cases >= LEAST else 1)


if __name__ == "__main__":
    main()
