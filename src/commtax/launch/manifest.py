"""Servers that YAML describes: manifests of Kubernetes and Compose, values of charts, settings of an engine.

Whatever the kind of a document, a server is a container that starts one; what is stated outside its words (replicas, hosts,
GPUs, a role, a model, sizes) stands around it, and the nearest counts. Nothing here knows what flags mean."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace

from commtax.catalog.programs import programs
from commtax.catalog.technique_flags import tree_leaves
from commtax.files import Json, JsonObject, list_of, object_of, table, text_of
from commtax.launch.flags import flags_of
from commtax.launch.shell import assignments, script_of, split, substitute_variables
from commtax.records import dataclass
from commtax.statement import Refusal

MAX_SIGNS = 262_144
MAX_NODES = 50_000  # aliases may name each other many times over
MAX_DEPTH = 60
OPENS = re.compile(
    r"(?:\s*+(?:#[^\n]*+)?\n)*+\s*+(?:---|%YAML|\{\s*\"|- +[\w\"']+ *:\s|[\"']?[A-Za-z_][\w./-]*+[\"']?[ \t]*+:(?:\s|$))"
)
PLACE = re.compile(r"(?<![\"'`\w])\{\{[^{}\n]{0,200}\}\}")  # a placeholder; no YAML has one bare
ROLES = ("prefill", "decode")
GPUS = re.compile(r"(?:nvidia\.com/(?:gpu|mig-\S+)|amd\.com/gpu|gpu\.intel\.com/\S+|habana\.ai/gaudi|google\.com/tpu|gpu)")
_TABLE = table("launch/manifests.toml")
COUNTS, NAMES, MODELS, ENVIRONMENTS, SETTINGS, ARGUMENTS = (
    tuple(_TABLE[name].split()) for name in ("counts", "names", "models", "environments", "settings", "arguments")
)
NO_FLAGS = (*COUNTS, *NAMES, *MODELS, *_TABLE["no_flags"].split())
SKIPPED = frozenset(_TABLE["skipped"].split())
PRODUCTS = tuple(_TABLE["products"].split())
BESIDE = re.compile(_TABLE["beside"], re.I)


@dataclass(frozen=True, slots=True)
class DescribedServer:
    """A server as it is described: its words, or the script of its shell, and what stands around it."""

    name: str = ""
    engine: str = ""  # by its image or its kind; "" where only its words name it
    guessed: bool = False  # … or only the names of its settings
    image: str = ""
    words: tuple[str, ...] = ()
    script: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)  # fields of ours around it, which its words may leave out
    replicas: int = 1
    ordered: bool = False  # replicas that know their number, so that they may be hosts of one server
    hosts: int = 1
    gpus: int = 0  # of a host
    chip: str = ""  # as the label of its hosts calls it


def _engines(part: str) -> dict[str, str]:
    return {word: one.key for one in programs() for word in getattr(one, part)}


def is_manifest(text: str) -> bool:
    """Return whether a text opens as YAML does, and no command or script.

    >>> is_manifest("# a\\napiVersion: v1"), is_manifest("vllm serve x"), is_manifest("X=1\\nvllm serve x")
    (True, False, False)
    """
    return bool(OPENS.match(text[:10_000] + "\n"))


def read(text: str, source: str) -> tuple[list[DescribedServer], dict[str, str], int]:
    """Return the servers of all documents, files that stand in them by their name, and how many containers were looked at."""
    documents = [_merge_tree(d, [0], 0) for d in load_documents(text, source)]
    looked: list[JsonObject] = []
    served = [s for document in documents for s in _walk(document, DescribedServer(), "", looked)]
    files: dict[str, str] = {}
    for document in map(object_of, documents):
        data = object_of(document.get("data")) if document.get("kind") == "ConfigMap" else {}
        configs = {name: object_of(part).get("content") for name, part in object_of(document.get("configs")).items()}  # of Compose
        files |= {name: value for name, value in {**data, **configs}.items() if isinstance(value, str)}
    return served, files, len(looked)


def load_documents(text: str, source: str) -> list[Json]:
    """Return all documents as their authors wrote them, with text for keys: numbers are text too."""
    import yaml  # only for those who hand over YAML

    if len(text) > MAX_SIGNS:
        raise Refusal(f"from{source}: longer than {MAX_SIGNS:,} signs of YAML; hand over the part that starts the server", "from")
    loader, text, depth = getattr(yaml, "CBaseLoader", yaml.BaseLoader), PLACE.sub("$TEMPLATED", text), 0
    try:
        for event in yaml.parse(text, Loader=loader):  # before anything is made of it: the parser's stack has an end, and no guard
            kind = type(event).__name__
            depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
            if depth > MAX_DEPTH:
                deep = f"YAML nested deeper than {MAX_DEPTH}; hand over the part that starts the server"
                raise Refusal(f"from{source}: {deep}", "from")
        return list(yaml.load_all(text, Loader=loader))
    except Refusal:
        raise
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        advice = "; render a template first (helm template)" if "{{" in text else ""
        raise Refusal(f"from{source}: not valid YAML{where}{advice}", "from") from None


def _merge_tree(node: Json, seen: list[int], depth: int) -> Json:
    """Return the tree with what ``<<`` merges merged, and documents that stand in it as text read."""
    seen[0] += 1
    if seen[0] > MAX_NODES or depth > MAX_DEPTH:
        raise Refusal("from: more YAML than is read; hand over the part that starts the server", "from")
    if isinstance(node, list):
        return [_merge_tree(x, seen, depth + 1) for x in node]
    if not isinstance(node, dict):
        return node
    tree = {str(key): _merge_tree(value, seen, depth + 1) for key, value in node.items()}
    if isinstance(ray := tree.get("serveConfigV2"), str):  # Ray's settings inside its custom resource
        tree["serveConfigV2"] = [_merge_tree(d, seen, depth + 1) for d in load_documents(ray, "")]
    merged = tree.pop("<<", {})
    for part in merged if isinstance(merged, list) else [merged]:
        tree = {**part, **tree} if isinstance(part, dict) else tree
    return tree


def _walk(node: Json, around: DescribedServer, key: str, looked: list[JsonObject]) -> Iterator[DescribedServer]:
    if isinstance(node, list):
        for part in node:
            yield from _walk(part, around, key, looked)
        return
    if not isinstance(node, dict):
        return
    around = _server_inside(node, around, key)
    if _is_container(node, key):
        looked.append(node)
        if server := _server(node, around):
            yield server
            return
    # The other hosts of a server with a leader only repeat it, and are left out.
    skipped = SKIPPED | ({"workerTemplate"} if "leaderTemplate" in node else set())
    skipped |= {"worker", "workerSpec"} if "template" in node or "model" in node else set()
    below = {name: list(_walk(node[name], around, name, looked)) for name in node if name not in skipped}
    inner = any(below[name] for name in below if name not in ROLES)
    if around.engine and not inner and (node.get("parallelism") or isinstance(node.get("model"), dict)):
        yield replace(around, words=("serve",))  # an operator's own container, without a word of ours
    for served in below.values():
        yield from served


def _is_container(node: JsonObject, key: str) -> bool:
    words = any(name in node for name in ("args", "command", "entrypoint"))
    return (
        key in ("containers", "mainContainer", "container", *SETTINGS)
        or (words and any(name in node for name in ("image", "modelFormat", "engine", "repository")))
        or any(name in node for name in _engines("keys"))
        or any(name in object_of(node.get("image")) for name in ("command", "args"))
        or (isinstance(node.get("run"), str) and "resources" in node)
        or _is_settings(node)
    )


def _is_settings(node: JsonObject) -> bool:
    """Return whether a mapping's own keys are the first engine's flags, as in the file of its ``--config``."""
    flags = flags_of(programs()[0].key).flags
    fields = [flags.get(dash_key(name), ("", ""))[0] for name in node if "-" in name.replace("_", "-")]
    return any(name in _TABLE["telling"] for name in fields)


def dash_key(name: str) -> str:
    """Return a key in any spelling as flags have it.

    >>> dash_key("tensorParallelSize"), dash_key("max_model_len"), dash_key("enableLoRA")
    ('tensor-parallel-size', 'max-model-len', 'enable-lora')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name.replace("LoRA", "Lora")).replace("_", "-").lower().lstrip("-")


def _server_inside(node: JsonObject, around: DescribedServer, key: str) -> DescribedServer:
    if (role := _role(node, key)) and key in ROLES:  # a pool of its own: sizes of the pool beside it are not its own
        around = replace(around, replicas=1, stated={k: v for k, v in around.stated.items() if k == "model"})
    ours, parts = _TABLE["parallelism"], [object_of(node.get(name)) for name in ("parallelism", "workerSpec")]
    sizes = {ours[theirs]: str(value).lower() for part in parts for theirs, value in part.items() if theirs in ours}
    stated = {**around.stated, **{name: size for name, size in sizes.items() if size not in ("", "false")}}
    stated |= {name: word for name, word in (("role", role), ("model", _model(node))) if word}
    engine = _engines("kinds").get(str(node.get("kind")), "") or _engine(node) or around.engine
    env = {**around.env, **{k: v for name in ENVIRONMENTS for k, v in assignments(node.get(name)).items()}}
    hosts = _number(node, "size") if key == "leaderWorkerTemplate" else _number(node.get("multinode"), "nodeCount")
    hosts = hosts or _number(node.get("workerSpec"), "pipelineParallelSize")
    counted = [_number(node, name) for name in COUNTS if str(node.get(name, "")).isdigit()]
    chips = [label for name in PRODUCTS if isinstance(label := object_of(node.get("nodeSelector")).get(name), str)]
    counted += [_number(deploy, "replicas")] if "replicas" in (deploy := object_of(node.get("deploy"))) else []
    return replace(
        around,
        name=_name(node, key) or around.name,
        engine=engine,
        env=env,
        stated=stated,
        replicas=counted[0] if counted else around.replicas,
        ordered=around.ordered or node.get("kind") == "StatefulSet",
        hosts=hosts or around.hosts,
        gpus=_gpus(node) or around.gpus,
        chip=next(iter(chips), "") or around.chip,
    )


def _role(node: JsonObject, key: str) -> str:
    """Return what a mapping serves by its labels and names: prefill, decode, or "" where it says neither."""
    labels = [object_of(part.get("labels")) for part in (node, object_of(node.get("metadata")))]
    cached = str(object_of(node.get("lmcacheConfig")).get("kvRole"))
    words: list[Json] = [{"kv_producer": "prefill", "kv_consumer": "decode"}.get(cached, "")]
    words += [v for part in labels for k, v in part.items() if k.rpartition("/")[2] == "role"]
    words += [node.get(name) for name in ("subComponentType", "componentType", "type", "role", "name")] + [key]
    match = re.search("prefill|decode", " ".join(x for x in words if isinstance(x, str)), re.I)
    beside = isinstance(node.get("prefill"), dict) and "decode" not in node  # who has a pool for prompts decodes
    return match[0].lower() if match else "decode" if beside else ""


def _name(node: JsonObject, key: str) -> str:
    named = about if isinstance(about := node.get("metadata"), dict) else node
    names = [text for name in NAMES if isinstance(text := named.get(name), str)]
    listed = key if ("image" in node or "componentType" in node or "extraPodSpec" in node) and key not in ("containers", "") else ""
    return "" if key in ("containers", "mainContainer", "model", "metadata") else (listed or "".join(names[:1]))[:80]


def _model(node: JsonObject) -> str:
    """Return a model's name beside a container, its place on the Hub before any other."""
    parts = [node, *(object_of(node.get(k)) for k in ("model", "modelArtifacts", "model_loading_config"))]
    models = [model for part in parts for k in MODELS if isinstance(model := part.get(k), str)]
    hub = [m.partition("://")[2].partition(":")[0] for m in models if m.startswith(("hf://", "huggingface://"))]
    named = [name for part in parts[1:] if isinstance(name := part.get("name"), str)]
    return next(iter([*hub, *(m for m in models if "://" not in m), *named]), "") if models else ""


def _engine(node: JsonObject) -> str:
    words = [*map(node.get, ("engine", "modelCommand", "backendFramework")), object_of(node.get("modelFormat")).get("name")]
    named = [_engines("names").get(word.lower(), "") for word in words if isinstance(word, str)]
    keyed = [engine for key, engine in _engines("keys").items() if key in node]
    return next((engine for engine in (*named, *keyed) if engine), "")


def _server(node: JsonObject, around: DescribedServer) -> DescribedServer | None:
    """Return the server of a container, or None where it starts something else, or nothing that we read."""
    named, env = node.get("image", node), around.env
    image = text_of(named)
    if isinstance(named, dict) and isinstance(named.get("repository"), str) and isinstance(named.get("tag", ""), str):
        image = f"{named['repository']}:{named.get('tag', '')}"
    inner = {**node, **object_of(node.get("image"))}
    sizes = {theirs: around.stated[ours] for theirs, ours in _TABLE["sizes"].items() if ours in around.stated}
    hidden = {"LWS_GROUP_SIZE": str(around.hosts), **sizes}
    if around.gpus:
        hidden["SKYPILOT_NUM_GPUS_PER_NODE"] = str(around.gpus)
    variables = hidden | {k: substitute_variables(v, hidden | dict(env)) for k, v in env.items()}
    script, words = script_of([substitute_variables(w, variables) for w in _words(inner)])
    script = script or substitute_variables(text_of(node.get("run")), variables)
    if not words and not script and not _is_settings(inner) and not around.stated.get("model"):
        return None
    bare = image.partition("@")[0].rsplit(":", 1)[0] if ":" in image.rsplit("/", 1)[-1] else image
    engines = {} if BESIDE.search(bare.rsplit("/", 1)[-1]) else _engines("images")
    usual = "" if BESIDE.search(f"{node.get('name', '')} {image}") else around.engine
    engine = next((engine for part, engine in engines.items() if part in bare), usual)
    guessed = not engine and _is_settings(inner)
    engine = programs()[0].key if guessed else engine
    return replace(around, engine=engine, guessed=guessed, image=image, words=tuple(words), script=script, env=env)


def _words(node: JsonObject) -> list[str]:
    """Return the words of a container: of its program, of its arguments, of settings that become such."""
    words: list[str] = []
    for key in ("entrypoint", "command", "args"):
        value = node.get(key, "")
        words += split(value) if isinstance(value, str) else [w for w in list_of(value) if isinstance(w, str)]
    nested = flags_of(programs()[0].key).technique_flags  # such as speculative_config
    settings = [part for part in (*map(node.get, SETTINGS), node if _is_settings(node) else None) if isinstance(part, dict)]
    for name, value in (pair for part in settings for pair in part.items()):  # whether we read them or not
        if name in ("extraArgs", "args") and isinstance(value, list):
            words += [w for w in value if isinstance(w, str)]
        elif isinstance(value, str) and name not in NO_FLAGS and value.lower() not in ("false", ""):
            words += [f"--{dash_key(name)}"] if value.lower() == "true" else [f"--{dash_key(name)}={value}"]
        elif isinstance(value, dict) and dash_key(name) in nested:
            words.append(f"--{dash_key(name)}={json.dumps(value)}")
    for name, value in assignments(node.get("env")).items():
        words += split(value) if name in ARGUMENTS else []
    return words


def server_settings(engine: str, around: Mapping[str, str], env: dict[str, str]) -> dict[str, str]:
    """Return the settings around a server's words, by the fields of its engine, and take variables that set one out of ``env``."""
    flags, prefixes = flags_of(engine), "|".join(one.variables for one in programs() if one.variables)
    settings = {("mode" if name == "role" and "mode" in flags.written else name): value for name, value in around.items()}
    for name in [n for n, value in env.items() if "$" not in value and value]:
        field_, kind = flags.flags.get(dash_key(re.sub(rf"^(?:SM_)?(?:{prefixes})", "", name)), ("", ""))
        field_ = _TABLE["variables"].get(name) or (field_ if kind in ("int", "count", "share") and "_" in name else "")
        if field_ in flags.written:
            settings.setdefault(field_, env.pop(name))
    return {name: value for name, value in settings.items() if name in flags.written}


def _number(node: Json, name: str) -> int:
    text = node.get(name, "") if isinstance(node, dict) else ""
    return int(text) if isinstance(text, str) and re.fullmatch(r"[0-9]{1,6}", text) else 0


def _gpus(node: JsonObject) -> int:
    if count := _number(node, "requestGPU"):
        return count
    stated = node.get("resources")
    resources = stated if isinstance(stated, dict) else object_of(object_of(node.get("deploy")).get("resources"))
    chips = re.fullmatch(r"[^:]+:([0-9]{1,4})", str(resources.get("accelerators", "")))  # SkyPilot: H100:8
    counts = [int(chips[1])] if chips else []
    for part in (resources.get("limits"), resources.get("requests"), resources):
        counts += [_number(part, k) for k in part if GPUS.fullmatch(k)] if isinstance(part, dict) else []
    for device in list_of(object_of(resources.get("reservations")).get("devices")):
        ids = device.get("device_ids") if isinstance(device, dict) else None
        counts += [len(",".join(map(str, ids)).split(","))] if isinstance(ids, list) else [_number(device, "count")]
    return next((n for n in counts if n), 0)


LINE = re.compile(r"([ \t]*+)([\w-]++)[ \t]*+:(.*)")


def settings_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of settings and their values. Lines are read one by one, since placeholders are no YAML.

    >>> list(settings_of("a:\\n  b:\\n    c: 1  # one\\n  d: {e: 2}\\nf: null"))
    [('a.b.c', '1'), ('a.d.e', '2'), ('f', 'null')]
    """
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        indent = len(match[1])
        above = [(deep, key) for deep, key in above if deep < indent]
        value = re.sub(r"(?:^|\s)#.*", "", match[3]).strip()
        path = ".".join([*(key for _, key in above), match[2]])
        above.append((indent, match[2]))
        if value.startswith("{"):  # keys in one line
            tree: Json = value
            with suppress(Refusal):
                tree = next(iter(load_documents(value, "")), value)
            yield from ((".".join(keys), end) for keys, end in tree_leaves(tree, (path,)))
        elif value:
            yield path, value.strip("\"'")
