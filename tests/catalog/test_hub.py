"""Names that only the Hub may know: asked once, for a bounded time, by the standard library, and never by a table of many."""

import csv
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli_run import refusal, run_here
from commtax import catalog
from commtax.catalog import hub, models
from commtax.statement import Refusal
from paths import FIXTURES
from tables import tables

DATA = tables(__file__)
RECORDED = (FIXTURES / "tiny-llama" / "config.json").read_bytes()
COMMIT = "5" * 40
TOKEN = "hf_" + "x" * 34
VARIABLES = (
    *("HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN"),
    *("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No setting of this machine counts, and nothing is remembered."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for read in (models._from_hub, models.variant):
        read.cache_clear()
    hub._failed.clear()
    yield
    for read in (models._from_hub, models.variant):
        read.cache_clear()
    hub._failed.clear()


@contextmanager
def serving(answers):
    """A Hub on this machine: an answer (code, headers, body) by path; it remembers who asked with which token."""
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Authorization", "")))
            code, headers, body = answers.get(self.path, (404, {}, b"Entry not found"))
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def path(name, file="config.json"):
    return f"/{name}/resolve/main/{file}"


def answer(**headers):
    return 200, {"X-Repo-Commit": COMMIT, **headers}, RECORDED


def refused(name):
    with pytest.raises(Refusal) as said:
        catalog.model(name)
    return str(said.value)


def test_a_config_is_fetched_without_any_client(tmp_path):
    """A recorded answer, in a process that can import none; afterwards it is kept where the Hub's client looks."""
    code = (
        "import sys; sys.modules['huggingface_hub'] = None; from commtax import catalog; print(catalog.model('acme/tiny').hidden)"
    )
    with serving({path("acme/tiny"): answer()}) as (place, asked):
        environment = {**os.environ, "HF_ENDPOINT": f"{place}/", "HF_HOME": str(tmp_path), "HF_TOKEN": TOKEN}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == str(json.loads(RECORDED)["hidden_size"]), done.stderr
    assert asked == [(path("acme/tiny", file), f"Bearer {TOKEN}") for file in ("config.json", "hf_quant_config.json")]
    client = pytest.importorskip("huggingface_hub")
    kept = client.try_to_load_from_cache("acme/tiny", "config.json", cache_dir=tmp_path / "hub")
    assert Path(kept).read_bytes() == RECORDED


def test_what_was_fetched_once_is_there_without_a_network(monkeypatch):
    with serving({path("acme/tiny"): answer()}) as (place, asked):
        monkeypatch.setenv("HF_ENDPOINT", place)
        first = catalog.model("acme/tiny")
        assert asked[0] == (path("acme/tiny"), "")
    models._from_hub.cache_clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (catalog.model("acme/tiny"), first.aliases) == (first, ("acme/tiny",))


def keep(folder, name, config, commit=COMMIT):
    kept = folder / f"models--{name.replace('/', '--')}"
    for part, text in (("refs/main", commit), (f"snapshots/{commit}/config.json", json.dumps(config))):
        (kept / part).parent.mkdir(parents=True)
        (kept / part).write_text(text)


@pytest.mark.parametrize(
    ("variable", "inside"),
    [("HF_HOME", "hub"), ("HF_HUB_CACHE", "."), ("HUGGINGFACE_HUB_CACHE", "."), ("XDG_CACHE_HOME", "huggingface/hub")],
)
def test_the_clients_cache_is_read_before_the_hub(tmp_path, monkeypatch, variable, inside):
    """A name that would resolve by its ending has its own config here, and that is what counts."""
    name = "some/Llama-3.1-8B-Instruct-FP8"
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(variable, str(tmp_path / "own"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    keep(tmp_path / "own" / inside, name, {**catalog.config("llama-3.1-8b"), "num_hidden_layers": 3})
    assert catalog.model(name).num_layers == 3


def test_another_commit_in_the_cache_is_left_alone(tmp_path, monkeypatch):
    keep(tmp_path / "home" / "hub", "acme/tiny", {}, commit="7" * 40)
    (tmp_path / "home/hub/models--acme--tiny/snapshots" / ("7" * 40) / "config.json").unlink()
    with serving({path("acme/tiny"): answer()}) as (place, _):
        monkeypatch.setenv("HF_ENDPOINT", place)
        catalog.model("acme/tiny")
    assert (tmp_path / "home/hub/models--acme--tiny/refs/main").read_text() == "7" * 40
    assert not hub.is_cached("acme/tiny")


@pytest.mark.parametrize("same_host", [True, False])
def test_a_token_goes_to_the_endpoint_alone(monkeypatch, same_host):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving({"/elsewhere": answer()}) as (other, seen):
        target = "/elsewhere" if same_host else f"{other}/elsewhere"
        moved = (307, {"Location": target}, b"")
        with serving({path("acme/tiny"): moved, "/elsewhere": answer()}) as (place, asked):
            monkeypatch.setenv("HF_ENDPOINT", place)
            assert catalog.model("acme/tiny").hidden
    assert asked[0] == (path("acme/tiny"), f"Bearer {TOKEN}")
    to = "/elsewhere" if same_host else path("acme/tiny", "hf_quant_config.json")
    assert asked[1:2] == [(to, f"Bearer {TOKEN}")]
    assert seen == ([] if same_host else [("/elsewhere", "")])


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "//127.0.0.1:9/x", path("acme/tiny")])
def test_where_a_redirect_may_not_lead(monkeypatch, target):
    with serving({path("acme/tiny"): (302, {"Location": target}, b"")}) as (place, asked):
        monkeypatch.setenv("HF_ENDPOINT", place)
        assert "unknown model 'acme/tiny' (" in refused("acme/tiny")
        assert len(asked) <= 12


@pytest.mark.parametrize(("code", "token", "told"), DATA["what_the_hub_says_is_told_in_one_line"])
def test_what_the_hub_says_is_told_in_one_line(monkeypatch, code, token, told):
    monkeypatch.setenv("HF_TOKEN", token)
    with serving({path("acme/tiny"): (code, {}, b"x")}) as (place, _):
        monkeypatch.setenv("HF_ENDPOINT", place)
        assert refused("acme/tiny") == f"unknown model 'acme/tiny' ({place} {told})"


@pytest.mark.parametrize(
    ("body", "rule"), [(b"<html>", "not valid JSON"), (b"[1]", "not a JSON object"), (b"{" + b" " * 99, "larger than")]
)
def test_an_answer_that_is_no_config_is_refused(monkeypatch, body, rule):
    monkeypatch.setattr(hub, "CONFIG_BYTES", 64)
    with serving({path("acme/tiny"): (200, {}, body)}) as (place, _):
        monkeypatch.setenv("HF_ENDPOINT", place)
        assert rule in refused("acme/tiny")


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
    for connection in taken:
        connection.close()


def test_a_hub_that_does_not_answer_is_waited_for_once(monkeypatch, silent):
    """Not for each name, and not again until a while has passed."""
    endpoint, taken = silent
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setattr(hub, "FETCH_SECONDS", 0.3)
    assert "cannot be reached (no answer within 0.3 s)" in refused("nobody/nothing")
    assert "cannot be reached" in refused("nobody/else")
    assert len(taken) == 1
    monkeypatch.setattr(hub, "FORGET_SECONDS", -1.0)
    assert "cannot be reached" in refused("nobody/nothing")
    assert len(taken) == 2


def test_offline_nobody_is_asked_and_what_to_do_is_told(monkeypatch, silent, tmp_path):
    endpoint, taken = silent
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = refused("nobody/nothing")
    assert said == (
        f"unknown model 'nobody/nothing' (HF_HUB_OFFLINE is set, and {tmp_path / 'home' / 'hub'} does not hold it: unset it; "
        f"or save {endpoint}/nobody/nothing/raw/main/config.json in a folder and name that, as in ./nothing)"
    )
    assert not taken


@pytest.mark.parametrize(
    "endpoint", ["file:///", "huggingface.co", "ftp://x", "http://[", "https://me:secret@x", "http://a b", "http://x:999999"]
)
def test_an_endpoint_that_is_no_address(monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert "is no address: write https://HOST" in refused("acme/tiny")


@pytest.mark.parametrize("name", ["a/..", "../../x/y", "a/b?c", "a/b#c", "ä/b", "a/-b", "a b/c", "a/b\n"])
def test_what_no_id_can_be_is_never_asked_for(monkeypatch, silent, name):
    endpoint, taken = silent
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert refused(name)
    assert not taken


def test_a_table_of_many_names_asks_nobody(tmp_path, silent, monkeypatch):
    endpoint, taken = silent
    columns = ("framework", "model", "gpu", "tp", "isl", "osl", "batch", "metric", "value", "unit")
    with (tmp_path / "inference.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(("vllm", f"somebody/model-{n}", "h100", 1, 128, 128, 1, "tpot", 9.0, "ms") for n in range(50))
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    assert "first reason: model 'somebody/model-0' is not in the catalogue" in refusal(run_here("validate", "--data", tmp_path))
    assert not taken
