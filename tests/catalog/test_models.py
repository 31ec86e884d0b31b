"""Models: parameter counts equal the published ones exactly; what cannot be read is refused by name."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax import catalog
from commtax.catalog.hf import architectures, from_config
from commtax.catalog.models import published_counts
from commtax.cost.inventory import inventory, num_active_params, num_params, total_bytes
from commtax.cost.memory import check_stored
from commtax.spec import Plan
from each import each
from tables import tables

DATA = tables(__file__)

WANTED = DATA["wanted"]


def test_all_wanted_models_are_bundled():
    assert set(WANTED) <= set(catalog.keys("models"))


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


def test_dense_models_are_wholly_active():
    assert num_active_params(catalog.model("llama-3.1-8b")) == 8_030_261_248


def test_deepseek_checkpoint_on_the_hub_is_explained_to_the_parameter():
    """The Hub's total adds one prediction layer with its own embedding and head, and the fp8 scales."""
    model = catalog.model("deepseek-v3")
    h, moe = model.hidden, model.blocks[-1]
    layer = sum(t.size for t in inventory(model) if t.where == model.blocks.index(moe))
    extra = layer + 2 * h * h + 3 * h + 2 * model.vocab * h
    assert num_params(model) + extra == 684_489_845_504


@pytest.mark.parametrize(
    ("key", "weights_gb"),
    [  # bytes on the Hub: 2 bytes a parameter, or what the format stores
        ("llama-3.1-8b", 16.060522496),
        ("gpt-oss-20b", 13.761264768),  # original checkpoint of 13.76 GB: mxfp4 experts with one scale byte in 32
        ("opt-1.3b", 2.63151616),
    ],
)
def test_stored_bytes(key, weights_gb):
    assert total_bytes(catalog.model(key), Plan()) / 1e9 == pytest.approx(weights_gb, rel=2e-4)


def test_kimi_k2_shards_on_the_hub():
    """The 61 shards hold 1,029,173,256,720 bytes: fp8 weights, fp32 scales of 128 x 128 tiles, the rest in bf16."""
    assert total_bytes(catalog.model("kimi-k2"), Plan()) == pytest.approx(1_029_173_256_720, rel=1e-4)


def config(**changes):
    good = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
        "torch_dtype": "bfloat16",
    }
    return {k: v for k, v in {**good, **changes}.items() if v is not None}


def test_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match="MambaForCausalLM is not supported"):
        from_config(config(architectures=["MambaForCausalLM"]), "x")
    with pytest.raises(ValueError, match="missing is not supported"):
        from_config(config(architectures=None), "x")


def test_missing_fields_are_all_named():
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
    write_safetensors(
        tmp_path / "model-1.safetensors", {"model.layers.0.x": ("BF16", [8], 16), "model.layers.7.mtp": ("BF16", [8], 16)}
    )
    write_safetensors(tmp_path / "model-2.safetensors", {"lm_head.weight": ("BF16", [8], 16)})
    assert catalog.model(str(tmp_path)).stored_bytes == 32, "a layer beyond the last is not the model's"


BROKEN = [
    {"torch_dtype": [1]},
    {"hidden_size": 2},
    {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
    {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": 5}},
    {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": None}}},
    {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": [1]}}}},
    {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}, "targets": [True]}},
        }
    },
    {"quantization_config": {"quant_method": "fp8", "ignore": ["re:(("]}},
    {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": "a"}},
    {"quantization_config": 3},
]


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


def test_a_checkpoint_of_another_size_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config()))
    write_safetensors(tmp_path / "model.safetensors", {"w": ("BF16", [8], 16)})
    with pytest.raises(ValueError, match="files are missing"):
        check_stored(catalog.model(str(tmp_path)))


def test_broken_folders(tmp_path):
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


def test_did_you_mean():
    with pytest.raises(ValueError, match=r"did you mean llama-3\.1-8b"):
        catalog.model("lama-3.1-8b")


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


def test_an_alias_without_its_organisation_is_the_same_model():
    assert catalog.model("deepseek-v3.1") == catalog.model("deepseek-ai/DeepSeek-V3.1")
    assert catalog.model("deepseek-v3.1").key == "deepseek-v3"
    assert catalog.model("deepseek-v3.1-terminus").key == "deepseek-v3.1-terminus"
