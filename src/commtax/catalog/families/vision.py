"""Vision towers: their tensors from a few dimensions, and the sections of configs that give those."""

from dataclasses import replace

from commtax.catalog.fields import Fields
from commtax.records import dataclass
from commtax.spec import Tower, TowerTensor
from commtax.statement import Note


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
    """Patches, positions, layers, last norm. Attention's output matrix stands the other way round."""
    h, norm, width = v.hidden, 1 + v.norm_bias, v.heads * v.head_dim if v.head_dim else v.hidden
    rows: list[TowerTensor] = [("vision.patch.weight", (h, v.inputs), 1), ("vision.positions", (v.positions, h), 1)]
    rows += _biased("vision.attention", (width, h), 4 * v.layers, v.bias)
    rows += _biased("vision.fc1", (v.intermediate, h), (1 + v.gated) * v.layers, v.bias)
    rows += _biased("vision.fc2", (h, v.intermediate), v.layers, v.bias)
    rows.append(("vision.norms", (h,), norm * v.norms * v.layers))
    if v.last_norm:
        rows.append(("vision.last_norm", (h,), norm))
    if v.patch_bias:
        rows.append(("vision.patch.bias", (h,), 1))
    if v.class_token:
        rows.append(("vision.class_token", (h,), 1))
    if v.first_norm:
        rows.append(("vision.first_norm", (h,), norm))
    if v.qk_norm:
        rows.append(("vision.qk_norm", (width // v.heads,), 2 * v.layers))
    return tuple(row for row in rows if all(row[1]))


def _biased(name: str, shape: tuple[int, int], count: int, bias: bool = True) -> list[TowerTensor]:
    rows: list[TowerTensor] = [(f"{name}.weight", shape, count)]
    return [*rows, (f"{name}.bias", shape[:1], count)] if bias else rows


def chain(name: str, widths: tuple[int, ...], bias: bool, count: int = 1) -> tuple[TowerTensor, ...]:
    """Matrices one after the other, from each width to the next."""
    pairs = enumerate(zip(widths[1:], widths, strict=False))
    return tuple(row for i, (out, into) in pairs for row in _biased(f"{name}.{i}", (out, into), count, bias))


def vision_of(c: Fields) -> Fields | None:
    """The section of the tower; without one the decoder stands alone, which is said."""
    section = c.section("vision_config")
    if section is None:
        c.notes.append(Note("no-tower", "the vision tower is left out: the config has no vision_config"))
    return section


def siglip(c: Fields, hidden: int, tokens: int) -> Tower:
    """Gemma 3's: biases and LayerNorms everywhere, an average over patches, one matrix into the decoder."""
    width, patch = c.need("hidden_size"), c.need("patch_size")
    patches = (c.need("image_size") // patch) ** 2
    projector = (("projector.input_projection", (width, hidden), 1), ("projector.norm", (width,), 1))
    return tower(_plain(c, patch, patches), patch, patches // max(1, tokens), projector)


def _plain(c: Fields, patch: int, positions: int) -> Vit:
    inputs = c.number("num_channels", 3) * patch * patch
    sizes = c.layers("num_hidden_layers"), c.need("hidden_size"), c.need("intermediate_size"), c.need("num_attention_heads")
    return Vit(*sizes, inputs, positions)


def llama4_tower(c: Fields, hidden: int) -> Tower:
    """A class token, a norm before the layers, patches shuffled four to one, two matrices and one into the decoder."""
    wide, middle, out = map(c.need, ("intermediate_size", "projector_input_dim", "projector_output_dim"))
    patch = c.need("patch_size")
    positions = (c.need("image_size") // patch) ** 2 + 1
    plain = _plain(c, patch, positions)
    vit = Vit(
        *(plain.layers, plain.hidden, wide, plain.heads, plain.inputs),
        positions,
        patch_bias=False,
        class_token=True,
        first_norm=True,
    )
    adapter = (
        ("vision.adapter.fc1.weight", (middle, wide), 1),
        ("vision.adapter.fc2.weight", (out, middle), 1),
        ("projector.weight", (hidden, c.need("vision_output_dim")), 1),
    )
    return tower(vit, patch, 4, adapter)


def qwen_tower(c: Fields, hidden: int) -> Tower:
    """Qwen3-VL's and Qwen3.5's: patches of two frames, ``merge`` x ``merge`` into one token; deep layers hand on theirs too."""
    h, patch, merge = c.need("hidden_size"), c.need("patch_size"), c.number("spatial_merge_size", 2) or 1
    inputs = c.number("in_channels", 3) * (c.number("temporal_patch_size", 2) or 1) * patch * patch
    sizes = c.layers("depth"), h, c.need("intermediate_size"), c.need("num_heads"), inputs
    vit = Vit(*sizes, c.need("num_position_embeddings"), last_norm=False)
    wide, out, deep = merge * merge * h, c.number("out_hidden_size", hidden) or hidden, c.get("deepstack_visual_indexes")
    copies = 1 + (len(deep) if isinstance(deep, list) else 0)
    norms: tuple[TowerTensor, ...] = (("projector.norm", (h,), 2), ("projector.deep_norm", (wide,), 2 * (copies - 1)))
    rows = (*norms, *chain("projector", (wide, wide, out), bias=True, count=copies))
    return tower(vit, patch, merge * merge, tuple(row for row in rows if row[2]))


def qwen25_tower(c: Fields, hidden: int) -> Tower:
    """Qwen2.5-VL's: RMS norms, a gated MLP with biases, rotary positions."""
    h, patch, merge = c.need("hidden_size"), c.need("patch_size"), c.number("spatial_merge_size", 2) or 1
    inputs = c.number("in_chans", 3) * (c.number("temporal_patch_size", 2) or 1) * patch * patch
    sizes = c.layers("depth"), h, c.need("intermediate_size"), c.need("num_heads"), inputs
    vit = Vit(*sizes, gated=True, norm_bias=False, patch_bias=False, last_norm=False)
    wide, out = merge * merge * h, c.number("out_hidden_size", hidden) or hidden
    return tower(vit, patch, merge * merge, (("projector.norm", (h,), 1), *chain("projector", (wide, wide, out), bias=True)))


def pixtral_tower(c: Fields, hidden: int, merge: int, bias: bool) -> Tower:
    """Mistral's: a gated MLP without biases, RMS norms, one before the layers; patches merged by a matrix."""
    h, patch = c.need("hidden_size"), c.need("patch_size")
    plain = _plain(c, patch, 0)
    sizes = plain.layers, h, plain.intermediate, plain.heads, plain.inputs
    flags = {"gated": True, "bias": False, "norm_bias": False, "patch_bias": False, "first_norm": True, "last_norm": False}
    vit = Vit(*sizes, head_dim=c.number("head_dim", 0), **flags)
    merged: tuple[TowerTensor, ...] = (("projector.norm", (h,), 1), ("projector.merge.weight", (h, merge * merge * h), 1))
    return tower(vit, patch, merge * merge, (*merged, *chain("projector", (h, hidden, hidden), bias)))


def moonvit(c: Fields, hidden: int) -> Tower:
    """Kimi-K2.5's: biases and LayerNorms, a learned grid of positions, patches merged before two matrices."""
    h, patch = c.need("vt_hidden_size"), c.number("patch_size", 14) or 14
    grid = c.number("init_pos_emb_height", 64) * c.number("init_pos_emb_width", 64)
    sizes = c.layers("vt_num_hidden_layers"), h, c.need("vt_intermediate_size"), c.need("vt_num_attention_heads"), 3 * patch * patch
    merged = _merged(c)
    rows = (("projector.norm", (h,), 2), *chain("projector", (merged * h, merged * h, hidden), bias=True))
    return tower(Vit(*sizes, grid), patch, merged, rows)


def _merged(c: Fields) -> int:
    """Patches of a token: the sides of the kernel that merges them."""
    sides = c.get("merge_kernel_size")
    if sides is None:
        return 4
    if isinstance(sides, list) and len(sides) == 2 and all(isinstance(n, int) and 0 < n < 100 for n in sides):
        return int(sides[0] * sides[1])
    c.bad.append(f"merge_kernel_size={sides!r}")
    return 1


def moonvit2(c: Fields, hidden: int) -> Tower:
    """Kimi-K3's: no biases, RMS norms, heads wider than the hidden state shared out, a norm after the projector."""
    h, patch, wide = c.need("vt_hidden_size"), c.number("patch_size", 14) or 14, c.need("vt_num_attention_heads")
    grid = c.number("init_pos_emb_height", 64) * c.number("init_pos_emb_width", 64)
    sizes = c.layers("vt_num_hidden_layers"), h, c.need("vt_intermediate_size"), wide, 3 * patch * patch
    vit = Vit(*sizes, grid, c.number("qkv_hidden_size", h) // wide, bias=False, norm_bias=False, patch_bias=False)
    merged = _merged(c)
    rows = (*chain("projector", (merged * h, merged * h, hidden), bias=False), ("projector.norm", (hidden,), 1))
    return tower(vit, patch, merged, rows)


def minimax_tower(c: Fields, hidden: int, wide: int) -> Tower:
    """MiniMax-M3's: CLIP's layers over patches of two frames, rotary positions, two matrices before the merge and two after."""
    h, patch = c.need("hidden_size"), c.need("patch_size")
    inner = c.section("img_token_compression_config") or c
    merge, frames = inner.number("spatial_merge_size", 2) or 1, inner.number("temporal_patch_size", 2) or 1
    plain = _plain(c, patch, 0)
    sizes = plain.layers, h, plain.intermediate, plain.heads, plain.inputs * frames
    vit = Vit(*sizes, patch_bias=False, first_norm=True, last_norm=False)
    before, after = (
        chain("vision.projector", (h, wide, wide), bias=True),
        chain("projector", (merge * merge * wide, hidden, hidden), bias=True),
    )
    return replace(tower(vit, patch, merge * merge, after), tensors=(*_tensors(vit), *before))


def gemma4_tower(c: Fields, hidden: int) -> Tower:
    """Gemma 4's: gated, normed queries and keys, four norms a layer, positions of both axes, patches pooled."""
    h, patch, side = c.need("hidden_size"), c.need("patch_size"), c.number("pooling_kernel_size", 3) or 1
    plain = _plain(c, patch, 2 * c.number("position_embedding_size", 10240))
    sizes = plain.layers, h, plain.intermediate, plain.heads, plain.inputs
    flags = {"gated": True, "bias": False, "norm_bias": False, "qk_norm": True, "patch_bias": False, "last_norm": False}
    vit = Vit(*sizes, plain.positions, c.number("head_dim", 0), norms=4, **flags)
    scaled: tuple[TowerTensor, ...] = (("projector.standard", (h,), 2),) if c.flag("standardize") else ()
    return tower(vit, patch, side * side, (*scaled, *chain("projector", (h, hidden), bias=False)))


def step_tower(c: Fields, hidden: int, bias: bool) -> Tower:
    """Step-3.7's: a perception encoder with scaled layers; two convolutions over 3 x 3 patches, each halving both sides."""
    c = c.with_(hidden_size=c.get("width") or c.get("hidden_size"), num_hidden_layers=c.get("layers") or c.get("num_hidden_layers"))
    c = c.with_(num_attention_heads=c.get("heads") or c.get("num_attention_heads"))
    h, patch, ratio = c.need("hidden_size"), c.need("patch_size"), c.get("mlp_ratio")
    if isinstance(ratio, (int, float)) and 0 < ratio < 1000:
        c = c.with_(intermediate_size=int(h * ratio))
    plain = _plain(c, patch, (c.need("image_size") // patch) ** 2)
    sizes = plain.layers, h, plain.intermediate, plain.heads, plain.inputs
    vit = Vit(*sizes, plain.positions, patch_bias=False, first_norm=True, last_norm=False)
    scales: TowerTensor = ("vision.scales", (h,), 2 * plain.layers)
    folded = (*_biased("projector.fold_0", (2 * h, 9 * h), 1), *_biased("projector.fold_1", (4 * h, 18 * h), 1))
    made = tower(vit, patch, 16, (*folded, *chain("projector", (4 * h, hidden), bias)))
    return replace(made, tensors=(*made.tensors, scales))
