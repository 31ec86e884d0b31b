"""Tiny checkpoints for live runs: written by transformers itself where it is installed."""

import json

BASE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 96,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SCALED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES = {
    "llama": ("LlamaForCausalLM", {"intermediate_size": 96, "rope_parameters": {**SCALED, "original_max_position_embeddings": 32}}),
    "qwen3": ("Qwen3ForCausalLM", {"intermediate_size": 96, "head_dim": 16, "tie_word_embeddings": True}),
    "mixtral": ("MixtralForCausalLM", {"intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2ForCausalLM", {"intermediate_size": 96}),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        {"intermediate_size": 96, "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    ),
}


def write(folder, family, shard_bytes=None, **changes):
    """A random checkpoint of one family, saved by transformers; returns its model for comparison."""
    import torch
    import transformers

    name, facts = FAMILIES[family]
    config_class = getattr(transformers, name.replace("ForCausalLM", "Config"))
    torch.manual_seed(7)
    config = config_class(**{**BASE, **facts, **changes})
    model = getattr(transformers, name)(config).float().eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if "norm" in weight_name or weight_name.endswith("bias"):
                weight.add_(torch.randn_like(weight) * 0.1)
            else:
                weight.mul_(4.0)  # logits of a size at which differences would show
    model.save_pretrained(folder, **({"max_shard_size": shard_bytes} if shard_bytes else {}))
    return model


def reference_logits(model, tokens, outputs):
    """Greedy tokens and the logits of every step, by transformers."""
    import torch

    found, chosen = [], []
    with torch.inference_mode():
        for _ in range(outputs):
            logits = model(tokens).logits[:, -1]
            found.append(logits)
            chosen.append(logits.argmax(-1))
            tokens = torch.cat((tokens, chosen[-1].unsqueeze(1)), dim=1)
    return found, chosen


def config(family, **changes):
    """The plain config.json of a family, for tests without transformers."""
    name, facts = FAMILIES[family]
    return json.dumps({"architectures": [name], **BASE, **facts, **changes})
