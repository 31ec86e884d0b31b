"""Chips and models as drivers, logs and tables spell them, by the words of their names in any order; clusters as people do."""

import re
from functools import lru_cache
from typing import Any

from commtax.catalog import loader
from commtax.catalog.hardware import chip
from commtax.catalog.loader import find, letters_and_digits, normal, stems
from commtax.shipped_tables import table

COUNT = re.compile(r"(?<![a-z0-9])(?:\d+ ?x ?)+(?=[a-z])|(?<=\d)x\d+(?![a-z0-9])")  # how many there are: ``8xH100``, ``h100x8``
MEMORY = re.compile(r"(?<![a-z0-9])(\d{2,3}) ?(?:gb|gib|g)(?![a-z0-9])")
BARE_MEMORY = re.compile(r"(?<=[a-z0-9])[- ](\d{2,3})(?=[- ]|$)(?! ?(?:gpu|card|rank|host|node))")  # GB: a100-40-sxm


@lru_cache(maxsize=4096)
def find_chip_name(text: str) -> str:
    """Return the catalogue's key of the chip that a text names, or "" where it names none.

    >>> [find_chip_name(name) for name in ("NVIDIA GB200 NVL72", "b200_sxm", "8xH100-SXM", "NVIDIA GB10", "rtx_pro_6000_server")]
    ['gb200', 'b200-sxm', 'h100-sxm', 'gb10', 'rtx-pro-6000-server']
    >>> [find_chip_name(name) for name in ("NVIDIA A100-PCIE-40GB", "RTX PRO 6000 Blackwell Server Edition", "MI300X_VF")]
    ['a100-40-pcie', 'rtx-pro-6000-server', 'mi300x']
    """
    plain, patterns = text.lower().replace("_", " "), _spellings()["chips"]  # words which are no name of it in the catalogue
    match = next((key for pattern, key in patterns if re.search(f"(?<![a-wyz0-9])(?:{pattern})", plain)), "")
    return match or _by_words(text)


@lru_cache(maxsize=4096)
def find_device_chip(text: str) -> str:
    """Return the catalogue's key of the chip that a driver calls so, or "" where a word fits none (tables are read more freely).

    >>> [find_device_chip(f"NVIDIA {name}") for name in ("A100-SXM4-80GB", "GeForce RTX 2080 Ti", "GeForce RTX 3090 Ti", "L40S")]
    ['a100-80-sxm', '', '', 'l40s']
    """
    if not (key := _by_words(text)):
        return ""
    names = (text, key, chip(key).name, *chip(key).aliases)
    stated, *allowed = ({re.sub(r"^sxm\d$", "sxm", word) for word in _words(name)} for name in names)  # of whatever generation
    return key if stated <= set(_spellings()["device_words"]).union(*allowed) else ""


def _by_words(text: str) -> str:
    words, (by_letters, by_words) = _words(text), _chip_names()
    if spelled := by_letters.get(letters_and_digits(COUNT.sub("", text.lower()))):
        return spelled
    matches = [(name, key) for name, key in by_words if set(name) <= set(words)]
    # The name of most words is the nearest one; of two chips the one that is told first.
    return min(matches, key=lambda one: (-len(one[0]), min(map(words.index, one[0]))), default=((), ""))[1]


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a name in lower case, without counts, memory as ``80gb``."""
    plain = MEMORY.sub(r"\1gb", COUNT.sub(" ", text.lower().replace("_", "-")))
    return tuple(word for word in re.split(r"[^a-z0-9]+", BARE_MEMORY.sub(r"-\1gb", plain)) if word)


@lru_cache(maxsize=1)
def _chip_names() -> tuple[dict[str, str], tuple[tuple[tuple[str, ...], str], ...]]:
    """Return chips by their names' letters, and by their words, without hosts that have none, which are no chips of a table."""
    names = [(name, key) for key in stems("chips") if chip(key).vendor != "generic" for name in (key, *chip(key).aliases)]
    by_words = tuple(dict.fromkeys((_words(name), key) for name, key in names))
    return {letters_and_digits(name.lower()): key for name, key in names}, by_words


@lru_cache(maxsize=256)
def model_key(name: str) -> str:
    """Return the catalogue's key of a model, or "" where none has that name, or several begin with it.

    >>> [model_key(name) for name in ("LLAMA3_70B", "DeepSeekV3 (w/o MTP)", "Qwen3_30B_a3B", "GPT OSS 120B", "Nemotron_3_Nano")]
    ['llama-3.1-70b', 'deepseek-v3', 'qwen3-30b-a3b', 'gpt-oss-120b', 'nemotron-3-nano-30b-a3b']
    """
    plain = letters_and_digits(re.sub(r"\(.*?\)", "", name.lower()))
    by_letters = {letters_and_digits(key): key for key in stems("models")}
    if key := _spellings()["models"].get(plain) or by_letters.get(plain):
        return str(key)
    begun = [key for letters, key in by_letters.items() if letters.startswith(plain)]
    return begun[0] if len(begun) == 1 and any(c.isdigit() for c in plain) else ""


@lru_cache(maxsize=1)
def _spellings() -> dict[str, Any]:
    return table("catalog/foreign_names.toml")


HOST = r"(?:node|host|server|machine|instance|system|box)(?:e?s)?\b"
HOSTS = re.compile(rf"(x )?\b(\d{{1,7}}) (?:x )?{HOST}( (?:of|with|x)\b)?")
EACH = re.compile(rf"\beach\b|(?:\bper |/ ?){HOST}( x\b)?")
FILLERS = re.compile(r"\b(?:gpus?|an?|the|nvidia|amd|instinct)\b|[,;()]")
COUNTED = (
    re.compile(r"()()([a-z0-9].*?) ?([x:] ?\d{1,7})"),
    re.compile(r"(?:(\d{1,7})(?: ?[x:] ?| ))?(?:(\d{1,7})(?: ?[x:-] ?| |(?=[a-z])))?((?<!\d)\d{4}|[a-z].*)()"),
)  # a count behind a name, and counts before it
LONGEST = 100  # signs of a text that may mean something


def usual_spellings(text: str) -> list[str]:
    """List what a text may mean, in counts and a name of the catalogue: several where in doubt, none where nothing matches.

    >>> [usual_spellings(text) for text in ("16 h100", "H100 x16", "2 nodes of 8 H200 SXM", "2x dgx-h100", "2x1xdgx-spark")]
    [['16xh100'], ['16xh100'], ['2x8xh200-sxm'], ['2xdgx-h100'], ['2xdgx-spark']]
    >>> usual_spellings("dgx-h100 x8"), usual_spellings("2 h100 nodes"), usual_spellings("16 h100 on 2 nodes")
    (['8xdgx-h100', 'dgx-h100'], ['2x8xh100', '2x1xh100'], [])
    """
    written = re.sub("[×*]", "x", text.lower().replace("_", "-"))
    plain = " ".join(FILLERS.sub(" ", written).split()) if len(text) < LONGEST and written.isascii() else ""
    hosts, each = HOSTS.search(plain), EACH.search(plain)
    rest = " ".join(EACH.sub(" ", HOSTS.sub(" ", plain)).split())
    for form in COUNTED:
        if match := form.fullmatch(re.sub(rf" {HOST}$", "", rest)):
            first, second, name, behind = match.groups()
            counts = [int(count.strip("x: ")) for count in (hosts[2] if hosts else "", first, second, behind) if count]
            joined = not hosts or len(counts) < 2 or bool(each or hosts[1] or hosts[3])
            if joined and all(counts) and (meant := _meant(counts, name, bool(behind), rest != match.string)):
                return meant
    return []


def _meant(counts: list[int], name: str, behind: bool, hosts: bool) -> list[str]:
    """Return hosts of a catalogued name, or GPUs: two counts are hosts and GPUs, one is of whatever has the name."""
    if stem := find("clusters", name):
        host = loader.table("clusters", stem)
        per_host, whole = host["gpus_per_host"][0], f"{counts[0]}x{stem}" if counts else stem
        if len(counts) == 1 and behind and counts[0] == per_host > 1:
            return [whole, stem]
        return [whole] if len(counts) < 2 or counts[1:] == [per_host] else [whole, f"{counts[0]}x{counts[1]}x{host['chip']}"]
    key = next((n for n in (normal(name), normal(name.removesuffix("s"))) if find("chips", n)), "") or find_device_chip(name)
    if not key or len(counts) > 2:
        return []
    if hosts and len(counts) == 1:
        return [f"{counts[0]}x{chip(key).gpus_per_host}x{key}", f"{counts[0]}x1x{key}"]
    return ["x".join([*map(str, counts), key])]
