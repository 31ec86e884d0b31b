"""Rows cut out of pages of results: what the headings above a table say of all its rows becomes cells of the row.

A page's ``section`` is its headings in their order, "26.06 NeMo Container / LoRA Performance / Model: LLAMA3_70B" or "System:
DGX-H100, Precision: BF16": the release, the task, and whichever of model, system and number format the table leaves to them.
"""

import re

from commtax_lab.published.rows import Row, cell

HEADED = {"model": "Model", "gpu_type": "System", "precision": "Precision"}
"""Columns whose cells a heading may hold, and the word before them there."""
NOTED = {"tokens_per_s_per_gpu": "tokens/s/GPU", "fsdp": "FSDP"}
FOOTNOTE = re.compile(r"\[\^.*?\]")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def row_of_page(row: Row) -> Row:
    """Return the row with what its headings say, or as it is without headings."""
    section = cell(row, "section")
    if not section:
        return row
    plain = {name: _figure(text or "") if name != "section" else text for name, text in row.items()}
    headed = {column: plain.get(column) or _text_after(word, section) for column, word in HEADED.items()}
    noted = [f"{name}={text}" for column, name in NOTED.items() if (text := cell(plain, column))]
    note = "; ".join([cell(plain, "note"), *noted])
    return {**plain, **headed, "source": f"{cell(plain, 'source')} {section}", "note": note}


def _figure(text: str) -> str:
    """Return a cell without footnote marks and thousands separators."""
    return THOUSANDS.sub("", FOOTNOTE.sub("", text))


def _text_after(word: str, section: str) -> str:
    """Return what follows a word and a colon, up to the next heading.

    >>> _text_after("System", "Pre-Training Performance / System: DGX-H100, Precision: BF16")
    'DGX-H100'
    """
    match = re.search(rf"\b{word}: *([^/,]+)", section)
    return match[1].strip() if match else ""
