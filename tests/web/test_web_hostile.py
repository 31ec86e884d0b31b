"""What a stranger may send: scripts in names, bodies, paths, foreign names, numbers that are none. All refused, none remembered."""

import contextlib
import http.client
import itertools
import json
import re
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from commtax import catalog
from commtax.report.view.state import KEYS, parse
from commtax.verbs.billing import price
from commtax.verbs.settling import settle
from commtax.web.answering import ANSWERS
from commtax.web.app import create_app
from each import each
from paths import BENCHMARKS
from tables import tables
from web_client import ask, refused

DATA = tables(__file__)

SEEN: list[list[tuple[str, str]]] = []
OURS = (str(Path(catalog.__file__).parents[1]), *(str(Path(p).resolve()) for p in (sys.prefix, sys.base_prefix)))
SCRIPT = "<script>alert(1)</script>"
CONFIG = catalog.config("llama-3.1-8b")
CONFIGS = {**DATA["configs"], **{name: json.dumps({**CONFIG, **change}) for name, change in DATA["changes"].items()}}
CONFIGS |= {"deep": "[" * 5000 + "]" * 5000, "deep objects": '{"a":' * 3000 + "1" + "}" * 3000}
CONFIGS |= {"huge": json.dumps({**CONFIG, "hidden_size": 10**30}), "long": json.dumps({**CONFIG, "x": "y" * 40_000})}


def _audit(event, words):
    """Files and connections that are opened while somebody watches, beyond the package's own and the interpreter's."""
    if SEEN and event in ("open", "os.listdir", "os.scandir", "socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
        what = str(words[0])
        if not what.startswith(OURS):
            SEEN[-1].append((event, what))


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched():
    SEEN.append([])
    try:
        yield SEEN[-1]
    finally:
        SEEN.pop()


@each("text", DATA["evil"])
@each("key", ["m", "c", "intra", "inter", "e", "cfg", "as", "lib", "z"])
def test_names_are_of_the_catalogue_or_refused(key, text):
    ask("/api/view")  # what is loaded on first use is loaded
    with watched() as seen:
        status, found = refused("view", {key: text})
    assert not seen
    assert status in (400, 422)
    assert len(found["rule"]) < 600
    assert "\n" not in found["rule"]


def test_a_folder_beside_the_server_is_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(catalog.config("llama-3.1-8b")))
    for name in ("mine", "./mine", str(tmp_path / "mine"), "mine/config.json"):
        assert refused("view", {"m": name})[0] in (400, 422)


@each("text", DATA["numbers"])
@each("key", [k.name for k in KEYS if isinstance(k.default, int)])
def test_numbers_are_whole_and_in_range(key, text):
    status, found = refused("bill", {key: text})
    assert (status, found["argument"]) == (400, key)


@each("text", ["NaN", "Infinity", "-1", "1e999", "1e400", "0x1p3", "", "1_0", "٣"])
def test_limits_are_numbers(text):
    assert refused("plan", {"ttft": text})[0] == 400


@each("name", CONFIGS)
def test_pasted_configs_are_read_or_refused(name):
    status, found = refused("view", {"cfg": CONFIGS[name]})
    assert status in (400, 422)
    assert len(found["rule"]) < 4000


def test_every_field_of_a_config_may_be_wrong():
    """Each field of real configs replaced by what nobody writes: an answer or a refusal, never a crash."""
    for nth, model in enumerate(("llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "gemma-3-27b", "glm-5")):
        config = catalog.config(model)
        for field in config:
            for value in (None, -1, 0, "x", [], {}, 1e300, True)[nth % 2 :: 2]:  # half of them: the next model meets the others
                with contextlib.suppress(ValueError, OverflowError):  # what the API turns into a refusal
                    assert price(settle(parse([("cfg", json.dumps({**config, field: value}))]).question)).step_s > 0, (
                        model,
                        field,
                        value,
                    )


@each("host", DATA["foreign_names_are_refused"])
def test_foreign_names_are_refused(host):
    status, _, body = ask("/api/view", host=host)
    assert (status, json.loads(body)["argument"]) == (400, "host")


def _asked_with(path, headers, **more):
    return ask(path, headers=[(name.encode(), value.encode()) for name, value in headers.items()], **more)


@each("headers", DATA["foreign"])
def test_pages_elsewhere_compute_nothing(headers):
    """… but may link to the page."""
    for name in ANSWERS:
        status, _, body = _asked_with(f"/api/{name}", headers)
        assert (status, json.loads(body)["argument"]) == (403, "origin")
    assert (_asked_with("/api/audit", headers, method="POST", body=b"x")[0], _asked_with("/", headers)[0]) == (403, 200)


@each("headers", DATA["own_page"])
def test_the_page_and_programs_may_ask(headers):
    assert _asked_with("/api/catalog", headers)[0] == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST:1", "localhost."])
def test_loopback_names_are_ours(host):
    assert ask("/api/catalog", host=host)[0] == 200


def test_the_host_that_was_given_is_ours_too():
    from commtax.web.guard import Guard

    assert Guard(None, "box.lan")._is_ours("box.lan:8080")
    assert not Guard(None, "box.lan")._is_ours("other.lan:8080")
    assert Guard(None, "0.0.0.0")._is_ours("192.168.1.7:8080")
    assert not Guard(None, "0.0.0.0")._is_ours("evil.example")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_only_questions(method):
    status, headers, body = ask("/api/view", method=method)
    assert ((status, headers["allow"]), json.loads(body)["argument"]) == ((405, "GET, HEAD"), "method")


@pytest.mark.parametrize(
    "header", [(b"content-length", b"1000000000"), (b"transfer-encoding", b"chunked"), (b"content-length", b"-1")]
)
def test_bodies_are_refused(header):
    assert ask("/api/view", headers=[header])[0] == 413


def test_broken_queries_are_refused_and_head_is_get_without_a_body():
    assert ask("/api/view", raw=b"m=" + b"a" * 200_000)[0] == 414
    for raw in (b"%", b"tp=%ff%fe", b"&&&=", b"tp", b"tp=1&tp=2", b"=1", b"tp[]=1", b"\xff=1", b"m=%00", b";tp=1"):
        status, _, body = ask("/api/view", raw=raw)
        assert status in (200, 400, 422), raw
        assert status != 200 or raw in (b"&&&=",)
        json.loads(body)
    status, headers, body = ask("/api/view", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 1000


@each("path", DATA["nothing_else_is_served"])
def test_nothing_else_is_served(path):
    status, headers, body = ask(path)
    assert status == 404
    assert headers["content-type"].startswith("application/json")
    assert set(json.loads(body)) == {"error", "argument", "rule", "nearest", "instead"}


@pytest.mark.parametrize("path", ["/", "/page.js", "/api/catalog", "/api/nothing", "/openapi.json"])
def test_browsers_are_told(path):
    _, headers, _ = ask(path)
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_the_page_names_no_outside_address():
    from commtax.web.assets import page_files

    for name, (body, _) in page_files().items():
        found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", body.decode()))
        assert found <= {"http://www.w3.org"}, name


def test_scripts_in_names_do_not_reach_a_page_as_markup(tmp_path, capsys):
    """A config's own key becomes a title: in an offline file it stays text."""
    from commtax.web.assets import offline

    page = offline({"kind": "bill", "view": {"title": "</script>" + SCRIPT}})
    assert SCRIPT not in page
    inside = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(inside)["view"]["title"] == "</script>" + SCRIPT


@pytest.fixture(scope="module")
def server():
    command = [sys.executable, "-m", "commtax", "web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield int(re.search(r":(\d+)/", process.stdout.readline())[1])
        process.terminate()
        assert "Traceback" not in process.communicate(timeout=10)[1]


def test_a_real_server_stands_all_of_it(server):
    def raw(text):
        with socket.create_connection(("127.0.0.1", server), timeout=10) as wire:
            with contextlib.suppress(OSError):  # it may hang up on us before we are done
                wire.sendall(text)
                wire.shutdown(socket.SHUT_WR)
            return wire.recv(65536)

    assert raw(b"\x00\xff\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(b"GET /api/view?m=" + b"a" * 400_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n").split()[1] in (
        b"400",
        b"414",
        b"431",
    )
    body = b"POST /api/view HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 1000
    assert (raw(body).split()[1], raw(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").split()[1]) == (b"405", b"400")
    connection = http.client.HTTPConnection("127.0.0.1", server)
    connection.request("GET", "/api/view?tp=8")
    answer = connection.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["totals"]["step_s"] > 0
    connection.close()


def test_it_listens_on_loopback_alone(server):
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:] if Path("/proc/net/tcp").exists() else []
    bound = [line.split()[1] for line in lines if line.split()[3] == "0A" and int(line.split()[1].split(":")[1], 16) == server]
    assert all(address.startswith("0100007F") for address in bound)


def test_generated_questions_keep_the_schema():
    """Some of the cases that ``benchmarks/web_schema.py`` runs by the thousand."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable

    config = schemathesis.config.SchemathesisConfig.from_str((BENCHMARKS / "schemathesis.toml").read_text())
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app("testserver"), config=config)
    alike = {"deadline": None, "database": None, "derandomize": True, "phases": [Phase.generate]}
    plain = settings(max_examples=5, suppress_health_check=list(HealthCheck), **alike)
    count = 0
    for operation, mode in itertools.product(schema.get_all_operations(), schemathesis.GenerationMode):
        api = operation.ok()

        @plain
        @given(case=api.as_strategy(generation_mode=mode))
        def holds(case):
            nonlocal count
            count += 1
            case.call_and_validate()

        with contextlib.suppress(Unsatisfiable):  # a question without keys has no wrong one
            holds()
    assert count >= 60
