"""Clusters as people write them: ``16 h100``, ``h100 x16``, ``2 nodes of 8 H200 SXM``, in counts and a name of the catalogue."""

import re

from commtax.catalog.hardware import chip
from commtax.catalog.loader import find, normal, table

HOST = r"(?:node|host|server|machine|instance|system|box)(?:e?s)?\b"
HOSTS = re.compile(rf"(x )?\b(\d{{1,7}}) (?:x )?{HOST}( (?:of|with|x)\b)?")
EACH = re.compile(rf"\beach\b|(?:\bper |/ ?){HOST}( x\b)?")
FILLERS = re.compile(r"\b(?:gpus?|an?|the|nvidia|amd|instinct)\b|[,;()]")
COUNTED = (
    re.compile(r"()()([a-z0-9].*?) ?([x:] ?\d{1,7})"),
    re.compile(r"(?:(\d{1,7})(?: ?[x:] ?| ))?(?:(\d{1,7})(?: ?[x:-] ?| |(?=[a-z])))?((?<!\d)\d{4}|[a-z].*)()"),
)
"""A count behind a name, and counts before it."""
LONGEST = 100  # signs of a text that may mean something


def usual_spellings(text: str) -> list[str]:
    """What a text may mean, in counts and a name of the catalogue: several where it is in doubt, none where nothing is known.

    >>> [usual_spellings(text) for text in ("16 h100", "H100 x16", "2 nodes of 8 H200 SXM", "2x dgx-h100", "2x1xdgx-spark")]
    [['16xh100'], ['16xh100'], ['2x8xh200-sxm'], ['2xdgx-h100'], ['2xdgx-spark']]
    >>> usual_spellings("dgx-h100 x8"), usual_spellings("2 h100 nodes"), usual_spellings("16 h100 on 2 nodes")
    (['8xdgx-h100', 'dgx-h100'], ['2x8xh100', '2x1xh100'], [])
    """
    written = re.sub("[×*]", "x", text.lower().replace("_", "-"))
    plain = " ".join(FILLERS.sub(" ", written).split()) if len(text) < LONGEST and written.isascii() else ""
    told, each = HOSTS.search(plain), EACH.search(plain)
    rest = " ".join(EACH.sub(" ", HOSTS.sub(" ", plain)).split())
    for form in COUNTED:
        if match := form.fullmatch(re.sub(rf" {HOST}$", "", rest)):
            first, second, name, behind = match.groups()
            counts = [int(count.strip("x: ")) for count in (told[2] if told else "", first, second, behind) if count]
            joined = not told or len(counts) < 2 or bool(each or told[1] or told[3])
            if joined and all(counts) and (meant := _meant(counts, name, bool(behind), rest != match.string)):
                return meant
    return []


def _meant(counts: list[int], name: str, behind: bool, hosts: bool) -> list[str]:
    """Hosts of a name of their own, or GPUs: two counts are hosts and GPUs, one is of whatever has the name."""
    if stem := find("clusters", name):
        host = table("clusters", stem)
        own, whole = host["gpus_per_host"][0], f"{counts[0]}x{stem}" if counts else stem
        if len(counts) == 1 and behind and counts[0] == own > 1:
            return [whole, stem]
        return [whole] if len(counts) < 2 or counts[1:] == [own] else [whole, f"{counts[0]}x{counts[1]}x{host['chip']}"]
    from commtax.catalog.foreign_names import find_device_chip  # not for those who write what the catalogue has

    key = next((n for n in (normal(name), normal(name.removesuffix("s"))) if find("chips", n)), "") or find_device_chip(name)
    if not key or len(counts) > 2:
        return []
    if hosts and len(counts) == 1:
        return [f"{counts[0]}x{chip(key).gpus_per_host}x{key}", f"{counts[0]}x1x{key}"]
    return ["x".join([*map(str, counts), key])]
