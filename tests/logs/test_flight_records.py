"""What flight recorders kept when a job stood still: real dumps, made ones, and pickles that run nothing."""

import base64
import json
import pickle
from contextlib import suppress
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax.runs.audit import audit, formats
from commtax.runs.logs import flight
from commtax.runs.logs.flight import audit_flight
from commtax.statement import Refusal
from paths import FIXTURES

LOGS = json.loads((FIXTURES / "audit" / "logs.json").read_text())
REAL = [row for row in LOGS if row["kind"] == "flight"]


@pytest.mark.parametrize("row", REAL, ids=lambda r: r["name"])
def test_real_recorders(row, tmp_path):
    """Of gloo: a healthy job, rank 2 never came, rank 3 called something else. Of NCCL: one rank's."""
    wanted = row["expected"]
    for form in ("pickles", "json"):
        paths = []
        for rank, text in enumerate(row[form]):
            paths.append(tmp_path / f"nccl_trace_rank_{rank}{'.json' if form == 'json' else ''}")
            paths[-1].write_bytes(base64.b64decode(text) if form == "pickles" else text.encode())
        if not paths:
            continue
        audited = audit(paths)
        (section,) = audited.sections
        measured = {f.item: f.measured for f in section.findings}
        ranks = len(row["pickles"])
        assert measured == {
            "ranks": ranks,
            "collectives recorded": wanted["entries"],
            "collectives that did not end": wanted["open"],
        }
        assert (audited.culprit.rank if audited.culprit else None) == wanted["culprit"]
        assert section.facts.get("version", "") == wanted.get("version", "")
        assert [[r.op, r.group, r.count, r.nbytes] for r in section.collectives] == wanted["rows"]


def made_dump(rank, count, *, group="0", done=True, op="all_reduce", size=8, ranks=(0, 1, 2, 3), state="scheduled"):
    """Entries as PyTorch documents them (flight recorder 2.10), NCCL's own states included."""
    entries = [
        {
            "record_id": seq,
            "process_group": (group, "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "profiling_name": f"nccl:{op}",
            "time_created_ns": seq * 1000 + rank,
            "input_sizes": [[size]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [[size]],
            "output_dtypes": ["BFloat16"],
            "state": "completed" if done or seq < count - 1 else state,
            "retired": done or seq < count - 1,
            "is_p2p": False,
        }
        for seq in range(count)
    ]
    return {"version": "2.10", "pg_config": {group: {"name": group, "desc": "x", "ranks": str(list(ranks))}}, "entries": entries}


@given(st.integers(0, 3), st.integers(2, 9), st.integers(2, 9))
def test_who_did_not_come_is_named(late, count, other):
    """The late rank stands in the default group; in another group, whose ranks wait for one that waits itself, nobody else is."""
    dumps = []
    for rank in range(4):
        mine = made_dump(rank, count - (rank == late), done=rank == late)
        if rank != late:  # they had gone through another group before
            mine["entries"] += made_dump(rank, other, group="1", ranks=(0, 1, 2, 3))["entries"]
        dumps.append(flight.parse(mine, rank))
    found = audit_flight(dumps, None, ["x"] * 4)
    assert found.culprit.rank == late
    assert found.causes[0].code == "hang"
    assert audit_flight([flight.parse(made_dump(r, count), r) for r in range(4)], None, ["x"] * 4).culprit is None


def blocked(program, late, stops):
    """Dumps of four ranks that go through a program of groups one collective after the other, when one stops before its n-th."""
    at, issued = [0] * 4, {}
    while True:
        moved = False
        for rank in range(4):
            mine = [n for n, group in enumerate(program) if rank in GRID[group]]
            if at[rank] >= len(mine) or (rank == late and at[rank] >= stops):
                continue
            step = mine[at[rank]]
            moved |= rank not in issued.setdefault(step, {})
            issued[step][rank] = True
            if set(issued[step]) == set(GRID[program[step]]):  # all are there: they go on
                for member in GRID[program[step]]:
                    at[member] += 1
                moved = True
        if not moved:
            break
    dumps = []
    for rank in range(4):
        entries = []
        for step in sorted(n for n, ranks in issued.items() if rank in ranks):
            group = program[step]
            seq = program[:step].count(group)
            done = set(issued[step]) == set(GRID[group])
            row = made_dump(rank, 1, group=group, done=done, state="started")["entries"][0]
            entries.append(row | {"collective_seq_id": seq, "time_created_ns": step})
        config = {group: {"desc": "", "ranks": str(list(ranks))} for group, ranks in GRID.items() if rank in ranks}
        dumps.append(flight.parse({"version": "2.10", "pg_config": config, "entries": entries}, rank))
    return dumps


GRID = {"0": (0, 1, 2, 3), "tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}


@given(st.lists(st.sampled_from(sorted(GRID)), min_size=1, max_size=30), st.integers(0, 3), st.integers(0, 30))
def test_whoever_others_wait_for_through_other_groups_is_named(program, late, stops):
    """One rank stops; those that wait for it make others wait in other groups, and none of these is to blame."""
    found = audit_flight(blocked(program, late, stops), None, ["x"] * 4)
    missed = sum(late in GRID[group] for group in program) > stops
    waited = missed and any(not e.done for d in blocked(program, late, stops) for e in d.entries)
    assert (found.culprit.rank if found.culprit else None) == (late if waited else None)


def test_a_collective_that_some_have_not_started():
    states = ["started", "started", "scheduled", "started"]
    dumps = [flight.parse(made_dump(r, 3, done=False, state=s), r) for r, s in enumerate(states)]
    found = audit_flight(dumps, None, ["x"] * 4)
    assert (found.culprit.rank, found.causes[0].code) == (2, "stuck")
    all_in = [flight.parse(made_dump(r, 3, done=False, state="started"), r) for r in range(4)]
    assert audit_flight(all_in, None, ["x"] * 4).culprit is None


def test_sizes_that_differ():
    dumps = [flight.parse(made_dump(r, 3, done=False, size=8 if r != 1 else 9), r) for r in range(4)]
    found = audit_flight(dumps, None, ["x"] * 4)
    assert (found.culprit.rank, found.causes[0].code) == (1, "mismatch")
    two = [flight.parse(made_dump(r, 3, size=8 + r, ranks=(0, 1)), r) for r in range(2)]
    assert audit_flight(two, None, ["x"] * 2).culprit is None  # one against one: nobody knows who is right


def test_groups_side_by_side_may_share_a_name():
    pairs = [flight.parse(made_dump(r, 3, group="tp", size=8 + r // 2, ranks=(0, 1) if r < 2 else (2, 3)), r) for r in range(4)]
    found = audit_flight(pairs, None, ["x"] * 4)
    assert found.culprit is None
    assert len(found.collectives) == 2


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain, st.integers(0, 5))
def test_plain_pickles_are_read_as_python_reads_them(value, protocol):
    assert flight.loads(pickle.dumps(value, protocol), "x") == (value, "")


@given(st.binary(max_size=200), st.integers(0, 400))
def test_damaged_pickles_end_in_data_or_in_a_refusal(noise, at):
    whole = pickle.dumps(made_dump(0, 2), 2)
    for raw in (b"\x80\x02" + noise, whole[:at], whole[:at] + noise + whole[at + len(noise) :]):
        with suppress(Refusal):
            flight.parse(*flight.loads(raw, "x")[:1], 0)


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_nothing_that_a_pickle_names_is_run(tmp_path, capsys):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": [Evil()], "profiling_name": 1}, 2))
    with pytest.raises(Refusal, match="not run"):
        audit([path])
    assert capsys.readouterr().out == ""
    path.write_bytes(b"\x80\x02}q\xff" + b"r\xff\xff\xff\xff" + b"profiling_name")  # a memo of four thousand million places
    assert not audit([path]).sections[0].collectives


def test_a_dump_that_breaks_off_gives_what_is_whole(tmp_path):
    row = next(r for r in REAL if r["name"] == "flight recorder, hang")
    for form in ("pickles", "json"):
        raw = base64.b64decode(row[form][0]) if form == "pickles" else row[form][0].encode()
        path = tmp_path / f"{form}_rank_0"
        path.write_bytes(raw[: len(raw) * 2 // 3])
        (dump,) = formats.read(path)
        assert 0 < len(dump.entries) < 9
        assert [n.code for n in dump.notes] == ["partial"]
        assert dump.rank == 0


def test_ranks_in_names_of_files():
    names = {"nccl_trace_rank_12": 12, "nccl_trace_rank_container-node02_5": 5, "x_3.json": 3, "x_4.pkl.gz": 4, "dump": -1}
    assert {name: flight.rank_of(PurePath(name)) for name in names} == names
