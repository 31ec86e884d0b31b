"""Answers that never come, clients that leave, connections that say nothing, signals: the server goes on and leaves nothing behind.

A real server with real workers; only what they are asked has no end (``slow_nursery``), inside one call into C.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from paths import HELPERS

ENDLESS_BILL, ENDLESS_PLAN = "/api/bill?b=65536", "/api/plan?c=2xa100-80-sxm"
LIMIT_S = 2.0  # as in slow_server
FIELDS = {"error", "argument", "rule", "nearest", "instead"}


@contextlib.contextmanager
def served():
    command = [sys.executable, str(HELPERS / "slow_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            port = int(re.search(r":(\d+)/", process.stdout.readline())[1])
            ask(port, "/api/view")  # the nursery has loaded
            yield process, port
        finally:
            process.kill()
            assert "Traceback" not in process.stderr.read()


@pytest.fixture(scope="module")
def port():
    with served() as (_, number):
        yield number


def ask(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), json.loads(answer.read())
    connection.close()
    return found


def begin(port, path):
    wire = socket.create_connection(("127.0.0.1", port), timeout=10)
    wire.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return wire


def is_empty(group, within_s=3.0):
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("path", [ENDLESS_BILL, ENDLESS_PLAN])
def test_an_endless_answer_is_refused_in_time_and_others_are_answered(port, path):
    begun = time.monotonic()
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(ask, port, path)
        assert ask(port, "/api/view?tp=2")[0] == 200
        assert not waiting.done()
        status, _, body = waiting.result()
    assert time.monotonic() - begun < LIMIT_S + 2
    assert (status, set(body)) == (422, FIELDS)
    assert "command line" in body["error"]


def test_what_nobody_waits_for_is_given_up(port):
    for _ in range(12):
        begin(port, ENDLESS_PLAN).close()
    begun = time.monotonic()
    assert ask(port, "/api/plan?c=2xh100-sxm")[0] == 200  # behind ten that waited it would be told to come back
    assert time.monotonic() - begun < 3 * LIMIT_S  # those twelve, two at a time, would take 6 x LIMIT_S


def test_too_many_are_told_to_come_back_and_nobody_waits_long(port):
    begun = time.monotonic()
    with ThreadPoolExecutor(40) as crowd:
        found = list(crowd.map(lambda i: ask(port, ENDLESS_PLAN), range(40)))
    assert time.monotonic() - begun < LIMIT_S + 3
    statuses = {status for status, _, _ in found}
    assert statuses == {422, 429}
    busy = next((headers, body) for status, headers, body in found if status == 429)
    assert int(busy[0]["retry-after"]) >= 1
    assert (set(busy[1]), ask(port, "/api/plan?c=2xh100-sxm")[0]) == (FIELDS, 200)


def test_workers_are_replaced_and_nobody_notices(port):
    """Each has a share of five here."""
    assert {ask(port, f"/api/bill?b={i}")[0] for i in range(1, 25)} == {200}


def test_half_sent_questions_hinder_nobody_and_are_ended(port):
    wires = []
    try:
        for _ in range(500):
            wires.append(socket.create_connection(("127.0.0.1", port), timeout=10))
            wires[-1].sendall(b"GET /api/view HTTP/1.1\r\nHost: loc")
        assert ask(port, "/api/view?tp=4")[0] == 200
        last = wires[-1]
        end = time.monotonic() + 10
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                last.sendall(b"a")  # a drop now and then does not prolong its time
                time.sleep(0.1)
        assert time.monotonic() < end
    finally:
        for wire in wires:
            wire.close()


def test_a_connection_may_ask_again(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for i in range(1, 4):
        connection.request("GET", f"/api/bill?b={i}")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["fits"]) == (200, True)
    connection.close()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_it_ends_in_the_middle_of_everything_and_leaves_no_process(end):
    with served() as (process, port):
        wires = [begin(port, path) for path in (ENDLESS_BILL, ENDLESS_PLAN, ENDLESS_PLAN)]
        time.sleep(0.3)
        begun = time.monotonic()
        process.send_signal(end)
        process.wait(timeout=10)
        assert is_empty(process.pid)
        assert time.monotonic() - begun < 3.0
        for wire in wires:
            wire.close()


@pytest.mark.parametrize("pause_s", [0.0, 2.0])
def test_it_ends_without_a_word_when_nobody_asked(pause_s):
    """While its workers load, and after."""
    command = [sys.executable, "-m", "commtax", "web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        process.stdout.readline()
        time.sleep(pause_s)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        assert process.stderr.read().strip() in ("", "interrupted")
        assert process.wait(timeout=10) == 130
        assert is_empty(process.pid)


@pytest.mark.skipif(not shutil.which("ps"), reason="needs ps to find it")
def test_a_nursery_that_died_is_replaced():
    with served() as (process, port):
        family = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        child = next(int(pid) for pid, parent in map(str.split, family.splitlines()) if int(parent) == process.pid)
        os.kill(child, signal.SIGKILL)
        for i in range(8):  # workers that live go on; when their share is done new ones are needed
            assert ask(port, f"/api/bill?b={i + 1}")[0] == 200
