"""Signs that a terminal's encoding lacks, as ASCII that reads alike: bars, marks, arrows and units (``signs.toml``)."""

import codecs
from unicodedata import normalize

from commtax.files import table

READABLE = "commtax-readable"  # the name of the error handler of encoders


def _readable(error: UnicodeError) -> tuple[str, int]:
    """Replace what cannot be encoded; letters lose their accents, and what has no likeness is a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_alike, error.object[error.start : error.end])), error.end


def _alike(sign: str) -> str:
    signs: dict[str, str] = table("cli/signs.toml")["signs"]
    known = next((alike for alike, some in signs.items() if sign in some), "")
    return known or normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"


codecs.register_error(READABLE, _readable)
