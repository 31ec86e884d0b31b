"""A pasted launch command, or the YAML that starts servers -> the plan, the limits and the engine in it, with variables, docker
around it, several lines. What is not understood is listed in ``unread``, never dropped."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from commtax.catalog.foreign_names import find_device_chip
from commtax.catalog.programs import programs
from commtax.files import ELSEWHERE, read_text
from commtax.launch import flags as flag_tables
from commtax.launch.flags import COMMON, LOAD, FlagReading, FlagValues, Launch, LaunchPlace, flag_name, flags_of, make_launch
from commtax.launch.manifest import DescribedServer, is_manifest, server_settings, settings_of
from commtax.launch.manifest import read as read_manifest
from commtax.launch.read_techniques import recognise, refuse_misspelt
from commtax.launch.shell import MAX_SIGNS, commands, keywords, split_here_documents
from commtax.redaction import redact
from commtax.statement import Note, Refusal

QUIET = tuple(COMMON["quiet"].split())  # beginnings of variables that are addresses, logs and places
NO_FILES: Mapping[str, str] = {}
Wanted = Callable[[str], bool]  # whether a model of this name is the requested one


class NothingLaunchedError(Refusal):
    """A text that starts no server or job that we read."""


def parse(text: str, source: str = "", wanted: Wanted | None = None, choice: str = "") -> Launch:
    """Read a command, a script with one, or YAML of servers, of which those called ``choice``, or of the ``wanted`` model, count.

    >>> launch = parse("CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-model-len 128k --foo 3")
    >>> launch.engine, launch.model, launch.options, launch.unread
    ('vllm', 'meta-llama/Llama-3.1-8B', {'tp': 2, 'max_model_len': 128000}, ('--foo 3',))
    """
    text = redact(text)
    if is_manifest(text):
        return _read_servers(text, f" '{source}'" if source else "", wanted, choice)
    if len(text) > MAX_SIGNS:
        raise Refusal(f"from: longer than {MAX_SIGNS:,} signs; paste the command that starts the engine alone", "from")
    for one in programs():
        if one.call and f"{one.call}(" in text:
            return _read(one.key, keywords(text, one.call), [], "", NO_FILES)
    script, written = split_here_documents(text)
    called, tables = list(commands(script)), [flags_of(one.key) for one in programs()]
    variables = {v for one in tables for v in (*one.libraries, *(key[1:] for key in one.technique_flags if key[0] == "$"))}
    exported = [word for args in called if args[0] == "export" for word in args[1:] if word.partition("=")[0] in variables]
    launches = [launch for args in called if (launch := _command([*exported, *args], written))]
    if not launches:  # a file is not quoted: it may be one that was named by mistake
        what = source or " ".join(text.split())[:60]
        raise NothingLaunchedError(f"from '{what}': no launch command found ({_program_names()})", "from")
    return _join_launches(launches)


def _program_names() -> str:
    *called, last = (one.called for one in programs())
    return f"{', '.join(called)} or {last}"


def _read_servers(text: str, source: str, wanted: Wanted | None, choice: str) -> Launch:
    served, files, looked = read_manifest(text, source)
    read = [(s, _server(s, files)) for s in served if s.replicas]
    launched = [(s.name, launch) for s, launch in read if launch]
    if not launched:
        seen = f"{looked} container{'s' * (looked != 1)} looked at" if looked else "it has no container"
        raise NothingLaunchedError(f"from{source}: this YAML starts no known server; {seen} (known: {_program_names()})", "from")
    names = [name for name, _ in launched]
    if choice and choice not in names:
        raise Refusal(f"from{source}: no server '{choice}'; it has {', '.join(dict.fromkeys(names))}", "from", names)
    chosen = [launch for name, launch in launched if (name == choice if choice else wanted and wanted(launch.model))]
    first = chosen[0] if chosen else launched[0][1]
    taken = [launch for _, launch in launched if launch.model == first.model]
    if any(x.servers.role == "prefill" for x in taken):  # those beside them decode, whatever their role says
        taken = [replace(x, servers=replace(x.servers, role=x.servers.role or "decode")) for x in taken]
    unlike = [(name or one.engine, one.model or "no model named") for name, one in launched if one.model != first.model]
    joined = _join_launches(chosen if choice else taken)
    if others := [f"{name} ({model})" for name, model in unlike]:
        more = f"servers of other models in the file are not in the answer: {', '.join(others)}; --from FILE#NAME takes one of them"
        joined = replace(joined, notes=(*joined.notes, Note("other models", more)))
    missed = [f"what starts {s.name or 'a container'} on {s.gpus} GPUs" for s, launch in read if s.gpus and not launch]
    joined = replace(joined, unread=(*joined.unread, *dict.fromkeys(missed)))
    return replace(joined, place=LaunchPlace(chip=joined.place.chip)) if joined.servers.prefill_workers else joined


def _server(served: DescribedServer, files: Mapping[str, str]) -> Launch | None:
    script, written = split_here_documents(served.script)
    for call in commands(script) if served.script else [list(served.words)]:
        launch = _command(call, {**files, **written}, served)
        if launch and not _is_bench(launch):
            nnodes = launch.place.nnodes or served.hosts
            count = -(-served.replicas // nnodes) if served.ordered else served.replicas if launch.phase == "serve" else 1
            chip = find_device_chip(re.sub("[-_]", " ", served.chip)) if served.chip else ""
            here = replace(launch.place, nnodes=nnodes if nnodes > 1 and count == 1 else None, chip=chip)
            launch = replace(launch, servers=replace(launch.servers, count=count), place=here)
            if served.guessed:
                guess = f"settings named as {launch.engine}'s flags, and no command that says so: taken for {launch.engine}"
                launch = replace(launch, notes=(*launch.notes, Note("assumed engine", guess)))
            used, requested = launch.num_gpus // count, served.gpus * nnodes
            if not served.gpus or used == requested:
                return launch
            differs = f"each server asks for {requested} GPU{'s' * (requested != 1)}, and its plan uses {used}"
            return replace(launch, notes=(*launch.notes, Note("GPUs asked for", differs)))
    return None


def _command(args: list[str], written: Mapping[str, str], served: DescribedServer | None = None) -> Launch | None:
    images = {one.image: one.key for one in programs() if one.image}
    image = served.image if served else next((w for w in args if any(i in w for i in images) and not w.startswith("-")), "")
    official = any(i in image for i in images)
    version = re.search(r":v?(\d+(?:\.\d+)+\w*)$", image[-100:]) if official else None
    last = max((at for at in range(len(args)) if _program(args, at)[1]), default=-1)
    for at, word in enumerate(args):
        engine, skip = _program(args, at)
        if not skip and official and word == image and at > last:
            engine, skip = next(e for i, e in images.items() if i in image), 1  # the image's entry point is the server
        if skip:
            launch = _read(engine, args[at + skip :], args[:at], version[1] if version else "", written, served)
            return replace(launch, client=any(client in " ".join(args[at : at + skip]) for client in COMMON["clients"]))
    # Words may be arguments of the entry point of its image: flags, or a model and flags.
    are_flags = not args or args[0] == "serve" or re.match(r"-|[\w.-]{1,99}/[\w.-]{1,99}$", args[0])
    if served and served.engine and not served.script and are_flags:
        return _read(served.engine, [w for w in args if w != "serve"], [], version[1] if version else "", written, served)
    return None


def _program(args: list[str], at: int) -> tuple[str, int]:
    """Return the program that starts at a word, and how many words name it (0: none)."""
    word, following = args[at].rsplit("/", 1)[-1], args[at + 1] if at + 1 < len(args) else ""
    for program, starts in (*((one.key, one.starts) for one in programs()), ("torchrun", COMMON["torchrun"]["starts"])):
        for first, then, count in starts:
            if word == first and (following.startswith(then) if first == "-m" else following == then or not then):
                return program, count
    return "", 0


def _read(
    engine: str, args: list[str], before: list[str], version: str, written: Mapping[str, str], served: DescribedServer | None = None
) -> Launch:
    reading, env = FlagReading(), dict(served.env) if served else {}
    env |= dict(w.split("=", 1) for w in before if re.match(r"[A-Za-z_]\w*=", w))
    if engine == "torchrun":
        engine, args = _split_torchrun(args, reading)
    flags, settings = flags_of(engine), server_settings(engine, served.stated, env) if served else {}
    libraries = {name: words for name, words in flags.libraries.items() if env.get(name, "").upper() in words}
    for name, words in libraries.items():
        reading.values.library = words[env[name].upper()] or reading.values.library
    understood = [k for k, v in env.items() if reading.keep_words(flags, f"${k}", v, f"{k}={v}") or k in libraries]
    loud = (*COMMON["loud"].split(), *(one.variables for one in programs() if one.variables))
    reading.unread += [f"{k}={v}" for k, v in env.items() if k.startswith(loud) and not k.startswith(QUIET) and k not in understood]
    loose = reading.take(args, flags)
    model = str(reading.values.model) or next((w for w in loose if w not in COMMON["subcommands"]), "")
    if settings.get("model") and (not model or model.startswith(ELSEWHERE) or "://" in model):
        reading.values["model"] = settings["model"]
    missing = [(name, value) for name, value in settings.items() if name != "model" and name not in reading.values]
    reading.take([f"--{flags.written[name]}={value}" for name, value in missing], flags)
    for field, named in (("file", "--config"), ("balancer", "load_balancer")):  # the first may name the second
        if field in reading.values:
            file = str(reading.values.pop(field))
            text = written.get(file, written.get(file.rsplit("/", 1)[-1]))
            if text is None and os.path.exists(file):
                text = read_text(file, f"from: {named}")
            reading.unread += [f"{named} {file} (no such file here)"] if text is None else []
            reading.take([f"--{path}={value}" for path, value in settings_of(text or "")], flags)
    behind = "".join(re.split(r"\b(?:srun|salloc)\b", " ".join(before), maxsplit=1)[1:])  # a job launcher in front
    if (nodes := re.search(r"(?:-N|--nodes)[= ](\d{1,9})\b", behind)) and int(nodes[1]):
        reading.values.setdefault("nnodes", int(nodes[1]))
    recognise(engine, reading)
    launch = make_launch(engine, reading, loose, env)
    refuse_misspelt(engine, launch.unread)
    devices = env.get("CUDA_VISIBLE_DEVICES")
    place = replace(launch.place, devices=tuple(devices.split(",")) if devices and launch.phase == "serve" else ())
    return replace(launch, version=version, place=place)


def from_settings(engine: str, settings: Mapping[str, str], version: str = "") -> Launch:
    """Return the launch that a server's own settings describe, as its log or its answer to ``/get_server_info`` has them.

    >>> from_settings("vllm", {"model": "m", "tensor_parallel_size": "4", "enforce_eager": "False", "seed": "0"}).options
    {'tp': 4}
    """
    flags = {**flags_of(engine).flags, **flags_of(engine).technique_flags}
    words = {flag_name(name): value for name, value in settings.items() if value not in ("", "None")}
    return _read(engine, [f"--{flag}={value}" for flag, value in words.items() if flag in flags], [], version, NO_FILES)


def _split_torchrun(args: list[str], reading: FlagReading) -> tuple[str, list[str]]:
    at = 0
    while at < len(args) and args[at].startswith("-"):
        flag, equals, value = args[at].partition("=")
        name = flag_name(flag)
        if name in flag_tables.TORCHRUN.flags:
            reading.values[flag_tables.TORCHRUN.flags[name][0]] = value or (args[at + 1] if at + 1 < len(args) else "")
        at += 1 if equals or name in COMMON["torchrun"]["switches"].split() else 2
    program = args[at] if at < len(args) else ""
    started = [one for one in programs() if one.script]
    named = [one for one in started if re.search(one.script, program)]
    flagged = (one for one in started if one.script_flag and any(one.script_flag in flag_name(word) for word in args))
    if one := next(iter((*named, *flagged)), None):
        return one.key, args[at + 1 :]
    rule = " nor ".join(one.script_named for one in started)
    raise Refusal(f"from: torchrun starts '{program}', which is neither {rule}", "from")


def _join_launches(launches: list[Launch]) -> Launch:
    """Join launches: count equal servers, add a benchmark's lengths, and pair servers for prompts with those that decode."""
    bench = next((x for x in launches if _is_bench(x)), None)
    servers = [x for x in launches if x is not bench] or launches
    ahead = [x for x in servers if x.servers.role == "prefill"]
    decoding = [x for x in servers if x.servers.role != "prefill"] or ahead
    first, left = _count_equal_servers(decoding)
    if ahead and first.servers.role == "decode":
        prompts, others = _count_equal_servers(ahead)
        left += others
        tp, dp, count = int(prompts.options.tp or 1), int(prompts.options.dp or 1), prompts.servers.count
        first = replace(first, servers=replace(first.servers, prefill_tp=tp, prefill_dp=dp, prefill_workers=count))
    elif decoding is not ahead:
        left += ahead
    if left:
        remark = f"not in the answer: {len(left)} other server{'s' * (len(left) != 1)} beside it, of other sizes or settings"
        first = replace(first, notes=(*first.notes, Note("other servers", remark)))
    if bench is None or bench in servers:
        return first
    load = {name: value for name, value in bench.options.items() if name in LOAD}
    return replace(first, options=FlagValues(_options_without_load(first) | load))


def _is_bench(launch: Launch) -> bool:
    return launch.client or bool(launch.options.concurrency or launch.options.request_rate)


def _count_equal_servers(launches: list[Launch]) -> tuple[Launch, list[Launch]]:
    """Return the first of several servers with the number of its equals, and the others. Clients are no servers."""
    first = next((x for x in launches if not _is_bench(x)), launches[0])
    alike = [x for x in launches if _common_part(x) == _common_part(first)]
    others = [x for x in launches if _common_part(x) != _common_part(first) and not _is_bench(x)]
    parts = (first.place.nnodes or 1) > 1 and bool(first.place.address)  # commands of one job meet at one address
    count = len({x.place.address for x in alike}) if parts else sum(x.servers.count for x in alike)
    if count < 2 or first.phase == "train":  # one job, whose hosts are all started by the same command
        return first, others
    return replace(first, servers=replace(first.servers, count=count), place=replace(first.place, devices=())), others


def _common_part(launch: Launch) -> Launch:
    one, here = replace(launch.servers, count=1), launch.place
    return replace(launch, place=LaunchPlace(here.nnodes, here.gpus_per_node), options=_options_without_load(launch), servers=one)


def _options_without_load(launch: Launch) -> FlagValues:
    return FlagValues({name: value for name, value in launch.options.items() if name not in LOAD})
