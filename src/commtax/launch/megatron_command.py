"""Megatron-LM's command: degrees of the plan, the model's sizes, and how layers lie on stages."""

import itertools
import re
from collections.abc import Mapping

from commtax.cost.schedules import Layout, virtual_layers
from commtax.launch.flags import FlagReading, flags_of
from commtax.launch.jobs import Command, LaunchJob, above_one, count_ranks, global_batch, start
from commtax.spec import OVERLAPPED, Experts, Mlp, Model
from commtax.statement import Refusal

FLAGS = flags_of("megatron")
SCHEDULES = ("1f1b", "interleaved")
UNEVEN = ("first_layers", "last_layers", "embedding_counts", "loss_counts")
FORMATS = {"fp8": {"fp8": "hybrid"}, "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"}, "nvfp4": {"fp4": "e2m1"}}  # flags
MOST_LETTERS = 100_000  # that a layout of stages may spell out
LAYOUT_TOKEN = re.compile(r"\*[0-9]{1,9}|.", re.DOTALL)


def understand(reading: FlagReading, _loose: list[str], _env: Mapping[str, str]) -> None:
    """Read the sizes, the schedule and the optimiser of a Megatron-LM job. Its sizes name the model."""
    count_ranks(reading)
    values, tp = reading.values, int(reading.values.tp or 1)
    values.recompute = values.recompute or ("selective" if values.selective else "")
    if values.recompute == "selective" and values.modules not in ("", "core_attn"):
        values.recompute = values.modules
    eight = "mxfp8" if str(values.fp8_recipe) == "mxfp8" else "fp8"
    values.dtype = eight if str(values.fp8) else "nvfp4" if str(values.fp4) else ""
    values.zero = 1 if values.zero else 0
    chunks = _chunks(reading, int(values.pp or 1))
    values.chunks = ""
    if chunks > 1:
        values.chunks, values.schedule = chunks, "interleaved"
    if int(values.expert_tp or tp) != tp:
        reading.unread.append(f"--expert-tensor-parallel-size {values['expert_tp']}")
    values |= {"overlap_cp": True, "overlap_pp": chunks > 1 and not values.waits_pp}
    values.async_axes = ",".join(axis for axis in OVERLAPPED if values.get(f"overlap_{axis}"))
    if "expert_width" in values:  # beside dense layers, which have a width of their own
        values["width"] = values["expert_width"]


def _chunks(reading: FlagReading, pp: int) -> int:
    """Return the chunks a rank, stated in one of three ways, and note a split of layers other than the priced one."""
    layers, chunks, each = int(reading.values.layers or 0), int(reading.values.chunks or 1), int(reading.values.layers_a_chunk or 0)
    chunks = max(1, layers // pp // each) if each and layers else chunks
    stated: list[int] = []
    if "layout" in reading.values:
        layout = str(reading.values.layout)
        stated = [sum(column) for column in zip(*layout_of(layout, pp), strict=True)]
        chunks, layers = len(stages(layout)) // pp, layers or sum(stated)
    elif layers and pp > 1 and any(reading.values.get(name) for name in UNEVEN):
        usual = -(-layers // pp) - 1
        first = int(reading.values.first_layers or 0) or (usual if reading.values.embedding_counts else 0)
        last = int(reading.values.last_layers or 0) or (usual if reading.values.loss_counts else 0)
        inner = pp - bool(first) - bool(last)
        stated = [first] * bool(first) + [(layers - first - last) // max(1, inner)] * inner + [last] * bool(last)
    priced = [sum(column) for column in zip(*virtual_layers(layers, pp, chunks), strict=True)] if stated else []
    if sorted(stated) != sorted(priced):
        theirs, ours = ("+".join(map(str, sizes)) for sizes in (stated, priced))
        reading.note("stages", f"stages of {theirs} layers are asked for; priced as {ours}")
    return chunks


def stages(text: str) -> list[str]:
    """Return what each virtual stage of Megatron's ``--pipeline-model-parallel-layout`` holds, in the order of the model.

    ``E`` is the embedding, ``t`` a layer, ``m`` a layer of multi-token prediction, ``L`` head and loss; ``|`` ends a stage, ``*n``
    repeats the letter or the group before it, and commas only please the eye.

    >>> stages("Et*3|(tt|)*2L")
    ['Ettt', 'tt', 'tt', 'L']
    """
    letters: list[str] = []
    group, unit = 0, 0  # where a group began, how many letters a "*n" repeats
    for token in LAYOUT_TOKEN.findall(text):
        if token in "EtmL|":
            letters.append(token)
            unit = 1
        elif token == "(":
            group = len(letters)
        elif token == ")":
            unit = len(letters) - group
        elif token[0] == "*" and unit and len(token) > 1:
            last, times = letters[len(letters) - unit :], int(token[1:])
            if len(letters) + unit * times > MOST_LETTERS:
                raise Refusal(f"from: pipeline-model-parallel-layout spells out more than {MOST_LETTERS:,} letters", "from")
            letters[len(letters) - unit :] = last * times
            unit = 0
        elif token not in ", '\"":
            rule = "E, t, m, L, |, (…) and *n are known"
            raise Refusal(f"from: pipeline-model-parallel-layout '{text:.40}': {rule}, not '{token}'", "from")
    return "".join(letters).split("|")


def layout_of(text: str, pp: int) -> Layout:
    """Return the layers of each virtual stage, by chunk and rank."""
    virtual = stages(text)
    if len(virtual) % pp:
        raise Refusal(f"from: pipeline-model-parallel-layout has {len(virtual)} stages, which pp={pp} does not divide", "from")
    sizes = [stage.count("t") for stage in virtual]
    return tuple(tuple(sizes[i : i + pp]) for i in range(0, len(sizes), pp))


def layout_text(layout: Layout) -> str:
    """Return the layout as Megatron reads it, equal stages beside each other in one group.

    >>> layout_text(((3, 4, 4), (4, 4, 3)))
    'Ettt|(tttt|)*4tttL'
    """
    first, *inner, last = ("t" * size for chunk in layout for size in chunk)
    runs = [(stage, len(list(run))) for stage, run in itertools.groupby(inner)]
    return "".join([f"E{first}|", *(f"({stage}|)*{n}" if n > 1 else f"{stage}|" for stage, n in runs), f"{last}L"])


def write(job: LaunchJob) -> Command:
    """Write a Megatron-LM job: sizes of the plan, then the model's. Data and learning rate are left to the user."""
    plan, q = job.plan, job.question
    beside = q.what_if.beside(q.engine)
    if plan.zero > 1:
        raise Refusal.of(f"its optimiser is ZeRO 0 or 1, not {plan.zero}", emit="megatron")
    flags = FLAGS.spell(tp=int(plan.tp), pp=int(plan.pp), cp=above_one(plan.cp), ep=above_one(plan.ep))
    flags += FLAGS.spell(sequence_parallel=plan.sequence_parallel, zero=plan.zero == 1)
    granularity = "selective" if plan.remade else "" if plan.recompute == "none" else plan.recompute
    pp, chunks = int(plan.pp), plan.chunks if plan.schedule == "interleaved" else 1
    if pp > 1 and q.model.num_layers % (pp * chunks):  # stated one by one where they do not divide: Megatron refuses to guess
        flags += FLAGS.spell(layout=f"'{layout_text(virtual_layers(q.model.num_layers, pp, chunks))}'")
    elif pp > 1:
        flags += FLAGS.spell(chunks=above_one(chunks))
    flags += FLAGS.spell(recompute=granularity)
    flags += [f"--recompute-modules {' '.join(plan.remade)}"] * bool(plan.remade)
    flags += ["--recompute-method uniform --recompute-num-layers 1"] * (plan.recompute == "full")
    flags += FLAGS.spell(micro_batch=int(q.micro_batch), global_batch=global_batch(job), context=int(q.context))
    flags += ["--bf16", *FLAGS.spell(**FORMATS.get(plan.weights_dtype, {}))]
    dp, _, tp, ep, pp = (axis in beside for axis in OVERLAPPED)
    flags += [*FLAGS.spell(overlap_dp=dp), *["--overlap-param-gather"] * (dp and plan.zero == 1)]
    flags += FLAGS.spell(overlap_tp=tp, overlap_ep=ep, waits_pp=plan.chunks > 1 and not pp)
    unnamed = f"# no flag of Megatron-LM names the schedule {plan.schedule}: this runs 1F1B"
    named, model = plan.pp == 1 or plan.schedule in SCHEDULES, q.model
    shape = [*FLAGS.spell(layers=model.num_layers, hidden=model.hidden), *_attention(model), *_feed_forward(model)]
    shape += ["--position-embedding-type rope"] * (not model.positions) + ["--normalization RMSNorm"] * (not model.norm_bias)
    shape += ["--untie-embeddings-and-output-weights"] * (not model.tied)
    shape += FLAGS.spell(vocab=model.vocab, positions=model.max_len)
    return Command([start(job), "pretrain_gpt.py", *flags, *shape], warning="" if named else unnamed)


def _attention(model: Model) -> list[str]:
    attention = model.attention
    flags = FLAGS.spell(heads=attention.num_heads)
    if latent := attention.latent:
        flags += ["--multi-latent-attention"] + [f"--q-lora-rank {latent.q_rank}"] * (latent.q_rank > 1)
        flags.append(f"--kv-lora-rank {latent.kv_rank} --qk-head-dim {latent.nope_dim} --qk-pos-emb-head-dim {latent.rope_dim}")
        flags.append(f"--v-head-dim {attention.v_head_dim}")
    elif attention.num_kv_heads != attention.num_heads:
        flags += ["--group-query-attention", *FLAGS.spell(kv_heads=attention.num_kv_heads)]
    if not latent and attention.head_dim * attention.num_heads != model.hidden:
        flags.append(f"--kv-channels {attention.head_dim}")
    flags += ["--qk-layernorm"] * bool(attention.qk_norm or latent)
    return flags + ["--add-qkv-bias"] * (attention.qkv_bias and not attention.out_bias)


def _feed_forward(model: Model) -> list[str]:
    kinds = [f for i in model.layers if (f := model.blocks[i].ffn)]
    dense = next((f for f in kinds if isinstance(f, Mlp)), None)
    last, experts = kinds[-1], model.experts
    flags = FLAGS.spell(width=(dense or last).intermediate)
    if experts:
        flags += FLAGS.spell(experts=experts.num_experts, top_k=experts.top_k)
        flags += [f"--moe-shared-expert-intermediate-size {experts.shared_intermediate}"] * (experts.shared_intermediate > 1)
    if experts and dense:
        runs = itertools.groupby(isinstance(f, Experts) for f in kinds)
        freq = "+".join(f"[{int(routed)}]*{len(list(run))}" for routed, run in runs)
        flags += [*FLAGS.spell(expert_width=experts.intermediate), f"--moe-layer-freq '({freq})'"]
    bias = last.bias or model.attention.out_bias
    return flags + ["--swiglu"] * last.gated + ["--disable-bias-linear"] * (not bias)
