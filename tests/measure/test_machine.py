"""What follows from a machine's facts, for machines that are not this one; how programs of others end."""

import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import pytest

from commtax_lab.measure import machine
from commtax_lab.measure.machine import MachineFacts
from commtax_lab.measure.study.leash import leash_command
from commtax_lab.measure.study.vllm import failure
from each import each
from tables import tables

DATA = tables(__file__)

SKYLAKE = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f avx512bw\nprocessor\t: 1\nflags\t\t: fpu"
SAPPHIRE = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"
NEOVERSE_N1 = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes atomics fphp asimdhp cpuid asimddp ssbs\n"
GRACE = "processor\t: 0\nFeatures\t: fp asimd atomics sve sve2 i8mm bf16 dgh\n"
M1 = "hw.optional.arm.FEAT_FP16: 1\nhw.optional.arm.FEAT_BF16: 0\n"
M2 = "hw.optional.arm.FEAT_FP16: 1\nhw.optional.arm.FEAT_BF16: 1\n"
MACHINES = {
    "x86-64 with bf16": (MachineFacts("Linux", "x86_64", machine.linux_features(SAPPHIRE)), "bf16"),
    "x86-64 without": (MachineFacts("Linux", "x86_64", machine.linux_features(SKYLAKE)), "fp32"),
    "aarch64 with bf16": (MachineFacts("Linux", "aarch64", machine.linux_features(GRACE)), "bf16"),
    "aarch64 without": (MachineFacts("Linux", "aarch64", machine.linux_features(NEOVERSE_N1)), "fp32"),
    "macOS, M2": (MachineFacts("Darwin", "arm64", machine.apple_features(M2)), "bf16"),
    "macOS, M1": (MachineFacts("Darwin", "arm64", machine.apple_features(M1)), "fp32"),
    "macOS, Intel": (MachineFacts("Darwin", "x86_64", machine.apple_features("")), "fp32"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_synchronisation_and_type_follow_from_the_facts(name):
    facts, served = MACHINES[name]
    assert machine.carriers(facts)[-1] == "shm", "semaphores order memory on every architecture"
    assert machine.carriers(facts) == ("gloo", "shm")
    assert not machine.carrier_note(facts)
    assert machine.engine_dtype("cpu") == "fp32"
    assert machine.served_dtype(facts, on_cpu=True) == served
    assert machine.served_dtype(facts, on_cpu=False) == "bf16", "a GPU's type is not the host's"
    assert bool(machine.bf16_note(facts, "bf16")) == (served == "fp32")
    assert not machine.bf16_note(facts, "fp32")
    without = replace(facts, no_semaphores="no POSIX semaphores: not implemented")
    assert machine.carriers(without)[-1] == "gloo"
    assert machine.carriers(without) == ("gloo",)
    assert "not implemented" in machine.carrier_note(without)


def test_this_machine_is_read():
    facts = machine.facts()
    assert facts.system
    assert facts.architecture
    assert machine.semaphore_fault() == facts.no_semaphores
    assert 1 <= machine.cores_per_rank(2) <= len(machine.cores())


# --- programs of others ----------------------------------------------------------------------------------------------------


@each(("code", "log", "says"), DATA["how_an_engine_ended_is_recognised"])
def test_how_an_engine_ended_is_recognised(code, log, says):
    found = failure("vllm serve", code, log, "bf16")
    assert says in found.text
    assert found.died == ("died of" in found.text)
    assert "ancelled" not in found.text


def test_sigill_in_bf16_names_the_type_where_the_cpu_lacks_it(monkeypatch):
    monkeypatch.setattr(machine, "facts", lambda: MACHINES["aarch64 without"][0])
    assert "use --dtype fp32" in failure("vllm serve", -4, "", "bf16").text
    assert "--dtype" not in failure("vllm serve", -4, "", "fp32").text


@pytest.mark.parametrize("code", [0, 3, -signal.SIGILL, -signal.SIGKILL])
def test_a_leash_ends_as_its_program_does(code):
    script = f"import os; os.kill(os.getpid(), {-code})" if code < 0 else f"raise SystemExit({code})"
    done = subprocess.run(leash_command([sys.executable, "-c", script]), check=False, timeout=60, start_new_session=True)
    assert done.returncode == code


STARTER = """
import subprocess, sys, time
from commtax_lab.measure.study.leash import leash_command
program = "import os, time, sys; print(os.getpid(), flush=True); time.sleep(600)"
subprocess.Popen(leash_command([sys.executable, "-c", program]), start_new_session=True)
time.sleep(600)
"""


def test_a_leashed_program_does_not_outlive_a_killed_starter():
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the program lives on")


def test_what_torch_says_of_missing_instructions_is_no_error():
    warnings.warn("mkldnn_linear: bf16 path needs the cpu support avx512bw, avx512vl and avx512dq", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning):
        warnings.warn("anything else", UserWarning, stacklevel=1)
