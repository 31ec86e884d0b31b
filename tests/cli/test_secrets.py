"""Secrets planted in commands, scripts, YAML, logs and env files: no text, JSON, error or answer of the page repeats one."""

import string
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_run import run_here, told_here
from commtax.redaction import redact
from paths import ROOT
from web_client import ask

LOG = (ROOT / "tests/fixtures/vllm-cpu-tp1.log").read_text()
SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
FORMS = {
    "hf_": 34, "sk-": 40, "sk-proj-": 60, "AKIA": 16, "ASIA": 16, "AIza": 35, "ya29.": 60, "ghp_": 36, "gho_": 36, "ghs_": 36,
    "github_pat_": 60, "glpat-": 20, "nvapi-": 64, "xoxb-": 40,
}  # fmt: skip
NAMES = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "NGC_API_KEY", "MY_PASSWORD", "GITHUB_TOKEN", "SOME_SECRET")
FLAGS = ("--api-key", "--hf-token", "--token", "--password", "--admin-api-key")


def secret(rng):
    """What no answer may hold, and how it stands in a command: a known form, or a name beside any word."""
    word = "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(12, 40)))
    kind = rng.randrange(5)
    if kind == 0:
        prefix = rng.choice(list(FORMS))
        letters = string.ascii_uppercase + string.digits if prefix in ("AKIA", "ASIA") else string.ascii_letters + string.digits
        word = prefix + "".join(rng.choices(letters, k=FORMS[prefix]))
        return word, rng.choice((f"--unknown {word}", f"--hf-token={word}", f"--served-model-name {word}"))
    if kind == 1:
        flag = rng.choice(FLAGS)
        return word, rng.choice((f"{flag} {word}", f"{flag}={word}", f"{flag} '{word}'", f'{flag} "{word}"'))
    if kind == 2:
        return word, f"--download-dir s3://me:{word}@host/x"
    if kind == 3:
        return word, f'--header "Authorization: Bearer {word}"'
    return word, f"--env {rng.choice(NAMES)}={word}"


def texts(rng, word, words):
    name = rng.choice(NAMES)
    yaml = "apiVersion: apps/v1\nkind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n      - name: s\n"
    yaml += "        image: vllm/vllm-openai:v0.11.0\n        command: [sh, -c]\n"
    yaml += (
        f"        args:\n        - |\n          {SERVE} {words}\n        env:\n        - name: {name}\n          value: {word}\n"
    )
    return {
        "a.sh": f"#!/bin/bash\n{name}={word} {SERVE} {words}\n",
        "b.sh": f"export {name}='{word}'\n{SERVE} {words}\n",
        "c.sh": f"{name}={word} python train.py {words}\n",
        "d.yaml": yaml,
        "e.env": f"{name}={word}\nMODEL=x\n",
        "f.log": LOG + f"INFO args: {words} {name.lower()}='{word}'\nValueError: cannot use {name}={word}: {words}\n",
        "g.txt": f"{words}\n{name}: {word}\n",
    }


def answers(*words):
    """All that a command prints, as text and as JSON; one that is refused is asked for either."""
    done = told_here(*words)
    return done.stdout + done.stderr + (run_here(*words, "--json").stderr if done.returncode == 2 else done.document)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 9999))
def test_no_secret_is_repeated(tmp_path, seed):
    rng = Random(seed)
    word, words = secret(rng)
    fit = ("fit", "-c", "1xh100", "--from")
    said = [answers(*fit, f"{SERVE} {words}"), answers(*fit, f"{SERVE} {words}", "--details")]
    for name, text in texts(rng, word, words).items():
        file = tmp_path / name
        file.write_text(text)
        said += [answers("audit", file), answers(*fit, file)]
        sent = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(text.encode())).encode())]
        answer = ask("/api/audit", method="POST", headers=sent, raw=f"file={name}".encode(), body=text.encode())[2].decode()
        assert word not in answer, (name, answer)
    for text in said:
        assert word not in "".join(text.split()), text


@pytest.mark.parametrize(
    "text",
    [
        "--api-key $KEY --max-num-batched-tokens 8192 --token 12",
        "hf_quant_config.json; hf_transfer; kv bytes per token: 131,072; time_per_output_token: 20 ms",
        '{"api_key": null, "key": "h100-sxm", "tokens": 12}',
        "https://huggingface.co/meta-llama/Llama-3.1-8B",
        "sk-learn and risk-adjusted; --eos-token-id 5; the bearer of news",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text
