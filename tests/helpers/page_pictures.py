"""What pictures of docs keep beside their pixels, and what the page says in an answer: one that says something else is stale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def kept_text(picture: Path) -> str:
    """The text that a PNG keeps: what was asked, and what was answered."""
    data, at = picture.read_bytes(), 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 8] == b"iTXt":
            return data[at + 8 : at + 8 + length].split(b"\0", 5)[-1].decode()
        at += 12 + length
    return ""


def said_on_page(question: str, answer: Mapping[str, Any]) -> list[str]:
    """The sentence of an answer, and the plans that it lists with their figures."""
    if question == "audit":
        return [answer["title"]]
    rows = answer["table"]["rows"] if question in ("plan", "several") else []
    listed = [f"{row['name']}: {row['values']['tokens_per_s']:.3g} tokens/s" for row in rows]
    return [answer["sentence"], *listed]
