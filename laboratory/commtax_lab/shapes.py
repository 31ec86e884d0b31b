"""The keys of the documents that live runs and studies leave, and of the rows inside them."""

# ruff: noqa: UP013 (these are tables of keys, several a line)
# fmt: off

from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from commtax_lab.study.rank_steps import Shard

IssuedCount = TypedDict("IssuedCount", {"phase": str, "what": str, "op": str, "nbytes": int, "count": int})
CollectiveCounts = TypedDict("CollectiveCounts", {"measured": list[IssuedCount], "predicted": list[IssuedCount], "equal": bool})
WeightSums = TypedDict("WeightSums", {
    "sum_bytes": int, "copies": dict[str, int], "sum_once_bytes": int, "tp1_bytes": int, "equal": bool})
RankMemory = TypedDict("RankMemory", {
    "rank": int, "host": str, "cores": list[int], "weights_bytes": int, "replicated": dict[str, int], "kv_bytes": int,
    "kv_blocks": int, "block_size": int, "predicted_weights_bytes": int, "predicted_kv_bytes": int})
WireTime = TypedDict("WireTime", {"what": str, "wire_us": float, "mean_us": float})
WireTimes = TypedDict("WireTimes", {
    "collectives": list[WireTime], "wire_ms_per_token": float, "skew_ms_per_token": float, "waited_ms_per_token": list[float],
    "slowest_rank": int}, total=False)
StepTimes = TypedDict("StepTimes", {
    "ms_per_token": float, "own_ms": float, "waiting_ms": float, "spread_ms": list[float], "prefill_ms": float,
    "collectives": NotRequired[list[WireTime]], "wire_ms_per_token": NotRequired[float], "skew_ms_per_token": NotRequired[float],
    "waited_ms_per_token": NotRequired[list[float]], "slowest_rank": NotRequired[int]})
Replicas = TypedDict("Replicas", {"replicas": int, "ms_per_token": float, "tokens_per_s": float})
OneRankRuns = TypedDict("OneRankRuns", {"tp1": StepTimes, "replicas": Replicas}, total=False)
LogitsCheck = TypedDict("LogitsCheck", {
    "max_logit_diff": float | None, "logit_tolerance": NotRequired[float], "logits_equal": bool | None,
    "same_tokens": NotRequired[int], "steps": NotRequired[int]})
WeightRead = TypedDict("WeightRead", {
    "bytes": int, "memory_Bps": float | None, "bound_ms": float | None, "attained": float | None})
BillRow = TypedDict("BillRow", {"item": str, "kind": str, "predicted_s": float | None, "measured_s": float | None})
PredictedStep = TypedDict("PredictedStep", {"source": str, "tp_ms": float, "tp1_ms": NotRequired[float]})
LiveBill = TypedDict("LiveBill", {
    "weight_read": WeightRead, "bill": list[BillRow], "predicted": PredictedStep | None, "notes": list[str]})
TpDocument = TypedDict("TpDocument", {
    "schema": str, "model": str, "weights_source": str, "dtype": str, "device": str, "torch": str, "load": list[float],
    "impl": str, "emulated_link": str, "tp_size": int, "batch": int, "input_len": int, "output_len": int, "repeats": int,
    "ranks": list[RankMemory], "weights": WeightSums, "collectives": CollectiveCounts, "max_logit_diff": float | None,
    "logit_tolerance": NotRequired[float], "logits_equal": bool | None, "same_tokens": NotRequired[int],
    "steps": NotRequired[int], "tp": StepTimes, "tp1": NotRequired[StepTimes], "replicas": NotRequired[Replicas],
    "weight_read": WeightRead, "bill": list[BillRow], "predicted": PredictedStep | None, "notes": list[str]})
CollectiveTime = TypedDict("CollectiveTime", {
    "impl": str, "ranks": int, "op": str, "type": str, "size_bytes": int, "count": int, "time_us": float, "algbw_GBps": float,
    "busbw_GBps": float, "min_us": float, "max_us": float, "wrong": int})
CollectiveFit = TypedDict("CollectiveFit", {
    "impl": str, "ranks": int, "op": str, "alpha_us": float, "bandwidth_GBps": float | None, "median_residual": float,
    "max_residual": float})
CollectivesDocument = TypedDict("CollectivesDocument", {
    "schema": str, "op": str, "emulated_link": str, "rows": list[CollectiveTime], "fits": list[CollectiveFit], "notes": list[str]})
ChipRates = TypedDict("ChipRates", {
    "key": str, "name": str, "memory_Bps": float, "flops_per_s": dict[str, float], "memory_bytes": float})
WirePath = TypedDict("WirePath", {
    "op": str, "algorithm": str, "launch_s": float, "hop_s": NotRequired[float], "bandwidth_Bps": float, "name": str,
    "source": str})
LibraryPaths = TypedDict("LibraryPaths", {"name": str, "paths": list[WirePath]})
MachineProfile = TypedDict("MachineProfile", {
    "commtax_profile": int, "name": str, "engine": str, "dtype": str, "chip": ChipRates,
    "kernels": dict[str, dict[str, dict[str, float]]], "libraries": list[LibraryPaths], "host_s": float, "sources": dict[str, str]})
Applied = TypedDict("Applied", {"ok": bool | None, "found": str})
Check = TypedDict("Check", {"check": str, "ok": bool | None, "found": str})
LinkUse = TypedDict("LinkUse", {
    "name": str, "peak_Bps": float, "inside_Bps": float, "step_Bps": float, "inside_share": float, "step_share": float})
LinkShares = TypedDict("LinkShares", {"inside_Bps": float, "step_Bps": float, "inside_share": float, "step_share": float})
AllReduces = TypedDict("AllReduces", {
    "how": str, "allreduces": float, "allreduce_bytes": float | None, "allreduce_s": float | None, "comm_fraction": float,
    "wire_fraction": float | None, "step_s": float, "equal": NotRequired[bool], "predicted_allreduces": NotRequired[float],
    "predicted_bytes": NotRequired[float | None], "predicted_s": NotRequired[float | None],
    "predicted_comm_fraction": NotRequired[float | None], "link": NotRequired[LinkUse | None]})
Moved = TypedDict("Moved", {"seconds": float, "bytes": dict[str, float]})
RunRecord = TypedDict("RunRecord", {
    "run": dict[str, object], "error": str, "latency_s": list[float], "prefill_s": list[float], "decode_s": list[float],
    "applied": Applied, "profile": AllReduces, "stats_s": dict[str, dict[str, float]], "requests": int | None, "failed": int,
    "duration_s": float | None, "requests_per_s": float | None, "output_tokens_per_s": float | None,
    "total_tokens_per_s": float | None, "input_len": float | None, "output_len": float | None, "link": Moved}, total=False)
RequestTime = TypedDict("RequestTime", {
    "input_len": int, "output_len": int, "ms": float, "spread": float, "predicted_ms": float | None})
PromptTime = TypedDict("PromptTime", {"input_len": int, "ms": float, "predicted_ms": float | None})
BatchTime = TypedDict("BatchTime", {
    "batch": int, "latency_ms": float, "spread": float, "tokens_per_s": float, "predicted_latency_ms": float | None,
    "predicted_tokens_per_s": float | None})
ServedPrediction = TypedDict("ServedPrediction", {
    "predicted_tpot_ms": float | None, "predicted_ttft_ms": float | None, "predicted_how": str}, total=False)
ServedFigures = TypedDict("ServedFigures", {
    "asked_per_s": float, "concurrency": float, "ttft_p50_ms": float | None, "ttft_p99_ms": float | None,
    "itl_p50_ms": float | None, "tpot_p50_ms": float | None, "requests": int | None, "failed": int,
    "requests_per_s": float | None, "output_tokens_per_s": float | None, "input_len": float | None, "output_len": float | None,
    "predicted_tpot_ms": NotRequired[float | None], "predicted_ttft_ms": NotRequired[float | None],
    "predicted_how": NotRequired[str]})
OfflineRates = TypedDict("OfflineRates", {"requests_per_s": float | None, "total_tokens_per_s": float | None})
Degree = TypedDict("Degree", {
    "tp": int, "latency": list[RequestTime], "prefill": list[PromptTime], "decode_ms": float | None,
    "decode_predicted_ms": float | None, "decode_len": NotRequired[int], "batches": NotRequired[list[BatchTime]],
    "profile": NotRequired[AllReduces], "serve": NotRequired[ServedFigures], "offline": NotRequired[OfflineRates],
    "applied": NotRequired[Applied]})
Gain = TypedDict("Gain", {"batch": int, "ratio": float, "noise": float, "predicted": float | None})
Crossover = TypedDict("Crossover", {"tp": int, "batch": int | None, "predicted_batch": int | None, "ratios": list[Gain]})
CounterRate = TypedDict("CounterRate", {"counter": str, "run": str, "bytes": float, "bytes_per_s": float})
StudyFacts = TypedDict("StudyFacts", {
    "recipe": str, "quick": bool, "engine": str, "version": str, "model": str, "dtype": str, "device": str, "box": str,
    "cluster": str, "profile": str, "serving_lengths": str, "checks": list[Check], "link_counters": list[CounterRate],
    "missing": list[str]})
StudyDocument = TypedDict("StudyDocument", {
    "schema": str, "recipe": str, "quick": bool, "engine": str, "version": str, "model": str, "dtype": str, "device": str,
    "box": str, "cluster": str, "profile": str, "serving_lengths": str, "checks": list[Check],
    "link_counters": NotRequired[list[CounterRate]], "missing": list[str], "predicted_from": list[str],
    "no_prediction": NotRequired[str], "degrees": list[Degree], "crossover": list[Crossover], "failed": list[dict[str, str]],
    "flags": list[dict[str, str]], "answers": list[dict[str, str]]})
ServedRun = TypedDict("ServedRun", {
    "request_rate": float, "sweeps_apart": float, "steps_over_timed": float, "measured": dict[str, float | str],
    "predicted": dict[str, float | str], "errors": dict[str, float], "errors_at_its_pace": dict[str, float]})
ServingDocument = TypedDict("ServingDocument", {
    "schema": str, "model": str, "dtype": str, "impl": str, "seed": int, "tp_size": int, "weights_source": str, "device": str,
    "max_num_seqs": int, "most_requests_per_s": float, "load": list[float], "sweeps_apart": float, "steps": list[dict[str, float]],
    "runs": list[ServedRun], "notes": list[str]})
GemmGrid = TypedDict("GemmGrid", {"least_side": int, "modes": list[tuple[str, str]]})
SizeGrid = TypedDict("SizeGrid", {"batches": list[int], "lengths": list[int], "backends": NotRequired[list[str]]})
StepGrid = TypedDict("StepGrid", {"decode": SizeGrid, "prefill": list[tuple[int, int]]})
ShardChanges = TypedDict("ShardChanges", {"num_layers": int, "vocab": int}, total=False)
SweepGrid = TypedDict("SweepGrid", {
    "models": list[str], "degrees": list[int], "changed": ShardChanges, "rows": list[int], "gemm": GemmGrid, "decode": SizeGrid,
    "prefill": SizeGrid, "small": dict[str, list[str]], "copy": dict[str, list[int]], "step": StepGrid})
SweepPoint = TypedDict("SweepPoint", {
    "m": int, "n": int, "k": int, "dtype": str, "mode": str, "batch": int, "length": int, "heads": int, "kv_heads": int,
    "head_dim": int, "backend": str, "splits": int, "op": str, "rows": int, "width": int, "nbytes": int, "phase": str,
    "shard": "Shard", "model": str, "tp": int, "num_layers": int}, total=False)
StatedBound = TypedDict("StatedBound", {
    "name": str, "figure": str, "limit": float | list[float], "by_tp": NotRequired[bool],
    "rows": dict[str, bool | float | str | list[bool | float | str]]})
WeightsChoice = TypedDict("WeightsChoice", {"model": str, "random": bool})
JobOptions = TypedDict("JobOptions", {
    "tp": int, "layers": int, "batch": int, "input_len": int, "output_len": int, "dtype": str, "device": str, "impl": str,
    "emulate_link": str, "slow_rank": str, "break_rank": int, "repeats": int, "reference": bool, "graphs": bool,
    "cluster": str, "profile": str, "trace": str}, total=False)
ServerOptions = TypedDict("ServerOptions", {
    "tp": int, "layers": int, "seed": int, "dtype": str, "device": str, "impl": str}, total=False)
StudyOptions = TypedDict("StudyOptions", {
    "recipe": str, "engine": str, "layers": int, "quick": bool, "dtype": str, "device": str, "impl": str, "cluster": str,
    "profile": str, "dataset": str, "vllm": str, "vllm_args": str, "name": str}, total=False)
