"""What was found instead, in a file that nobody knows: the keys of its JSON, or its first line."""

import re

from commtax.files import decode_text, table
from commtax.redaction import redact
from commtax.thresholds import counts

COUNT = counts(__name__)
_TOKEN = re.compile(r'"((?:[^"\\]|\\.){0,200}+)"|[{}\[\]:]')
LOOKED_FOR = (
    "looked for traces of profilers (PyTorch, Nsight Systems, rocprofv3), logs (engines, NCCL, training, crashes), results "
    "(of benchmarks, nccl-tests) and what nvidia-smi, amd-smi or rocm-smi print"
)


def hint(head: bytes) -> str:
    """What such a file most likely is, and where it belongs; "" where nothing is known.

    >>> hint(b"<!DOCTYPE html><html>"), hint(b"hello")
    ('; it seems to be a web page: save the file itself', '')
    """
    text = decode_text(head)
    likely = next((row["is"] for row in table("audit/hints.toml")["hint"] if all(sign in text for sign in row["signs"])), "")
    return f"; it seems to be {likely}" if likely else ""


def beginning(head: bytes) -> str:
    """In words, from a file's beginning.

    >>> beginning(b'{"a": {"b": 1}, "c": 2}'), beginning(b"\\n hello\\n"), beginning(b"")
    ('found JSON with the keys a, c', "found a text that begins with 'hello'", 'found nothing: it is empty')
    """
    text = redact(decode_text(head)).lstrip()
    if not text:
        return "found nothing: it is empty"
    if b"\0" in head:
        return "found bytes that are no text"
    keys = top_keys(text) if text[0] in "{[" else []
    if keys or text[0] == "{":
        return f"found JSON with the keys {', '.join(keys)}" if keys else "found JSON without keys"
    return f"found a text that begins with '{_printable(text.splitlines()[0].strip())}'"


def is_text(head: bytes) -> bool:
    """Whether a file's beginning may be a text: some logs hold a few zero bytes, and UTF-16 says that it is.

    >>> is_text(b"a log\\0\\n" * 9), is_text("log".encode("utf-16")), is_text(bytes(64) + b"a log")
    (True, True, False)
    """
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or head.count(0) * COUNT.most_zeros <= len(head)


def _printable(text: str) -> str:
    """As much as is shown, without signs that end a line or steer a terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in text[: COUNT.most_signs])


def top_keys(text: str) -> list[str]:
    """The first keys of the outermost object, or of the first in a list."""
    keys: list[str] = []
    depth, last = 0, ""
    for match in _TOKEN.finditer(text):
        sign = match[0]
        if sign in ("{", "["):
            depth += sign == "{" or depth > 0  # objects of a list count from the first on
        elif sign in ("}", "]"):
            depth -= 1
            if depth <= 0:
                break
        elif sign != ":":
            last = match[1]
        elif depth == 1 and len(keys) < COUNT.most_keys:
            keys.append(_printable(last))
    return keys
