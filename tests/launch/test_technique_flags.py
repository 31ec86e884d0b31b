"""Flags of techniques: read in every spelling, written, and read back; what flags say is read by attribute."""

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax import catalog
from commtax.catalog.programs import flag_table, programs
from commtax.catalog.technique_flags import OF_REQUESTS, flag_text, flag_words, is_carrier, place_value, untold_fields
from commtax.catalog.techniques import changes_of, technique, techniques
from commtax.launch.flags import TORCHRUN, flags_of
from commtax.launch.launch_options import options_of
from commtax.launch.read_command import parse
from commtax.launch.read_techniques import TABLE, unread_remarks
from commtax.launch.writing import apart_command, launch_command
from commtax.options import options
from commtax.question import Question
from commtax.spec import Plan
from paths import SOURCE
from source import nodes
from tables import tables

ENGINES = ("vllm", "sglang", "trtllm")
DATA = tables(__file__)
MODEL, CLUSTER = catalog.model("deepseek-v3"), catalog.cluster("8xh200-sxm")
WIDE = catalog.cluster("2x8xh200-sxm")
SERVED = [one for one in techniques().values() if not is_carrier(one)]
FILES = [*sorted((SOURCE / "launch").glob("*.py")), SOURCE / "runs" / "logs" / "training_audit.py", SOURCE / "cli" / "pasting.py"]
HOLDERS = ("values", "options")


def asked(names, engine="vllm", **plan):
    """A question with techniques on; those that its engine has no flag for are refused when it is written."""
    return Question(MODEL, CLUSTER, catalog.engine(engine), Plan(**plan)).but(**changes_of(names))


def read_back(question, launch):
    told, fields = dict(launch.options), {name: option.key for name, option in options().items() if option.field}
    if "slots" in told or launch.slots:
        told["redundant_experts"] = launch.slots - question.model.experts.num_experts
    plain = Question(question.model, question.cluster, question.engine, Plan())
    changes = changes_of(str(told.pop("technique"))) if "technique" in told else {}
    return plain.but(**{fields[name]: value for name, value in told.items() if name in fields and value != -1}, **changes)


@pytest.mark.parametrize("case", DATA["read"], ids=lambda case: case["says"][:60])
def test_flags_are_read_in_every_spelling(case):
    head, settings_of = DATA["heads"][case["engine"]], case.get("settings", "")
    text = f"{case.get('before', '')} {head} {case['says']}"
    found = parse(f"cat > a.yml <<EOF\n{settings_of}\nEOF\n{text} --config a.yml" if settings_of else text)
    told = {name: value for name, value in found.options.items() if name not in ("tp", "dp", "ep") or name in case["means"]}
    assert (told, found.unread) == (case["means"], tuple(case.get("unread", ())))


def rivals(one):
    """What only one of several techniques can say: who drafts, from how many tokens sequences are split, or the same fields."""
    alone = [name for name in ("drafter", "sequence_tokens") if name in one.sets]
    return tuple(alone) or (*one.sets, *one.takes)


@st.composite
def asked_of_engines(draw):
    engine = draw(st.sampled_from(ENGINES))
    known = [one for one in SERVED if one.flags.get(engine)]
    chosen = draw(st.lists(st.sampled_from(known), max_size=4, unique_by=rivals))
    values = {"dcp": st.sampled_from([2, 4]), "cp": st.just(2), "speculative": st.integers(1, 9)}
    values["draft_model"] = st.just("someone/drafter")
    words = []
    for one in chosen:
        needed = [name for name in one.takes if not name.endswith("?")]
        given = [str(draw(st.sampled_from(sorted(one.words)) if one.words else values[name])) for name in needed]
        if {"redundant_experts?", "two_batches_from?", "sequence_tokens?"} & {*one.takes}:
            given = draw(st.sampled_from([[], ["32"]]))
        words.append(f"{one.key}={':'.join(given)}" if given else one.key)
    return engine, ",".join(words) or "none"


@given(asked_of_engines())
@settings(max_examples=150, deadline=None)
def test_what_is_written_reads_back_as_the_same_techniques(drawn):
    engine, names = drawn
    question = asked(names, engine, tp=4, dp=2, ep=8) if engine != "trtllm" else asked(names, engine, tp=8)
    launch = parse(launch_command(question.but(cluster=WIDE), engine))
    again = read_back(question, launch)
    untold = {name for one in techniques().values() for name, _ in untold_fields(one, engine, question)}
    for one in SERVED:
        for name in {*one.sets, *(taken.strip("?") for taken in one.takes)} - untold - {*OF_REQUESTS}:
            assert place_value(again, name) == place_value(question, name), (name, names)
    assert not launch.unread


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("carrier", ["nixl", "mooncake", "nccl"])
def test_what_carries_caches_is_told_to_both_kinds_of_servers(engine, carrier):
    if engine != "vllm" and carrier == "nccl":
        return  # which they do not have
    question = asked(f"kv-transfer={carrier}", engine, tp=2).but(
        disaggregated=True, prefill_workers=1, decode_workers=2, prefill_tp=2
    )
    found = parse(apart_command(question, engine))
    assert found.servers.prefill_workers == 1
    usual = (engine, carrier) == ("vllm", "nixl")  # which every command of vLLM names
    assert options_of(found, several=True).get("technique") == (None if usual else f"kv-transfer={carrier}")
    assert "technique" not in options_of(found, several=False), "one server's caches go nowhere"


def test_a_drafter_that_nobody_named_is_to_be_put_in():
    for engine in ENGINES:
        written = launch_command(asked("eagle3=3", tp=8), engine)
        assert "\n# put the name of yours for DRAFT_MODEL" in written
        assert parse(written).options["technique"] == "eagle3=3"
    told = launch_command(asked("dbo=64", "sglang", dp=8, ep=8), "sglang")
    assert "\n# no flag of SGLang says two batches from: 64" in told


def test_a_model_that_drafts_is_written_as_the_hub_knows_it():
    for engine in ("vllm", "sglang"):
        written = launch_command(asked("draft=llama-3.2-1b:3", engine, tp=8), engine)
        assert "meta-llama/Llama-3.2-1B" in written
        assert "llama-3.2-1b" not in written
        nameless = launch_command(asked("draft=gpt-3-175b:3", engine, tp=8), engine)
        assert "\n# no Hugging Face name of gpt-3-175b is known: put the name of yours for DRAFT_MODEL" in nameless
        assert "'/my drafter'" in launch_command(asked("draft=/my drafter:3", "sglang", tp=8), "sglang")


@pytest.mark.parametrize(
    ("names", "engine"), [("dbo", "trtllm"), ("async-tp", "sglang"), ("quickreduce=int4", "trtllm"), ("sbo", "vllm")]
)
def test_an_engine_without_a_flag_refuses_to_be_written(names, engine):
    with pytest.raises(ValueError, match="has no flag for") as refused:
        launch_command(asked(names, tp=8), engine)
    assert "\n" not in str(refused.value)


def test_a_plan_that_splits_sequences_is_told_so():
    assert '"enable_sp": true' in launch_command(asked("none", tp=8).but(sequence_parallel=True), "vllm")


def test_a_line_for_people_is_what_is_written():
    question = asked("mtp=3,fused-allreduce,quickreduce=int4,fp8-kv,eplb=32", tp=8)
    lines = {(key, engine): flag_text([technique(key)], engine, question) for key, engine in DATA["lines_of"]}
    assert tuple(lines.values()) == DATA["lines"]
    other = catalog.engine("vllm-rocm")  # whose command is vLLM's
    assert flag_text([technique("quickreduce")], other.key, question.but(engine=other)).endswith("=INT4")


def test_every_text_says_what_is_known():
    """A place is a field of the question, and other spellings are of flags that techniques have."""
    question = asked("none", tp=8)
    for engine in ENGINES:
        words = [word for one in techniques().values() for word in flag_words(one.flags.get(engine, ""))]
        places = {word.place[0] for word in words if word.place} - {"draft_model"}
        assert all(place_value(question, name) is not None for name in places)
        keys = {word.key for word in words} | {word.key.partition(".")[0] for word in words} | set(flags_of(engine).flags)
        spelled = [*flag_table(engine)["same"].values(), *flag_table(engine)["words"]]
        known = [key for key in spelled if key in keys or key in TABLE[engine]]
        assert known == spelled


def test_a_flag_that_no_price_has_is_named_with_what_it_would_have_changed():
    pasted = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --dbo-prefill-token-threshold 512 --foo 3 -O3"
    done = run_here("bill", "--from", pasted, "--cluster", "8xh200-sxm")
    assert done.returncode == 0, done.stderr
    assert "not understood, and not in the answer: --foo 3" in done.stdout.replace("\n", " ")
    strange, known = unread_remarks("vllm", parse(pasted).unread)
    assert strange.endswith(": --foo 3")
    assert "--dbo-prefill-token-threshold 512 (from how many tokens prompts are cut into two halves), -O3 (" in known
    own = [phrase for phrases in TABLE.values() for phrase in phrases.values()]
    assert all(phrase and not phrase.endswith(".") for phrase in own)


def test_forced_kernels_lead_what_weighs_settings():
    pasted = "vllm serve meta-llama/Llama-3.1-8B --attention-backend FLEX_ATTENTION --swap-space 4"
    lead, rest = unread_remarks("vllm", parse(pasted).unread)
    assert lead == (
        "may cost, and not in the answer: --attention-backend FLEX_ATTENTION (whose attention kernels run; "
        "the engine's usual ones are priced)"
    )
    assert rest.startswith("not in the answer: --swap-space 4 (")
    for verb, first in (("worth", True), ("bill", False)):
        out = run_here(verb, "--from", pasted, "--cluster", "1xh100-sxm").stdout
        assert out.startswith("may cost") == first
        assert "FLEX_ATTENTION" in out


@pytest.mark.parametrize("launch", ["vllm serve m --no-enable-prefix-caching", "sglang serve m --disable-radix-cache"])
def test_prefix_caching_that_is_off_is_read(launch):
    assert parse(launch.replace("sglang serve m", "python -m sglang.launch_server --model-path m")).options["prefix_cache"] == 0


def test_settings_of_a_chart_are_flags_too():
    own = "tensorParallelSize: 2, enableDbo: true, speculativeConfig: {method: ngram, num_speculative_tokens: 4}"
    chart = f"servingEngineSpec:\n  modelSpec:\n  - name: x\n    modelURL: meta-llama/Llama-3.1-8B\n    vllmConfig: {{{own}}}"
    found = parse(chart)
    assert (found.options["tp"], found.options["technique"], found.unread) == (2, "dbo,ngram=4", ())


@pytest.mark.parametrize("text", ["-dcp banana", "--speculative-config.method mtp --speculative-config.num_speculative_tokens x"])
def test_a_number_that_is_none_is_refused_by_its_flag(text):
    with pytest.raises(ValueError, match=r"from: .*a whole number is needed"):
        parse(f"vllm serve m -tp 8 {text}")


@pytest.mark.parametrize("flag", ["--speculative-config", "-sc", "--compilation-config", "--eplb-config"])
@pytest.mark.parametrize(("value", "said"), DATA["broken_json_is_refused_by_its_flag_and_place"])
def test_broken_json_is_refused_by_its_flag_and_place(flag, value, said):
    done = run_here("bill", "--cluster", "8xh200-sxm", "--from", f"vllm serve deepseek-ai/DeepSeek-V3 -tp 8 {flag} {value}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: from: '{flag}': not JSON: ")
    assert done.stderr.endswith(f"{said}\n")


def test_settings_may_be_told_as_yaml_has_them():
    words = flag_words("context_parallel_size: {dcp} and cp_config.cp_type: HELIX")
    assert [(word.kind, word.key, word.value) for word in words] == [
        ("setting", "context-parallel-size", "<dcp>"),
        ("setting", "cp-config.cp-type", "HELIX"),
    ]


def names_in(tree):
    """Names that a source reads off what flags say, and those that it sets."""
    reads, sets = set(), set()
    for node in tree:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FlagValues":
            sets |= {word.arg for word in node.keywords}
        elif isinstance(node, ast.Attribute) and (getattr(node.value, "attr", "") or getattr(node.value, "id", "")) in HOLDERS:
            (reads if isinstance(node.ctx, ast.Load) else sets).add(node.attr)
    return reads - set(dir(dict)), sets


def test_every_name_that_is_read_is_one_that_something_sets():
    found = [names_in(nodes(path)) for path in FILES]
    read, known = (set().union(*names) for names in zip(*found, strict=True))
    tables = [TORCHRUN, *(flags_of(one.key) for one in programs())]
    known |= {name for table in tables for name, _ in table.flags.values()}
    assert len(read) > 40
    assert read <= known | set(options())


def test_a_misspelt_name_is_seen():
    reads, sets = names_in(ast.walk(ast.parse("values.eagre or reading.values.tp\nreading.values.dp = 1")))
    assert (reads, sets) == ({"eagre", "tp"}, {"dp"})
