"""Names that only the Hub may know: asked once, for a bounded time, and never by a table of many."""

import csv
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from commtax import catalog
from commtax.catalog import hub

LOOKED_UP = """
import sys, time
from commtax.catalog import hub, model
hub.REACH_SECONDS = hub.FETCH_SECONDS = 1.0
for name in sys.argv[1:]:
    began = time.perf_counter()
    try:
        model(name)
    except ValueError as error:
        print(round(time.perf_counter() - began, 2), error)
"""


def looked_up(*names, **environment):
    plain = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    done = subprocess.run(
        [sys.executable, "-c", LOOKED_UP, *names], capture_output=True, text=True, check=True, env={**plain, **environment}
    )
    return [(float(took), said) for took, _, said in (line.partition(" ") for line in done.stdout.splitlines())]


@pytest.fixture
def silent():
    """A server that takes every connection and answers none; it counts them."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken = []

    def accept():
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", taken
    listener.close()


def test_a_hub_that_does_not_answer_is_waited_for_once(tmp_path, silent):
    endpoint, taken = silent
    found = looked_up("nobody/nothing", "nobody/nothing", HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path))
    assert [said for _, said in found] == ["unknown model 'nobody/nothing' (and the Hub did not give it: no answer within 1 s)"] * 2
    assert found[0][0] < 30
    assert found[1][0] < 0.5
    assert 1 <= len(taken) <= 3  # a look, and one attempt


def test_a_hub_that_cannot_be_reached_is_remembered_for_all_names(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    found = looked_up("a/b", "c/d", "e/f", HF_ENDPOINT=f"http://127.0.0.1:{port}", HF_HOME=str(tmp_path))
    assert all("the Hub did not give it" in said for _, said in found)
    assert found[1][0] + found[2][0] < 1


def test_offline_is_refused_at_once(tmp_path, silent):
    endpoint, taken = silent
    found = looked_up("a/b", HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert "did not give it" in found[0][1]
    assert not taken


def test_a_table_of_many_names_asks_nobody(tmp_path, silent):
    endpoint, taken = silent
    columns = ("framework", "model", "gpu", "tp", "isl", "osl", "batch", "metric", "value", "unit")
    with (tmp_path / "inference.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(("vllm", f"somebody/model-{n}", "h100", 1, 128, 128, 1, "tpot", 9.0, "ms") for n in range(50))
    done = subprocess.run(
        [sys.executable, "-m", "commtax", "validate", "--data", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")},
    )
    assert done.returncode == 2
    assert "first reason: model 'somebody/model-0' is not in the catalogue" in done.stderr
    assert not taken


@pytest.mark.parametrize(
    ("proxies", "address"),
    [
        ({}, ("huggingface.co", 443)),
        ({"HTTPS_PROXY": "http://proxy.example:3128"}, ("proxy.example", 3128)),
        ({"ALL_PROXY": "proxy.example:3128"}, ("proxy.example", 3128)),
        ({"ALL_PROXY": "socks5://proxy.example"}, None),
        ({"ALL_PROXY": "http://proxy.example", "NO_PROXY": "huggingface.co"}, ("huggingface.co", 443)),
    ],
)
def test_the_first_connection_goes_where_the_client_will_go(monkeypatch, proxies, address):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    assert hub._address("https://huggingface.co") == address


def test_a_failure_is_forgotten_after_a_while(monkeypatch):
    found = []
    monkeypatch.setattr(
        hub, "_fetched", lambda name, file_name: found.append(name) or "config.json" if found else _fail(found, name)
    )
    with pytest.raises(LookupError, match="down"):
        hub.file("a/notebook")
    with pytest.raises(LookupError, match="down"):
        hub.file("a/notebook")
    monkeypatch.setattr(hub, "FORGET_SECONDS", -1.0)
    assert hub.file("a/notebook") == "config.json"
    assert len(found) == 2


def _fail(found, name):
    found.append(name)
    raise LookupError("down")


def test_a_checkpoint_that_the_client_keeps_is_read_from_there(tmp_path):
    """A name that would resolve by its ending has its own config here, and that is what counts."""
    name = "some/Llama-3.1-8B-Instruct-FP8"
    kept = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    (kept / "snapshots" / ("0" * 40)).mkdir(parents=True)
    config = {**catalog.config("llama-3.1-8b"), "num_hidden_layers": 3}
    (kept / "snapshots" / ("0" * 40) / "config.json").write_text(json.dumps(config))
    code = f"from commtax import catalog; print(catalog.model({name!r}).num_layers)"
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "3", done.stderr
