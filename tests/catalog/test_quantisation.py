"""Quantisation as checkpoints ship it: formats by module, in their own spelling; ids that resolve; the KV cache's own type."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog.hf import from_config
from commtax.catalog.models import origin, variant
from commtax.catalog.quantisation import quantisation_of_config, rules
from commtax.cost.inventory import EXPERTS, format_of, formats, inventory, num_params, total_bytes
from commtax.cost.kernel import KernelStep
from commtax.cost.kernels import table_of
from commtax.cost.traffic import dispatched_bytes
from commtax.rules.legality import codes
from commtax.spec import Plan, Workload
from commtax.statement import Refusal
from each import each
from paths import SHARED
from tables import tables

DATA = tables(__file__)
NVFP4 = 0.5 + 1 / 16
DEEPSEEK = ["lm_head", "*.self_attn.q_a_proj", "*.self_attn.q_b_proj", "*.self_attn.kv_a_proj_with_mqa", "*.self_attn.kv_b_proj"]


def with_quant(key, quantization_config, **fields):
    """A bundled model whose config asks for this storage."""
    return from_config({**catalog.models.config(key), "quantization_config": quantization_config, **fields}, "some")


def size(model, *endings):
    """Elements of all tensors whose names end so."""
    counted = (t.size * (model.layers.count(t.where) if t.where >= 0 else 1) for t in inventory(model) if t.name.endswith(endings))
    return sum(counted)


def test_nvfp4_leaves_out_what_its_patterns_name():
    """DeepSeek-V3.1-NVFP4: latent projections stay in bf16, the output's and all experts go to 4 bits and a scale for each 16."""
    model = with_quant("deepseek-v3", {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": DEEPSEEK})
    narrow = size(model, "o_proj.weight", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
    assert total_bytes(model, Plan()) == pytest.approx(narrow * NVFP4 + 2 * (num_params(model) - narrow), rel=1e-12)
    # Patterns with counts, as long lists are often handed on, store what the plain lists store.
    layers = [f"model.layers.{i}.self_attn.{name}" for i in range(61) for name in ("q_a_proj", "q_b_proj", "o_proj")]
    plain = {"quant_algo": "NVFP4", "exclude_modules": [*layers, "lm_head"]}
    counts = {f"model.layers.*.self_attn.{name}": 61 for name in ("q_a_proj", "q_b_proj", "o_proj")}
    folded = {"quant_algo": "NVFP4", "exclude_modules": {"patterns (count)": {**counts, "lm_head": 1}}}
    sizes = {total_bytes(with_quant("deepseek-v3", config), Plan()) for config in (plain, folded)}
    assert len(sizes) == 1
    few = {"quant_algo": "NVFP4", "exclude_modules": {"patterns (count)": {"model.layers.*.self_attn.o_proj": 20}}}
    model = with_quant("qwen3-32b", few)
    tensor = next(t for t in inventory(model) if t.name.endswith("o_proj.weight"))
    ((_, share),) = formats(model, tensor, model.quant)
    assert share == pytest.approx((64 - 20) / 64)


LAYERED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        **{f"model.layers.{i}.self_attn.{n}_proj": {"quant_algo": "FP8"} for i in range(48) for n in "qkvo"},
        **{
            f"model.layers.{i}.mlp.experts.{e}.{n}_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16}
            for i in range(48)
            for e in (0, 1, 127)
            for n in ("gate", "up", "down")
        },
        "lm_head": {"quant_algo": "MXFP8"},
    },
}
GROUPED = {
    "config_groups": {
        "group_0": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["re:.*self_attn.*"]},
        "group_1": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["re:.*experts.*"]},
        "group_2": {"weights": {"num_bits": 8, "type": "float", "group_size": 32}, "targets": ["lm_head"]},
    }
}


@pytest.mark.parametrize("config", [LAYERED, GROUPED], ids=["listed layers", "groups with targets"])
def test_modules_have_formats_of_their_own(config):
    """fp8 attention, 4-bit experts whose activations stay in 16 bits, a head that is quantised because it is named."""
    model = with_quant("qwen3-30b-a3b", config)
    attention, experts, head = (format_of(model, name, model.quant) for name in ("self_attn.q_proj", EXPERTS, "lm_head"))
    assert (attention.dtype, attention.block, experts.dtype, experts.weight_only) == ("fp8", (0, 0), "nvfp4", True)
    assert (head.dtype, head.block) == ("fp8", (1, 32))
    parts = {".self_attn": 1.0, ".experts": NVFP4, "lm_head": 1 + 1 / 32}
    narrow = {name: sum(size(model, t.name) for t in inventory(model) if name in t.name and len(t.shape) > 1) for name in parts}
    expected = sum(narrow[name] * each for name, each in parts.items()) + 2 * (num_params(model) - sum(narrow.values()))
    assert total_bytes(model, Plan()) == pytest.approx(expected, rel=1e-6)  # and an fp32 scale a tensor
    assert dispatched_bytes(Plan(), experts) == 2  # W4A16: tokens travel as they are


def test_experts_have_formats_of_their_own_and_tiles_decide_tp():
    tiles = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = with_quant("qwen3-8b", tiles)
    assert format_of(model, "lm_head", model.quant) is None
    assert format_of(model, "mlp.down_proj", model.quant).dtype == "fp8"
    # DeepSeek-V4's way to say it, and what its other modules have.
    model = with_quant("deepseek-v3", tiles, expert_dtype="fp4")
    assert format_of(model, EXPERTS, model.quant).dtype == "mxfp4"
    assert format_of(model, "mlp.shared_experts.down_proj", model.quant).dtype == "fp8"
    assert dispatched_bytes(Plan(), format_of(model, EXPERTS, model.quant)) == 1 + 4 / 128  # tokens travel in fp8
    experts = size(model, "experts.gate_proj.weight", "experts.up_proj.weight", "experts.down_proj.weight") - size(
        model, "shared_experts.gate_proj.weight", "shared_experts.up_proj.weight", "shared_experts.down_proj.weight"
    )
    tiled = total_bytes(with_quant("deepseek-v3", tiles), Plan())
    assert total_bytes(model, Plan()) == pytest.approx(tiled + experts * (0.5 + 1 / 32 - 1 - 4 / 128**2), rel=1e-9)
    # Qwen3-235B's experts are 1536 wide: over 8 ranks no whole tiles of 128, which 4-bit kernels would pad.
    narrow = {**tiles, "quantized_layers": {"mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}}}
    cluster, engine = catalog.cluster("8xb200-sxm"), catalog.engine("vllm")
    broken = [int(codes(with_quant("qwen3-235b-a22b", config), cluster, Plan(tp=8), engine)) > 0 for config in (tiles, narrow)]
    assert broken == [True, False]


@pytest.mark.parametrize(("key", "pattern", "held", "free"), DATA["spelled"])
def test_patterns_are_in_the_checkpoints_own_spelling(key, pattern, held, free):
    model = with_quant(key, {"quant_method": "compressed-tensors", "ignore": [pattern], "config_groups": {"g": GROUP}})
    assert format_of(model, held, model.quant) is None
    assert format_of(model, free, model.quant).dtype == "int4"


GROUP = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, "targets": ["Linear"]}


@pytest.mark.parametrize(("config", "table"), DATA["each_format_has_its_kernels"])
def test_each_format_has_its_kernels(config, table):
    """Of Blackwell's constants those of the arithmetic; weights alone are unpacked for bf16 products; nearest ones are assumed."""
    model, engine = with_quant("qwen3-8b", config), catalog.engine("vllm")
    step = KernelStep(model, Plan(), Workload(), 16, engine)
    kernel = step.gemm("any", "projections", "qkv", 1, 16, 4096, 4096, "self_attn.q_proj")
    constants = catalog.kernel_constants(engine, catalog.chip("b200-sxm"))
    assert table_of(kernel, constants).removesuffix("-static") == table
    unpacked = replace(constants, tables={**constants.tables, "gemm.int4": constants.tables["gemm.bf16"]})
    assert (table_of(kernel, unpacked) == "gemm.int4") == (config.get("quant_algo") == "W4A16_NVFP4")


@each(("name", "key", "dtype", "kv"), DATA["ids_of_quantised_checkpoints_resolve"])
def test_ids_of_quantised_checkpoints_resolve(name, key, dtype, kv):
    model = catalog.model(name)
    assert (origin(name), model.quant.dtype, model.quant.kv_dtype, model.aliases) == (key, dtype, kv, (name,))
    assert num_params(model) == num_params(catalog.model(key))
    (note,) = [str(n) for n in model.notes if n.code == "taken-as"]
    assert note.startswith(f"{name} is taken as {key} with ")


def test_ids_of_checkpoints_resolve_and_take_what_an_engine_logs():
    for rule in rules():
        for name in rule.ids:
            model = catalog.model(name)
            assert model.quant, name
            assert "not at hand" not in str(model.notes[-1])
    said = run_here("fit", "--from", "vllm serve nvidia/Llama-3.1-70B-Instruct-FP8 -tp 2", "--cluster", "2xh100-sxm").stdout
    assert "is taken as llama-3.1-70b with modelopt fp8" in said
    assert "KV cache in fp8" in said
    # vLLM 0.27.1 on one GPU with Qwen3.8-27B-NVFP4 (fp8 attention, 4-bit MLP and head): "Model loading took 19.75 GiB".
    # https://github.com/noonghunna/club-3090/issues/1047
    judged = commtax.fit("nvidia/Qwen3.6-27B-NVFP4", "1xh100-sxm", tp=1)
    assert judged.weights_bytes / 2**30 == pytest.approx(19.75, abs=0.01)


CONFIGS = SHARED / "model_configs.json"


@pytest.mark.skipif(not CONFIGS.exists(), reason="needs ../shared/data/model_configs.json, which a clone does not have")
@pytest.mark.parametrize("name", ["Kimi-K2.6", "GLM-5.2", "MiniMax-M3", "NVIDIA-Nemotron-3-Nano-30B-A3B", "DeepSeek-V4-Flash"])
def test_rules_say_what_configs_say(name):
    """Bytes of a checkpoint by its name are those by its own config."""
    name = f"nvidia/{name}-NVFP4"
    ours, theirs = catalog.model(name), from_config(json.loads(CONFIGS.read_text())[name], name)
    assert num_params(ours) == num_params(theirs)
    assert total_bytes(ours, Plan()) == pytest.approx(total_bytes(theirs, Plan()), rel=1e-9)


@pytest.mark.parametrize(("key", "nbytes", "within"), DATA["stored_bytes_of_checkpoints"])
def test_stored_bytes_of_checkpoints(key, nbytes, within):
    assert total_bytes(catalog.model(key), Plan()) == pytest.approx(nbytes, rel=within)


def test_a_checkpoint_brings_its_cache_type_and_its_name_must_be_known():
    """Scales of an fp8 KV cache make it the engine's default; another type is taken where it is asked for."""
    name = "nvidia/Llama-3.1-8B-Instruct-FP8"
    usual, told = commtax.fit(name, "1xh100-sxm"), commtax.fit(name, "1xh100-sxm", kv_dtype="bf16")
    assert (usual.question.plan.kv_dtype, usual.kv_tokens) == ("fp8", pytest.approx(2 * told.kv_tokens, rel=0.01))
    assert any(n.code == "checkpoint-kv" for n in usual.question.notes)
    assert not any(n.code == "checkpoint-kv" for n in told.question.notes)
    assert commtax.fit(name, "1xh100-sxm", engine="gpt-fast").question.plan.kv_dtype == "bf16"
    alike = ("llama-3.1-8b", "nobody/nothing-FP8", "-fp8", "fp8", "/", "nvidia/-NVFP4", "meta-llama/Llama-3.1-8B")
    assert not any(map(variant, alike))


BOTH = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_a_config_rules_and_the_file_beside_it_tells_the_rest(tmp_path):
    """``hf_quant_config.json`` alone is taken whole; beside a quantization_config it tells only the KV cache's type."""
    config = {k: v for k, v in catalog.models.config("qwen3-8b").items() if k != "quantization_config"}
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    alone = catalog.model(str(tmp_path)).quant
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": BOTH}))
    both = catalog.model(str(tmp_path)).quant
    assert (alone.dtype, alone.kv_dtype, both.dtype, both.kv_dtype) == ("nvfp4", "fp8", "fp8", "fp8")


odd = st.sampled_from(["re:.*", "*", "lm_head", "re:((", "NVFP4", "FP8", "MIXED_PRECISION", "modelopt", "fp8"])
words = st.text(max_size=12) | odd
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.just("patterns (count)"), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("quant_method", "quant_algo", "config_groups", "quantized_layers", "ignore", "exclude_modules", "weight_block_size")
OTHERS = ("group_size", "bits", "kv_cache_scheme", "kv_cache_quant_algo", "global_quant_config", "quantization", "load_in_4bit")


@given(st.dictionaries(st.sampled_from(FIELDS + OTHERS), values, max_size=5), values)
def test_whatever_a_config_holds_is_read_or_refused(config, beside):
    with suppress(Refusal):
        quant = quantisation_of_config({"quantization_config": config, "hf_quant_config": beside}, "LlamaForCausalLM", "x")
        assert quant is None or total_bytes(replace(catalog.model("llama-3.2-1b"), quant=quant), Plan()) > 0
