"""The GitHub Action: its own steps, run as a runner would, in a real repository, with a real server that takes the comments."""

import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from paths import ROOT
from texts import lacking, put

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
ARGUMENTS = "--cluster 4xh100-sxm --concurrency 16"
LAUNCH = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size {}\n"


class Api(ThreadingHTTPServer):
    """As much of GitHub as comments need: pages of them, new ones and changed ones."""

    def __init__(self, refuses=False):
        super().__init__(("127.0.0.1", 0), Handler)
        self.comments, self.calls, self.refuses = [], [], refuses
        self.thread = Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        self.server_close()

    def add(self, body, kind="User", association="NONE"):
        self.comments.append(
            {"id": 100 + len(self.comments), "body": body, "user": {"type": kind}, "author_association": association}
        )
        return self.comments[-1]


class Handler(BaseHTTPRequestHandler):
    def answer(self, code, value):
        self.server.calls.append((self.command, self.path.partition("?")[0], self.headers["Authorization"]))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]

    def do_GET(self):
        size, page = (int(re.search(rf"[?&]{key}=(\d+)", self.path)[1]) for key in ("per_page", "page"))
        self.answer(200, self.server.comments[size * (page - 1) : size * page])

    def do_POST(self):
        code, row = (403, {}) if self.server.refuses else (201, self.server.add(self.body(), "Bot"))
        self.answer(code, row)

    def do_PATCH(self):
        row = next(row for row in self.server.comments if self.path.endswith(f"/{row['id']}"))
        row["body"] = self.body()
        self.answer(200, row)

    def log_message(self, *_):
        pass


class Runner:
    """Runs the steps of ``action.yml`` that are ours: expressions filled in, files for outputs and summary, one after another."""

    def __init__(self, folder: Path, api: str):
        self.folder, self.repository = folder, folder / "repository"
        self.repository.mkdir()
        self.git("init", "-q", "-b", "main")
        self.event = folder / "event.json"
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ},
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_API_URL": api,
            "GITHUB_REPOSITORY": "somebody/something",
            "GITHUB_EVENT_PATH": str(self.event),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "RUNNER_TEMP": str(folder),
        }
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.environment['PATH']}"

    def git(self, *words):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *who, *words], cwd=self.repository, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, **files):
        for name, text in files.items():
            (self.repository / f"{name}.sh").write_text(text)
        self.git("add", "-A")
        self.git("commit", "-qm", "change")
        return self.git("rev-parse", "HEAD")

    def propose(self, base):
        self.event.write_text(json.dumps({"pull_request": {"number": 7, "base": {"sha": base}}}))

    def run(self, **inputs):
        """The exit code of the action, and the outputs of its steps."""
        given = {name: str(entry.get("default", "")) for name, entry in ACTION["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()} | {"token": "secret"}
        steps, code = {}, 0
        for step in ACTION["runs"]["steps"]:
            if "uses" in step or step["name"] == "Install commtax":
                continue
            if "if" in step and not self.holds(step["if"], given, steps):
                continue
            output = put(self.folder, f"{step['name']}.output", "")
            own = {name: self.filled(text, given, steps) for name, text in step.get("env", {}).items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.repository,
                env=self.environment | own | {"GITHUB_OUTPUT": str(output)},
                capture_output=True,
                text=True,
                check=False,
            )
            steps[step.get("id", step["name"])] = dict(line.split("=", 1) for line in output.read_text().splitlines())
            steps["said"] = steps.get("said", "") + done.stdout + done.stderr
            code = done.returncode
            if code:
                break
        return code, steps

    def filled(self, text, given, steps):
        def value(match):
            scope, *rest = match[1].split(".")
            return given[rest[0]] if scope == "inputs" else steps[rest[0]][rest[2]]

        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", value, text)

    def holds(self, condition, given, steps):
        left, sign, right = condition.split()
        return (self.filled(f"${{{{ {left} }}}}", given, steps) == right.strip("'")) == (sign == "==")


@pytest.fixture
def api():
    with Api() as server:
        yield server


@pytest.fixture
def runner(tmp_path, api):
    return Runner(tmp_path, api.url)


def test_a_pull_request_gets_one_comment_that_is_kept_up_to_date(runner, api):
    """… even behind a page of others', and not over somebody else's who wrote the same mark."""
    for number in range(101):
        api.add("<!-- commtax: commtax -->\nmine" if number == 3 else f"talk {number}")
    base = runner.commit(launch=LAUNCH.format(4), other="echo unread\n")
    runner.commit(launch=LAUNCH.format(2))
    runner.propose(base)
    code, steps = runner.run(launch="launch.sh", arguments=ARGUMENTS)
    assert code == 0, steps["said"]
    assert (steps["predict"]["verdict"], steps["predict"]["changed"]) == ("ok", "true")
    comment = api.comments[-1]
    assert "4 GPUs = TP 4 → 2 GPUs = TP 2: slower, cheaper." in comment["body"]
    for row in ("TTFT, mean", "TPOT, mean", "tokens/s per GPU", "cost per million output tokens", "fits"):
        assert f"| {row} |" in comment["body"]
    assert comment["body"].partition("\n")[2].rstrip() == (runner.folder / "summary.md").read_text().rstrip()
    assert {token for _, _, token in api.calls} == {"Bearer secret"}

    runner.commit(launch=LAUNCH.format(4))
    code, steps = runner.run(launch="launch.sh", arguments=ARGUMENTS)
    assert code == 0, steps["said"]
    assert (steps["predict"]["changed"], len(api.comments)) == ("false", 102)
    assert "`launch.sh` is not changed." in comment["body"]
    assert api.comments[3]["body"].endswith("mine")


def test_what_is_forbidden_fails_after_it_was_commented(runner, api):
    base = runner.commit(launch=LAUNCH.format(4))
    runner.commit(launch=LAUNCH.format(2), new="vllm serve Qwen/Qwen3-8B\n")
    runner.propose(base)
    code, steps = runner.run(launch="launch.sh\nnew.sh", arguments=ARGUMENTS, fail_on="slower=10%,does-not-fit")
    assert (code, steps["predict"]["verdict"]) == (1, "not-allowed")
    assert "::error::commtax: not-allowed" in steps["said"]
    (comment,) = api.comments
    assert not lacking(comment["body"], "Not allowed: ", "New: 1 GPU = TP 1.")


@pytest.mark.parametrize("more", [{}, {"run": "result.json"}])
def test_a_launch_that_does_not_exist_is_an_error(runner, api, more):
    base = runner.commit(launch=LAUNCH.format(4))
    runner.commit(launch=LAUNCH.format(2))
    runner.propose(base)
    code, steps = runner.run(launch="gone.sh\nlaunch.sh", arguments=ARGUMENTS, **more)
    assert (code, steps["predict"]["verdict"]) == (1, "error")
    assert "no such file" in steps["said"]


def test_a_launch_that_is_deleted_is_no_error(runner, api):
    base = runner.commit(launch=LAUNCH.format(4))
    (runner.repository / "launch.sh").unlink()
    runner.commit()
    runner.propose(base)
    code, steps = runner.run(launch="launch.sh", arguments=ARGUMENTS)
    assert (code, steps["predict"]["verdict"]) == (0, "ok")


def test_a_launch_that_cannot_be_read_is_an_error_that_says_why(runner, api):
    """… in the summary too, for a fork's token may not comment, and that is no failure of its own."""
    api.refuses = True
    base = runner.commit(launch=LAUNCH.format(4))
    runner.commit(launch=LAUNCH.format(3))
    runner.propose(base)
    code, steps = runner.run(launch="launch.sh", arguments=ARGUMENTS, fail_on="never")
    assert (code, steps["predict"]["verdict"]) == (1, "error")
    assert "are not divisible by tp=3; nearest legal tp: 2 or 4" in (runner.folder / "summary.md").read_text()
    assert not lacking(steps["said"], "::warning::commtax: the token may not comment (403)", "::error::commtax: error")


def test_a_run_is_held_against_its_prediction(runner, api):
    runs = ROOT / "examples" / "three-runs"
    runner.propose(runner.commit(launch=(runs / "launch.sh").read_text()))
    code, steps = runner.run(launch="launch.sh", run=str(runs / "serve-32.json"), arguments="--cluster 4xh100-sxm", name="run")
    assert code == 0, steps["said"]
    assert api.comments[0]["body"].startswith("<!-- commtax: run -->\n### ✅ qwen3-32b on 4xh100-sxm, TP 4: the run agrees")


def test_nothing_is_said_where_nothing_changed(runner, api):
    """A shallow clone fetches the base itself; text of a pull request never reaches a shell."""
    base = runner.commit(launch=LAUNCH.format(4))
    runner.commit(unrelated="true\n")
    origin, clone = runner.repository, runner.folder / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", origin.as_uri(), str(clone)], check=True)
    runner.git("config", "uploadpack.allowAnySHA1InWant", "true")
    runner.repository = clone
    runner.propose(base)
    code, steps = runner.run(launch="launch.sh", arguments=ARGUMENTS)
    assert code == 0, steps["said"]
    assert not api.comments
    code, steps = runner.run(launch="launch.sh\n$(touch hacked).sh", arguments=ARGUMENTS)
    assert code == 1
    assert not (clone / "hacked").exists()


def test_every_input_is_used_and_documented():
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    for name in ACTION["inputs"]:
        assert f"inputs.{name} " in text, name
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "what somebody proposes must not become part of a script"
    for script in re.findall(r"\$GITHUB_ACTION_PATH/([\w/.]+)", text):
        assert (ROOT / script).is_file()
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    first, second = (yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S))
    steps = [*first["jobs"]["predict"]["steps"], *second]
    used = [step for step in steps if step.get("uses", "").startswith("OWNER/commtax@")]
    assert len(used) == 2
    for step in used:
        assert set(step["with"]) <= set(ACTION["inputs"])
        assert {name for name, entry in ACTION["inputs"].items() if entry.get("required")} <= set(step["with"])
    assert first["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert re.findall(r"^\| `([\w-]+)` \|", page.partition("| input |")[2], re.M) == list(ACTION["inputs"])
