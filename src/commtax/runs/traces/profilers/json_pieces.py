"""One long list inside a JSON file, read in pieces: memory holds one piece, whatever the size of the file.

A piece ends where one object of the list ends and the next begins. Whether a place is such an end shows when the piece is decoded:
the same signs may stand inside a name, or between objects inside an object. Where a piece does not decode, its objects are taken
one by one, each up to the bracket that closes it; what is damaged is left out and counted. What stands before and behind the list
is read as an object of its own.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Generic, TypeVar

from commtax.files import JsonObject, MiB, object_of, parse_json
from commtax.statement import Refusal
from commtax.thresholds import counts

Item = TypeVar("Item")
Decode = Callable[[bytes], Sequence[Item]]
COUNT = counts(__name__)
_MARK = 4
_SPACE = b" \t\r\n"
_NEXT = re.compile(rb'\}\s*+,\s*+(?=\{\s*+"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)"\s*+:)')  # between two events
_ANY_NEXT = re.compile(rb"\}\s*+,\s*+(?=\{)")  # … that begin with another key
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"]', re.S)
_HEX = rb"[0-9a-fA-F]{2}"
_PASSED = re.compile(rb'(?:[^"{\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.S)  # spaces, commas, and what is no object
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|u[dD][89abAB]%s\\u[dD][c-fC-F]%s)|\\' % (_HEX, _HEX))
_CONTROLS = bytes(32 if sign < 32 else sign for sign in range(256))
_NO_NUMBER = re.compile(rb"(:\s*+)-?(?:nan|inf|infinity)(?=\s*+[,}\]])", re.I)


def repair_json(text: bytes) -> bytes:
    """Repair JSON whose strings hold controls, bytes that are no UTF-8 or single backslashes, and turn nan into null.

    >>> repair_json(b'{"name": "C:\\\\Users\\x01", "share": -nan}')
    b'{"name": "C:\\\\\\\\Users ", "share": null}'
    """
    text = text.translate(_CONTROLS)
    if b"\\" in text:
        text = _ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else b"\\\\", text)
    text = _NO_NUMBER.sub(rb"\1null", text)
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode(errors="replace").encode()
    return text


class ListedObjects(Generic[Item]):
    """The objects of a file's list under ``key`` (or of the file, where it is a list), as ``decode`` makes them of ``[…]``.

    ``decode`` refuses with ``ValueError`` or ``RecursionError`` what is no JSON; ``is_item`` tells one of the list from what may be
    inside one. After all have been taken, ``around`` holds the other keys, ``damaged`` counts what was left out, ``partial`` says
    why a file was not read to its end, and ``at`` is the byte (of the unpacked text) up to which its objects are whole.
    """

    def __init__(self, pieces: Iterable[bytes], key: str, decode: Decode[Item], is_item: Callable[[Item], bool], name: str) -> None:
        self._pieces, self._decode, self._is_item, self.name = pieces, decode, is_item, name
        self._key = re.compile(rb'"' + key.encode() + rb'"\s*+:\s*+')
        self.key = key
        self.around: JsonObject = {}
        self.damaged = self.at = 0
        self.partial = ""
        self._broken: Refusal | None = None
        self._bare = False
        self._budget = COUNT.scanned

    def __iter__(self) -> Iterator[Sequence[Item]]:
        fed = self._fed()
        text, needed, tail = self._begin(fed), 0, None
        for piece in chain(fed, (b"",)):
            if tail is not None:
                tail += piece[: max(0, COUNT.most_around - len(tail))]
                continue
            if not needed and (items := self._swiftly(text, piece)) is not None:
                begin = _last_cut(piece, COUNT.near)[1]
                self.at += len(text) + begin
                text = piece[begin:]
                yield items
                continue
            text += piece
            if piece and len(text) < needed:
                continue
            items, used, closed = self._taken(text, not piece)
            if items:
                yield items
            text, self.at = text[used:], self.at + used
            needed = 2 * len(text) if not used else 0
            if closed:
                tail, text = text, b""
            elif self.damaged > COUNT.most_damaged:
                self.partial = f"damaged: more than {COUNT.most_damaged:,} events that are no JSON"
                return
            elif len(text) > COUNT.most_around:
                self.partial = f"damaged: no end of an event in {COUNT.most_around // MiB} MiB"
                return
            if not piece:
                break
        self._end(text, tail)

    def _swiftly(self, text: bytes, piece: bytes) -> Sequence[Item] | None:
        """Return what is whole in the text so far and a piece, without copying either, or None where that is not so simple."""
        end, _ = _last_cut(piece, COUNT.near)
        return self._decoded(text.lstrip(_SPACE + b","), memoryview(piece)[:end]) if end else None

    def _fed(self) -> Iterator[bytes]:
        """Yield all pieces as UTF-8, and an empty one behind the last or where a packed file breaks off."""
        decoder: codecs.IncrementalDecoder | None = None
        begun: bytes | None = b""
        try:
            for piece in self._pieces:
                text = piece if begun is None else begun + piece
                if begun is not None:
                    if len(text) < _MARK:  # what kind of text it is shows in its first bytes
                        begun = text
                        continue
                    begun = None
                    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):
                        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
                if text := decoder.decode(text).encode(errors="replace") if decoder else text:
                    yield text
        except Refusal as broken:
            self._broken = broken
        if begun:
            yield begun
        yield b""

    def _begin(self, fed: Iterator[bytes]) -> bytes:
        """Return what follows the list's opening bracket, as far as it has been read."""
        text, searched = b"", 0
        for piece in fed:
            text += piece
            begins = text.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)[:1]
            if begins == b"[":
                self._bare, self.at = True, text.index(b"[") + 1
                return text[self.at :]
            if begins not in (b"", b"{"):
                raise Refusal(f"trace '{self.name}': not valid JSON (it begins with {begins!r})", "trace")
            places = [m for m in islice(self._key.finditer(text, searched), COUNT.candidates) if m.end() < len(text)]
            last = not piece or len(text) > COUNT.most_around or len(places) == COUNT.candidates
            if self._opened(text, places, last):
                return text[self.at :]
            searched = max(searched, len(text) - 256) if not places else searched
            if last:
                break
        if self._broken:
            raise self._broken
        try:
            parse_json(repair_json(text), self.name, depth=None)
        except Refusal:
            raise Refusal(f"trace '{self.name}': not valid JSON, or cut off (before any event)", "trace") from None
        raise Refusal(f"trace '{self.name}': no {self.key} found", "trace")

    def _opened(self, text: bytes, places: list[re.Match[bytes]], last: bool) -> bool:
        """Return whether the list begins at one of these places, so that what stands before is an object without its end."""
        for place in places:
            try:
                before = parse_json(repair_json(text[: place.start()]) + b'"":0}', self.name, depth=None)
            except Refusal:
                continue
            if text[place.end() : place.end() + 1] != b"[":
                raise Refusal(f"trace '{self.name}': no {self.key} found", "trace")
            self.around.update(object_of(before))
            self.at = place.end() + 1
            return True
        damaged = next((m for m in places if text[m.end() : m.end() + 1] == b"["), None) if last else None
        if damaged:
            self.damaged, self.at = 1, damaged.end() + 1
        return damaged is not None

    def _taken(self, text: bytes, last: bool) -> tuple[Sequence[Item], int, bool]:
        """Return the objects that are whole in a text, how much of it they take, and whether the list ends there."""
        end, begin = _last_cut(text)
        if not begin and not last:
            return [], 0, False
        items = self._decoded(text[:end].lstrip(_SPACE + b",")) if begin else None
        if items is not None and not last:
            return items, begin, False
        others, used, closed = self._one_by_one(text, begin if items is not None else 0)
        return [*(items or ()), *others], used, closed

    def _one_by_one(self, text: bytes, at: int) -> tuple[Sequence[Item], int, bool]:
        """Take objects like ``_taken`` from a place on, one at a time, leaving out damaged ones."""
        whole: list[Item] = []
        cuts = [m.span() for m in _NEXT.finditer(text, at)] or [m.span() for m in _ANY_NEXT.finditer(text, at)]
        number = 0
        while True:
            at = _PASSED.match(text, at).end()  # type: ignore[union-attr]
            if at == len(text):
                return whole, at, False
            if text[at] == 0x5D:  # ]
                return whole, at + 1, True
            while number < len(cuts) and cuts[number][0] < at:
                number += 1
            end, after = (cuts[number][0] + 1, cuts[number][1]) if number < len(cuts) else (0, 0)
            if end and (items := self._decoded(text[at:end])):
                whole.extend(items)
                at = after
                continue
            close = self._close(text, at)
            if close and (items := self._decoded(text[at:close])):
                whole.extend(items)
                at = close
                continue
            if not close and not any(map(self._is_item, self._following(text, cuts[number : number + COUNT.following + 1]))):
                return whole, at, False  # it may end in the next piece
            self.damaged += 1
            at = after or close
            if self.damaged > COUNT.most_damaged:
                return whole, at, False

    def _following(self, text: bytes, cuts: list[tuple[int, int]]) -> Iterator[Item]:
        """Yield what the next few pieces between cuts are, each for itself."""
        for (_, begin), (end, _) in pairwise(cuts):
            yield from self._decoded(text[begin : end + 1]) or ()
        if cuts and len(cuts) <= COUNT.following:  # the last one ends with its own bracket
            yield from self._decoded(text[cuts[-1][1] : self._close(text, cuts[-1][1])]) or ()

    def _decoded(self, *text: bytes | memoryview) -> Sequence[Item] | None:
        """Return the objects of a text without the list's brackets, or None where it is no JSON."""
        try:
            return self._decode(b"".join((b"[", *text, b"]")))
        except (ValueError, RecursionError):
            return None

    def _close(self, text: bytes, at: int) -> int:
        """Return the place behind the bracket that closes the object or list here, or 0 where nothing does."""
        depth = 0
        for token in _TOKEN.finditer(text, at, min(len(text), at + max(0, self._budget))):
            sign = token[0]
            if sign in (b"{", b"["):
                depth += 1
            elif sign in (b"}", b"]"):
                depth -= 1
                if not depth:
                    self._budget -= token.end() - at
                    return token.end()
            elif sign == b'"':  # a string without its end
                break
        self._budget -= len(text) - at
        return 0

    def _end(self, text: bytes, tail: bytes | None) -> None:
        """Read what follows the list, or record where it broke off."""
        if tail is None:
            if text.strip(_SPACE + b",") or not self._bare or self._broken:
                self.partial = "cut off" if not self._broken else str(self._broken)
            return
        if self._bare:
            return
        rest = tail.strip()
        text = b'{"":0' + (rest if rest[:1] != b"}" else rest[:1])
        for _ in range(32 if len(text) < MiB else 2):  # without its last key, and without the one before …
            try:
                self.around.update(object_of(parse_json(repair_json(text), self.name, depth=None)))
                return
            except Refusal:
                self.partial = "cut off behind its events" if not self._broken else str(self._broken)
            text = text[: max(text.rfind(b","), 5)] + b"}"


def _last_cut(text: bytes, near: int = 0) -> tuple[int, int]:
    """Return where the last object that may be whole ends and where the next begins, or 0 and 0 where no such place is near."""
    for pattern in (_NEXT,) if near else (_NEXT, _ANY_NEXT):
        for window in (near,) if near else (COUNT.near, len(text)):
            last = None
            for last in pattern.finditer(text, max(0, len(text) - window)):  # noqa: B007
                pass
            if last:
                return last.start() + 1, last.end()
    return 0, 0
