"""Where things lie, for tests in whatever folder."""

from pathlib import Path

HELPERS = Path(__file__).parent
TESTS = HELPERS.parent
FIXTURES = TESTS / "fixtures"
ROOT = TESTS.parent
SOURCE = ROOT / "src" / "commtax"
BENCHMARKS = ROOT / "benchmarks"
DOCUMENTS = BENCHMARKS / "documents"
"""Makers of documents."""
SHARED = ROOT.parent / "shared" / "data"
"""Published tables and traces, which lie beside the repository where they lie at all."""
