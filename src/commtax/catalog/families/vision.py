"""Vision towers: their tensors from a few dimensions, and the sections of configs that give those."""

from collections.abc import Callable
from dataclasses import replace

from commtax.catalog.families.parts import Fields, Reader, family, text_of
from commtax.records import dataclass
from commtax.spec import Model, Tower, TowerTensor
from commtax.statement import Note

TowerMaker = Callable[[Fields, int, Fields], Tower]  # from its section of a config, the decoder's width, and the whole config
UNBIASED = {"bias": False, "norm_bias": False, "patch_bias": False, "last_norm": False}


@dataclass(frozen=True, slots=True)
class Vit:
    """A vision transformer, by what tells one from another."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    inputs: int  # values of a patch
    positions: int = 0  # rows of a learned table; 0: rotary
    head_dim: int = 0  # 0: the hidden width shared out
    gated: bool = False
    bias: bool = True
    norm_bias: bool = True
    norms: int = 2  # a layer
    qk_norm: bool = False
    patch_bias: bool = True
    class_token: bool = False
    first_norm: bool = False
    last_norm: bool = True


def tower(v: Vit, patch: int, patches_per_token: int, projector: tuple[TowerTensor, ...]) -> Tower:
    dims = v.layers, v.hidden, v.heads, v.head_dim or v.hidden // v.heads, v.intermediate
    return Tower(*dims, _tensors(v), projector, v.gated, max(1, patches_per_token), patch)


def _tensors(v: Vit) -> tuple[TowerTensor, ...]:
    """List patches, positions, layers and the last norm. Attention's output matrix stands the other way round."""
    h, norm, width = v.hidden, 1 + v.norm_bias, v.heads * v.head_dim if v.head_dim else v.hidden
    rows: list[TowerTensor] = [("vision.patch.weight", (h, v.inputs), 1), ("vision.positions", (v.positions, h), 1)]
    rows += _weight_and_bias("vision.attention", (width, h), 4 * v.layers, v.bias)
    rows += _weight_and_bias("vision.fc1", (v.intermediate, h), (1 + v.gated) * v.layers, v.bias)
    rows += _weight_and_bias("vision.fc2", (h, v.intermediate), v.layers, v.bias)
    rows.append(("vision.norms", (h,), norm * v.norms * v.layers))
    rows += [("vision.last_norm", (h,), norm)] * v.last_norm + [("vision.patch.bias", (h,), 1)] * v.patch_bias
    rows += [("vision.class_token", (h,), 1)] * v.class_token + [("vision.first_norm", (h,), norm)] * v.first_norm
    rows += [("vision.qk_norm", (width // v.heads,), 2 * v.layers)] * v.qk_norm
    return tuple(row for row in rows if all(row[1]))


def _weight_and_bias(name: str, shape: tuple[int, int], count: int, bias: bool = True) -> list[TowerTensor]:
    return [(f"{name}.weight", shape, count), *[(f"{name}.bias", shape[:1], count)] * bias]


def chain(name: str, widths: tuple[int, ...], bias: bool, count: int = 1) -> tuple[TowerTensor, ...]:
    """List matrices one after the other, from each width to the next."""
    pairs = enumerate(zip(widths[1:], widths, strict=False))
    return tuple(row for i, (out, into) in pairs for row in _weight_and_bias(f"{name}.{i}", (out, into), count, bias))


def register_vision(
    name: str, read: Reader, make: TowerMaker, *shared: str, sequence_parallel_moe: bool = False, flat: bool = False
) -> None:
    """Enter an architecture whose decoder stands behind a tower, or alone, in a section that ``flat`` configs may lack."""
    entered = family(name, sequence_parallel_moe=sequence_parallel_moe, shared=("vision_config", *shared))
    entered(lambda c: with_tower(c, read(c if flat and c.get("text_config") is None else text_of(c)), make))


def with_tower(c: Fields, model: Model, make: TowerMaker) -> Model:
    """Return a decoder behind the tower that its config describes."""
    if vision := c.section("vision_config"):
        return replace(model, tower=make(vision, model.hidden, c))
    c.notes.append(Note("no-tower", "the vision tower is left out: the config has no vision_config"))
    return model


def siglip(v: Fields, hidden: int, c: Fields) -> Tower:
    """Return Gemma 3's: biases and LayerNorms everywhere, an average over patches, one matrix into the decoder."""
    tokens, width, patch = c.number("mm_tokens_per_image", 256), v.need("hidden_size"), v.need("patch_size")
    patches = (v.need("image_size") // patch) ** 2
    projector = (("projector.input_projection", (width, hidden), 1), ("projector.norm", (width,), 1))
    return tower(_plain_vit(v, patch, patches), patch, patches // max(1, tokens), projector)


def _plain_vit(v: Fields, patch: int, positions: int = 0) -> Vit:
    inputs = v.number("num_channels", 3) * patch * patch
    sizes = v.layers("num_hidden_layers"), v.need("hidden_size"), v.need("intermediate_size"), v.need("num_attention_heads")
    return Vit(*sizes, inputs, positions)


def llama4_tower(v: Fields, hidden: int, _c: Fields) -> Tower:
    """Return a class token, a norm before the layers, patches shuffled four to one, two matrices and one into the decoder."""
    wide, middle, out = map(v.need, ("intermediate_size", "projector_input_dim", "projector_output_dim"))
    patch = v.need("patch_size")
    plain = _plain_vit(v, patch, (v.need("image_size") // patch) ** 2 + 1)
    folded = ("vision.adapter.fc1.weight", (middle, wide), 1), ("vision.adapter.fc2.weight", (out, middle), 1)
    adapter = (*folded, ("projector.weight", (hidden, v.need("vision_output_dim")), 1))
    return tower(replace(plain, patch_bias=False, class_token=True, first_norm=True), patch, 4, adapter)


def _two_frame_vit(v: Fields, channels: str) -> tuple[Vit, int, int]:
    """Return Qwen's patches of two frames, the side of a patch, and how many patches make a token."""
    h, patch, merge = v.need("hidden_size"), v.need("patch_size"), v.number("spatial_merge_size", 2) or 1
    inputs = v.number(channels, 3) * (v.number("temporal_patch_size", 2) or 1) * patch * patch
    sizes = v.layers("depth"), h, v.need("intermediate_size"), v.need("num_heads"), inputs
    return Vit(*sizes, last_norm=False), patch, merge * merge


def qwen_tower(v: Fields, hidden: int, _c: Fields) -> Tower:
    """Return Qwen3-VL's and Qwen3.5's: a learned table of positions, and deep layers that hand on theirs too."""
    plain, patch, merged = _two_frame_vit(v, "in_channels")
    vit, wide = replace(plain, positions=v.need("num_position_embeddings")), merged * plain.hidden
    out, deep = v.number("out_hidden_size", hidden) or hidden, v.get("deepstack_visual_indexes")
    copies = 1 + (len(deep) if isinstance(deep, list) else 0)
    norms: tuple[TowerTensor, ...] = (("projector.norm", (vit.hidden,), 2), ("projector.deep_norm", (wide,), 2 * (copies - 1)))
    rows = (*norms, *chain("projector", (wide, wide, out), bias=True, count=copies))
    return tower(vit, patch, merged, tuple(row for row in rows if row[2]))


def qwen25_tower(v: Fields, hidden: int, _c: Fields) -> Tower:
    """Build the vision tower of Qwen2.5-VL: RMS norms, a gated MLP with biases, rotary positions."""
    plain, patch, merged = _two_frame_vit(v, "in_chans")
    h, out = plain.hidden, v.number("out_hidden_size", hidden) or hidden
    rows = (("projector.norm", (h,), 1), *chain("projector", (merged * h, merged * h, out), bias=True))
    return tower(replace(plain, gated=True, norm_bias=False, patch_bias=False), patch, merged, rows)


def pixtral_tower(v: Fields, hidden: int, c: Fields) -> Tower:
    """Return Mistral's: a gated MLP without biases, RMS norms, one before the layers, and patches merged by a matrix."""
    merge, bias = c.number("spatial_merge_size", 2) or 1, c.flag("multimodal_projector_bias")
    h, patch = v.need("hidden_size"), v.need("patch_size")
    vit = replace(_plain_vit(v, patch), head_dim=v.number("head_dim", 0), gated=True, first_norm=True, **UNBIASED)
    merged: tuple[TowerTensor, ...] = (("projector.norm", (h,), 1), ("projector.merge.weight", (h, merge * merge * h), 1))
    return tower(vit, patch, merge * merge, (*merged, *chain("projector", (h, hidden, hidden), bias)))


def _moon(v: Fields) -> tuple[Vit, int, int]:
    """Return Kimi's: a learned grid of positions, its patches' side, and how many patches make a token."""
    h, patch = v.need("vt_hidden_size"), v.number("patch_size", 14) or 14
    grid = v.number("init_pos_emb_height", 64) * v.number("init_pos_emb_width", 64)
    sizes = v.layers("vt_num_hidden_layers"), h, v.need("vt_intermediate_size"), v.need("vt_num_attention_heads"), 3 * patch * patch
    return Vit(*sizes, grid), patch, _patches_per_token(v)


def moonvit(v: Fields, hidden: int, _c: Fields) -> Tower:
    """Return Kimi-K2.5's: biases and LayerNorms, patches merged before two matrices."""
    vit, patch, merged = _moon(v)
    wide = merged * vit.hidden
    return tower(vit, patch, merged, (("projector.norm", (vit.hidden,), 2), *chain("projector", (wide, wide, hidden), bias=True)))


def _patches_per_token(v: Fields) -> int:
    sides = v.get("merge_kernel_size")
    if sides is None:
        return 4
    if isinstance(sides, list) and len(sides) == 2 and all(isinstance(n, int) and 0 < n < 100 for n in sides):
        return int(sides[0] * sides[1])
    v.bad.append(f"merge_kernel_size={sides!r}")
    return 1


def moonvit2(v: Fields, hidden: int, _c: Fields) -> Tower:
    """Return Kimi-K3's: no biases, RMS norms, heads wider than the hidden state shared out, a norm after the projector."""
    plain, patch, merged = _moon(v)
    wide, head_dim = merged * plain.hidden, v.number("qkv_hidden_size", plain.hidden) // plain.heads
    vit = replace(plain, head_dim=head_dim, bias=False, norm_bias=False, patch_bias=False)
    return tower(vit, patch, merged, (*chain("projector", (wide, wide, hidden), bias=False), ("projector.norm", (hidden,), 1)))


def minimax_tower(v: Fields, hidden: int, c: Fields) -> Tower:
    """Return MiniMax-M3's: CLIP's layers over patches of two frames, rotary positions, two matrices before and after the merge."""
    wide, h, patch = c.number("projector_hidden_size", hidden), v.need("hidden_size"), v.need("patch_size")
    inner = v.section("img_token_compression_config") or v
    merge, frames = inner.number("spatial_merge_size", 2) or 1, inner.number("temporal_patch_size", 2) or 1
    plain = _plain_vit(v, patch)
    vit = replace(plain, inputs=plain.inputs * frames, patch_bias=False, first_norm=True, last_norm=False)
    before = chain("vision.projector", (h, wide, wide), bias=True)
    after = chain("projector", (merge * merge * wide, hidden, hidden), bias=True)
    return replace(tower(vit, patch, merge * merge, after), tensors=(*_tensors(vit), *before))


def gemma4_tower(v: Fields, hidden: int, _c: Fields) -> Tower:
    """Return Gemma 4's: gated, normed queries and keys, four norms a layer, positions of both axes, patches pooled."""
    h, patch, side = v.need("hidden_size"), v.need("patch_size"), v.number("pooling_kernel_size", 3) or 1
    plain = _plain_vit(v, patch, 2 * v.number("position_embedding_size", 10240))
    vit = replace(plain, head_dim=v.number("head_dim", 0), norms=4, gated=True, qk_norm=True, **UNBIASED)
    scaled: tuple[TowerTensor, ...] = (("projector.standard", (h,), 2),) if v.flag("standardize") else ()
    return tower(vit, patch, side * side, (*scaled, *chain("projector", (h, hidden), bias=False)))


def step_tower(v: Fields, hidden: int, c: Fields) -> Tower:
    """Return Step-3.7's: a perception encoder with scaled layers, and two convolutions over 3 x 3 patches that halve both sides."""
    names = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}
    v = v.with_(**{usual: v.get(theirs) or v.get(usual) for usual, theirs in names.items()})
    bias, h, patch, ratio = c.flag("projector_bias"), v.need("hidden_size"), v.need("patch_size"), v.get("mlp_ratio")
    if isinstance(ratio, (int, float)) and 0 < ratio < 1000:
        v = v.with_(intermediate_size=int(h * ratio))
    plain = _plain_vit(v, patch, (v.need("image_size") // patch) ** 2)
    vit = replace(plain, patch_bias=False, first_norm=True, last_norm=False)
    folded = (*_weight_and_bias("projector.fold_0", (2 * h, 9 * h), 1), *_weight_and_bias("projector.fold_1", (4 * h, 18 * h), 1))
    made = tower(vit, patch, 16, (*folded, *chain("projector", (4 * h, hidden), bias)))
    return replace(made, tensors=(*made.tensors, ("vision.scales", (h,), 2 * plain.layers)))
