"""Models and their families: published counts to the digit, configs of today, and what cannot be read is refused by name."""

import json
import struct
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal
from cli_run import run_here as run
from commtax import catalog
from commtax.catalog import models
from commtax.catalog.hf import architectures, family_name, from_config, text_section
from commtax.catalog.models import published_counts
from commtax.cost.caches import kv_bytes_per_token, state_bytes_per_sequence
from commtax.cost.inventory import inventory, mtp_params, num_active_params, num_params, total_bytes
from commtax.cost.memory import check_stored
from commtax.cost.traffic import inference
from commtax.spec import Attention, DeltaNet, Mamba2, Plan, Workload
from commtax.statement import Refusal
from each import each
from paths import SHARED
from tables import tables

DATA = tables(__file__)


def test_all_wanted_models_are_bundled_under_their_aliases():
    assert set(DATA["wanted"]) <= set(catalog.keys("models"))
    assert catalog.model("deepseek-v3.1") == catalog.model("deepseek-ai/DeepSeek-V3.1")
    assert catalog.model("deepseek-v3.1").key == "deepseek-v3"
    assert catalog.model("deepseek-v3.1-terminus").key == "deepseek-v3.1-terminus"
    with pytest.raises(ValueError, match=r"did you mean llama-3\.1-8b"):
        catalog.model("lama-3.1-8b")


@each("key", catalog.keys("models"))
def test_parameters_equal_the_published_count(key):
    """Every bundled model against figures with their source in the model's own file."""
    totals = [p for p in published_counts(key) if p.kind == "total"]
    assert totals, "no published count"
    for p in totals:
        ours = num_params(catalog.model(key)) + p.beyond
        assert p.source.url.startswith("https://")
        if p.digits:  # printed rounded (GPT-3's table gives four digits)
            assert float(f"{ours:.{p.digits - 1}e}") == p.params
        else:
            assert ours == p.params


@pytest.mark.parametrize(("key", "params"), DATA["counts_by_hand"])
def test_counts_by_hand(key, params):
    assert num_params(catalog.model(key)) == params


@each("key", [k for k in catalog.keys("models") if catalog.model(k).experts])
def test_active_parameters_agree_with_the_cards(key):
    """Cards round, and differ in whether embeddings count: one reading has the card's digits, or is within 5 %."""
    model = catalog.model(key)
    table = 0 if model.tied else model.vocab * model.hidden
    readings = (num_active_params(model), bare := num_active_params(model, embedding=False), bare - table)
    cards = [p for p in published_counts(key) if p.kind == "active"]
    assert cards
    for card in cards:
        printed = any(float(f"{ours:.{card.digits - 1}e}") == card.params for ours in readings)
        assert printed or (card.digits == 2 and min(abs(ours / card.params - 1) for ours in readings) < 0.05)


def test_checkpoints_on_the_hub_are_explained():
    assert num_active_params(catalog.model("llama-3.1-8b")) == 8_030_261_248
    # The Hub's total adds one prediction layer with its own embedding and head, and the fp8 scales.
    model = catalog.model("deepseek-v3")
    h, moe = model.hidden, model.blocks[-1]
    layer = sum(t.size for t in inventory(model) if t.where == model.blocks.index(moe))
    extra = layer + 2 * h * h + 3 * h + 2 * model.vocab * h
    assert num_params(model) + extra == 684_489_845_504
    # The 61 shards hold 1,029,173,256,720 bytes: fp8 weights, fp32 scales of 128 x 128 tiles, the rest in bf16.
    assert total_bytes(catalog.model("kimi-k2"), Plan()) == pytest.approx(1_029_173_256_720, rel=1e-4)


@pytest.mark.parametrize(("key", "weights_gb"), DATA["stored_bytes"])
def test_stored_bytes(key, weights_gb):
    assert total_bytes(catalog.model(key), Plan()) / 1e9 == pytest.approx(weights_gb, rel=2e-4)


def config(**changes):
    good = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    return {k: v for k, v in {**good, **changes}.items() if v is not None}


def test_what_is_missing_or_unknown_is_refused():
    with pytest.raises(ValueError, match="MambaForCausalLM is not supported"):
        from_config(config(architectures=["MambaForCausalLM"]), "x")
    with pytest.raises(ValueError, match="missing is not supported"):
        from_config(config(architectures=None), "x")
    with pytest.raises(ValueError, match="intermediate_size, hidden_size"):
        from_config(config(hidden_size=None, intermediate_size=None), "x")


@pytest.mark.parametrize("bad", [-1, 0, 1.5, "64", [], 10**15, True])
def test_unreadable_fields_are_named(bad):
    with pytest.raises(ValueError, match="vocab_size"):
        from_config(config(vocab_size=bad), "x")


@each("name", sorted(architectures()))
def test_an_empty_config_never_passes(name):
    with pytest.raises(ValueError, match=name):
        from_config({"architectures": [name]}, "x")


@given(
    st.dictionaries(
        st.sampled_from(sorted(config())), st.none() | st.booleans() | st.integers() | st.text() | st.floats(), max_size=4
    )
)
def test_garbage_in_a_config_is_a_value_error(changes):
    try:
        model = from_config({**config(), **changes}, "x")
    except ValueError:
        return
    assert num_params(model) > 0


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * offset)


def test_local_folder_and_its_headers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    plain = catalog.model(str(tmp_path))
    assert plain.stored_bytes == 0
    tensors = {"model.layers.0.x": ("BF16", [8], 16), "model.layers.7.mtp": ("BF16", [8], 16)}
    write_safetensors(tmp_path / "model-1.safetensors", tensors)
    write_safetensors(tmp_path / "model-2.safetensors", {"lm_head.weight": ("BF16", [8], 16)})
    assert catalog.model(str(tmp_path)).stored_bytes == 32, "a layer beyond the last is not the model's"


BROKEN = [*DATA["broken"], {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": None}}}]


@each("change", BROKEN, ids=str)
def test_broken_fields_are_value_errors_that_name_the_model(change):
    with pytest.raises(ValueError, match="model x"):
        from_config(config(**change), "x")


@pytest.mark.parametrize("offsets", [["0", "1"], [None, None], [5, -5], [0, "9"], [3]])
def test_broken_offsets(tmp_path, offsets):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    text = json.dumps({"w": {"dtype": "BF16", "shape": [8], "data_offsets": offsets}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"0" * 64)
    with pytest.raises(ValueError, match="cannot be read"):
        catalog.model(str(tmp_path))


def test_broken_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        catalog.model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config())[:50])
    with pytest.raises(ValueError, match="not valid JSON"):
        catalog.model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config()))
    for content in (
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 30) + b'{"a":{"data_offsets":[0,9999]}}'[:30],
    ):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="safetensors"):
            catalog.model(str(tmp_path))
    write_safetensors(tmp_path / "model.safetensors", {"w": ("BF16", [8], 16)})
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-4])
    with pytest.raises(ValueError, match="truncated"):
        catalog.model(str(tmp_path))
    with pytest.raises(ValueError, match="no such folder"):
        catalog.model("./nowhere")
    (tmp_path / "config.json").write_text(json.dumps(config()))
    write_safetensors(tmp_path / "model.safetensors", {"w": ("BF16", [8], 16)})
    with pytest.raises(ValueError, match="files are missing"):
        check_stored(catalog.model(str(tmp_path)))


QUANT = {
    "fp8 tiles": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128**2),
    "mxfp4": ({"quant_method": "mxfp4"}, 0.5 + 1 / 32),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16),
    "w8a8": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
        },
        1 + 2 / 1024,
    ),
}


@pytest.mark.parametrize("name", sorted(QUANT))
def test_quantised_bytes(name):
    quant, per_element = QUANT[name]
    wide = config(hidden_size=1024, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=8)
    model = from_config({**wide, "quantization_config": quant}, "x")
    linear = sum(t.size for t in inventory(model) if t.linear) * 2
    rest = num_params(model) - linear
    assert total_bytes(model, Plan()) == pytest.approx(linear * per_element + rest * 2, rel=1e-9)


def test_ignored_modules_stay_plain():
    quant = {"quant_method": "fp8", "modules_to_not_convert": ["self_attn", "model.layers.0.mlp"]}
    model = from_config(config(quantization_config=quant), "x")
    mlp = sum(t.size for t in inventory(model) if t.part == "mlp")
    saved = mlp - 3 * 4  # one layer's feed-forward in one byte, with one scale for each of its three matrices
    assert total_bytes(model, Plan()) == 2 * num_params(model) - saved


@pytest.mark.parametrize("quant", [{"quant_method": "aqlm"}, {"quant_method": "awq", "bits": 3}, {"quant_method": "modelopt"}, {}])
def test_unknown_quantisation_is_refused(quant):
    with pytest.raises(ValueError, match="model x"):
        from_config(config(quantization_config=quant or {"bits": 4}), "x")


KEYS = catalog.keys("models")
CONFIGS = {key: models.config(key) for key in KEYS}
ONE_OF_EACH = {config["architectures"][0]: key for key, config in CONFIGS.items()}
PUBLISHED = SHARED / "model_configs.json"
MTP_STORED = ["qwen3.5-27b", "qwen3.5-397b-a17b", "qwen3-next-80b-a3b", "glm-4.6", "glm-5.2", "glm-5", "step-3.5-flash"]


@pytest.mark.parametrize("key", MTP_STORED)
def test_layers_for_further_tokens_explain_the_checkpoint_to_the_parameter(key):
    """Their sum with the model proper is what the Hub counts."""
    exact = next(p for p in models.published_counts(key) if p.kind == "total" and not p.digits)
    assert num_params(catalog.model(key)) + mtp_params(catalog.model(key)) == exact.params


@pytest.mark.parametrize(
    ("key", "kv_bytes", "state_bytes"),
    [  # by hand from each family's modelling code: attention layers x width x 2 bytes; linear layers x (state + convolution)
        ("qwen3.5-397b-a17b", 15 * 2 * 2 * 256 * 2, 45 * (64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2)),
        ("kimi-k3", 24 * 576 * 2, 69 * (96 * 128 * 128 * 4 + 3 * 3 * 12288 * 2)),
        ("nemotron-3-nano-30b-a3b", 6 * 2 * 2 * 128 * 2, 23 * (64 * 64 * 128 * 4 + 3 * (4096 + 2 * 8 * 128) * 2)),
        ("gemma-4-31b", (50 * 2 * 16 * 256 + 10 * 2 * 4 * 512) * 2, 0),
        ("mimo-v2-flash", (9 * 4 + 39 * 8) * (192 + 128) * 2, 0),
    ],
)
def test_what_a_token_and_a_sequence_keep(key, kv_bytes, state_bytes):
    model = catalog.model(key)
    assert kv_bytes_per_token(model, Plan(kv_dtype="bf16")) == kv_bytes
    assert state_bytes_per_sequence(model, Plan(kv_dtype="bf16")) == state_bytes


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("qwen3.5-397b-a17b", {DeltaNet: 45, Attention: 15}),
        ("kimi-k3", {DeltaNet: 69, Attention: 24}),
        ("nemotron-3-super-120b-a12b", {Mamba2: 40, Attention: 8, type(None): 40}),
        ("llama-3.3-nemotron-super-49b", {Attention: 49, type(None): 31}),
    ],
)
def test_kinds_of_layers(key, kinds):
    model = catalog.model(key)
    mixers = [type(model.blocks[i].mixer) for i in model.layers]
    assert {kind: mixers.count(kind) for kind in set(mixers)} == kinds


def test_selectors_are_counted_once_and_residuals_handed_on():
    """Of GLM-5.2's 78 layers 21 choose tokens; the others take the last choice, and look at no more."""
    model = catalog.model("glm-5.2")
    selectors = [model.blocks[i].attention.indexer for i in model.layers]
    assert (sum(s.own for s in selectors), {s.top_k for s in selectors}) == (21, {2048})
    # Kimi-K3 cut after 46 of 93 layers: four blocks of twelve have begun, and the running sum goes with them.
    model, plan = catalog.model("kimi-k3"), Plan(tp=8, pp=2, activations_dtype="bf16")
    plain = replace(model, lookback=0, residual_stream=False)
    sent = [inference(m, plan, Workload(decode_seqs=4), catalog.engine("vllm")) for m in (model, plain)]
    whole, one = (next(item.nbytes for item in items if item.axis == "pp") for items in sent)
    assert whole == 5 * one


@each("key", [key for key in KEYS if "vision_config" in CONFIGS[key]])
def test_a_vision_tower_has_dimensions(key):
    tower = catalog.model(key).tower
    t = tower
    layer = t.num_layers * (4 * t.hidden * t.num_heads * t.head_dim + (2 + t.gated) * t.hidden * t.intermediate)
    held = sum(copies * shape[0] * shape[1] for name, shape, copies in tower.tensors if len(shape) == 2)
    assert layer <= held < 1.2 * layer + tower.hidden * 50_000
    assert tower.patches_per_token in (4, 9, 16)


def test_gemma_4_e2b_with_inputs_of_each_layer_shared_caches_and_an_audio_tower():
    """5,123,178,051 on the Hub, which keeps 18.9 million unused keys and values of layers that take an earlier layer's."""
    text = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8, "head_dim": 256}
    text |= {"num_key_value_heads": 1, "num_kv_shared_layers": 20, "global_head_dim": 512, "hidden_size_per_layer_input": 256}
    text |= {"use_double_wide_mlp": True, "sliding_window": 512, "vocab_size": 262144, "max_position_embeddings": 131072}
    text["layer_types"] = (["sliding_attention"] * 4 + ["full_attention"]) * 7
    vision = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12, "head_dim": 64}
    sections = {"text_config": text, "vision_config": vision | {"patch_size": 16}, "audio_config": {"hidden_size": 1024}}
    model = from_config({"architectures": ["Gemma4ForConditionalGeneration"], **sections}, "e2b")
    unused = (16 * 256 + 4 * 512) * 2 * 1536
    assert num_params(model) + unused == pytest.approx(5_123_178_051, rel=2e-5)
    assert kv_bytes_per_token(model, Plan(kv_dtype="bf16")) == (12 * 256 + 3 * 512) * 2 * 2, "fifteen layers keep their own"


NEMOTRON = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
V4 = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


@pytest.mark.parametrize(
    ("key", "name", "spelled"),
    [  # the same layers in the other words that checkpoints and transformers have for them
        ("nemotron-3-nano-30b-a3b", "hybrid_override_pattern", lambda t: {"layers_block_type": [NEMOTRON[x] for x in t]}),
        ("deepseek-v4-flash", "compress_ratios", lambda t: {"layer_types": [V4[x] for x in t]}),
        ("glm-5.2", "index_topk_freq", lambda _: {"index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS"}),
        ("glm-5.2", "first_k_dense_replace", lambda n: {"mlp_layer_types": ["dense"] * n + ["sparse"] * (78 - n)}),
        ("qwen3.5-27b", "layer_types", lambda _: {"full_attention_interval": 4}),
        (
            "mimo-v2-flash",
            "hybrid_layer_pattern",
            lambda t: {"layer_types": [["full_attention", "sliding_attention"][x] for x in t]},
        ),
        ("step-3.5-flash", "attention_other_setting", lambda s: {"num_sliding_attention_heads": s["num_attention_heads"]}),
    ],
)
def test_a_pattern_in_other_words_is_the_same_model(key, name, spelled):
    config = without(CONFIGS[key], name)
    text_section(config).update(spelled(text_section(CONFIGS[key])[name]))
    found = from_config(config, "mine")
    assert (found.blocks, found.layers) == (catalog.model(key).blocks, catalog.model(key).layers)
    assert not found.notes


def test_layers_without_work_or_cache_are_carried_along():
    """Nemotron-NAS may leave attention and MLP out of a layer."""
    config = deepcopy(CONFIGS["llama-3.3-nemotron-super-49b"])
    config["block_configs"][40] = {"attention": {"no_op": True}, "ffn": {"no_op": True}}
    config["block_configs"][41] = {"attention": {"replace_with_linear": True}, "ffn": {"intermediate_size": 4096}}
    model = from_config(config, "mine")
    assert model.num_layers == 80
    assert commtax.bill(model, "8xh100-sxm", tp=8).step_s > 0
    assert commtax.fit(model, "8xh100-sxm", tp=8).fits
    # The first two layers of DeepSeek-V4-Flash keep no entries, and a stage may have no others.
    assert commtax.fit("deepseek-v4-flash", "8x8xh200-sxm", tp=1, pp=22, max_model_len=4096).fits
    config = CONFIGS["mimo-v2-flash"] | {"vision_config": {"depth": 3}}
    assert [n.code for n in from_config(config, "mine").notes] == ["no-tower"]


def without(config, name):
    """The config without a field, wherever it stands."""
    left = {key: value for key, value in config.items() if key != name}
    return left | {"text_config": without(left["text_config"], name)} if isinstance(left.get("text_config"), dict) else left


def read_or_refused(config):
    try:
        return from_config(config, "mine"), ""
    except Refusal as refused:
        return None, str(refused)


LEFT_OUT = DATA["left_out"]


@each(("key", "name"), LEFT_OUT)
def test_a_field_that_is_left_out_comes_from_the_model_of_the_same_sizes_and_is_said(key, name):
    found = from_config(without(CONFIGS[key], name), "mine")
    known = catalog.model(key)
    assert (found.blocks, found.layers, found.tower) == (known.blocks, known.layers, known.tower)
    note = next(n for n in found.notes if n.code == "completed")
    assert name in note
    assert note in commtax.fit(found, "8x8xb200-sxm", tp=8, max_model_len=4096).question.notes


@each(("key", "name"), LEFT_OUT)
def test_a_model_of_other_sizes_is_no_help(key, name):
    """It is refused by the field's name, or has what its model class assumes, and says so."""
    config = without(CONFIGS[key], name)
    text = text_section(config)
    text["hidden_size"] = 2 * text["hidden_size"]
    found, refusal = read_or_refused(config)
    if found:
        assert {n.code for n in found.notes} & {"config-default", "no-tower"}
    else:
        assert name in refusal or "hybrid_override_pattern" in refusal


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**6, 10**15, -(10**9), 0.5, float("nan"), float("inf"), "", "x", "64", "M" * 20, [], [[]], {}, {"a": []}]),
    st.lists(st.integers(-2, 200) | st.sampled_from(["M", "sliding_attention", None, {}, "moe"]), max_size=5),
)


def places(config, path=()):
    """Every field, also inside sections."""
    for name, value in config.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from places(value, (*path, name))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_config_of_any_family_with_fields_lost_or_spoilt_is_read_or_refused(data):
    config = deepcopy(CONFIGS[data.draw(st.sampled_from(sorted(ONE_OF_EACH.values())))])
    for path in data.draw(
        st.lists(st.sampled_from([p for p in places(config) if p != ("architectures",)]), min_size=1, max_size=4)
    ):
        section = config
        for name in path[:-1]:
            section = section.get(name) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            continue
        if data.draw(st.booleans()):
            section.pop(path[-1], None)
        else:
            section[path[-1]] = data.draw(JUNK)
    model, refusal = read_or_refused(config)
    if model is None:
        assert "model mine" in refusal
        return
    assert num_params(model) > 0
    assert mtp_params(model) >= 0
    assert kv_bytes_per_token(model, Plan(kv_dtype="bf16")) >= 0


def unknown(**changes):
    base = {"architectures": ["MyOwnForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512, "rope_theta": 1e4, "eos_token_id": 2}
    return {k: v for k, v in (base | more | changes).items() if v is not None}


def test_an_unknown_architecture_is_read_as_a_family_or_names_the_nearest():
    with pytest.raises(Refusal, match=r"MyOwnForCausalLM is not supported; nearest family: \w+ \(--as \w+"):
        from_config(unknown(), "x")
    with pytest.raises(Refusal, match="nearest family: qwen3moe"):
        from_config(unknown(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1), "x")
    with pytest.raises(Refusal, match="no family has the fields that it needs"):
        from_config({"architectures": ["MyOwnForCausalLM"]}, "x")
    plain = from_config(unknown(), "x", "llama")
    known = from_config(unknown(architectures=["LlamaForCausalLM"]), "x")
    assert (plain.blocks, plain.layers, plain.hidden) == (known.blocks, known.layers, known.hidden)
    (note,) = plain.notes
    assert (note.code, str(note)) == ("read-as", "assumed: MyOwnForCausalLM is read as LlamaForCausalLM; no field is ignored")
    (note,) = from_config(unknown(num_widgets=3, gated_thing=True), "x", "Llama").notes
    assert str(note).endswith("ignored: num_widgets, gated_thing")
    with pytest.raises(Refusal, match="num_local_experts"):
        from_config(unknown(), "x", "mixtral")
    with pytest.raises(Refusal, match=r"no such family; did you mean llama"):
        from_config(unknown(), "x", "lama")


@each("architecture", sorted(architectures()))
def test_every_family_can_be_named(architecture):
    key = ONE_OF_EACH.get(architecture)
    if key is None:
        pytest.skip("no bundled model has this architecture")
    config = CONFIGS[key] | {"architectures": ["MyOwnForCausalLM"]}
    assert from_config(config, "x", family_name(architecture)).blocks == catalog.model(key).blocks


def test_as_on_the_command_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(unknown(num_widgets=3)))
    assert "--as" in refusal(run("catalog", "models", str(tmp_path)))
    shown = json.loads(run("catalog", "models", str(tmp_path), "--as", "llama", "--json").stdout)
    assert "ignored: num_widgets" in shown["notes"][0]
    assert {"params", "active_params", "kv_bytes_per_token", "state_bytes_per_sequence"} <= shown.keys()
    for verb in ("fit", "bill"):
        answer = run(verb, str(tmp_path), "--as", "llama", "--cluster", "2xh100-sxm", "--json")
        assert answer.returncode == 0
        assert any("read as LlamaForCausalLM" in note for note in json.loads(answer.stdout)["notes"])
    assert "in the catalogue" in run("fit", "llama-3.1-8b", "--as", "qwen3", "--cluster", "h100-sxm").stderr


def test_public_configurations_of_today_are_read():
    if not PUBLISHED.exists():
        pytest.skip("needs the table of public configurations, which a clone does not have")
    read = [name for name, config in json.loads(PUBLISHED.read_text()).items() if from_config(config, name.split("/")[-1].lower())]
    assert len(read) >= 86
