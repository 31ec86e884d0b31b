"""What the bill must say: payloads, the ring, and three links with three verdicts."""

import pytest

MODEL_8B = {"hidden": 4096, "num_layers": 32}
NVLINK = {"bandwidth_Bps": 300e9, "latency_s": 3e-6}
PCIE = {"bandwidth_Bps": 32e9, "latency_s": 5e-6}
ETHERNET = {"bandwidth_Bps": 1.25e9, "latency_s": 50e-6}
DECODE_STEP_S = 8e-3  # 16 GB of weights at 2 TB/s


def test_payload_is_one_activation_row_per_token(lab):
    assert lab.allreduce_payload_bytes(1, 4096) == 8192, "one token of an 8B model: 4096 values of 2 bytes"
    assert lab.allreduce_payload_bytes(2048, 4096) == 16 * 2**20
    assert lab.allreduce_payload_bytes(1, 4096, dtype_bytes=4) == 16384
    assert lab.allreduce_payload_bytes(0, 4096) == 0


def test_ring_traffic_formula(lab):
    assert lab.ring_allreduce_traffic_per_rank(8192, 1) == 0, "one rank has nobody to send to"
    assert lab.ring_allreduce_traffic_per_rank(8192, 2) == 8192, "two ranks: exactly one payload each"
    assert lab.ring_allreduce_traffic_per_rank(8192, 4) == 1.5 * 8192
    assert lab.ring_allreduce_traffic_per_rank(1.0, 1024) == pytest.approx(2, rel=1e-2), "many ranks: towards two payloads"


def test_decode_step_comm_on_nvlink_is_noise(lab):
    comm = lab.tp_comm_time_per_step(1, **MODEL_8B, num_ranks=2, **NVLINK)
    assert comm == pytest.approx(64 * (8192 / 300e9 + 2 * 3e-6)), "64 all-reduces: bytes, and two hops each"
    assert comm < 1e-3
    assert lab.comm_fraction(comm, DECODE_STEP_S) < 0.10


def test_decode_step_comm_on_ethernet_is_fatal(lab):
    comm = lab.tp_comm_time_per_step(1, **MODEL_8B, num_ranks=2, **ETHERNET)
    assert comm >= 64 * 2 * 50e-6, "latency alone is 6.4 ms"
    assert lab.comm_fraction(comm, DECODE_STEP_S) > 0.40
    assert lab.comm_fraction(3.0, 1.0) == 0.75


def test_latency_dominates_small_payloads(lab):
    for link in (NVLINK, PCIE, ETHERNET):
        now = lab.allreduce_time_s(8192, 2, **link)
        quicker = lab.allreduce_time_s(8192, 2, link["bandwidth_Bps"], link["latency_s"] / 2)
        wider = lab.allreduce_time_s(8192, 2, 2 * link["bandwidth_Bps"], link["latency_s"])
        assert quicker < wider < now, "for decode, half the latency beats twice the bandwidth"


def test_prefill_payloads_shift_the_balance_to_bandwidth(lab):
    payload = lab.allreduce_payload_bytes(2048, 4096)
    for link in (NVLINK, PCIE, ETHERNET):
        now = lab.allreduce_time_s(payload, 2, **link)
        quicker = lab.allreduce_time_s(payload, 2, link["bandwidth_Bps"], link["latency_s"] / 2)
        wider = lab.allreduce_time_s(payload, 2, 2 * link["bandwidth_Bps"], link["latency_s"])
        assert wider < quicker < now, "for prefill, the reverse"


def test_more_ranks_more_overhead(lab):
    for link in (NVLINK, PCIE, ETHERNET):
        times = [lab.tp_comm_time_per_step(1, **MODEL_8B, num_ranks=n, **link) for n in (1, 2, 4, 8)]
        assert times[0] == 0
        assert times == sorted(times)
        assert times[3] > 6 * times[1], "eight ranks take 14 hops where two take 2"
    assert lab.tp_comm_time_per_step(1, 4096, 32, 2, **NVLINK, allreduces_per_layer=4) == pytest.approx(
        2 * lab.tp_comm_time_per_step(1, 4096, 32, 2, **NVLINK)
    )
