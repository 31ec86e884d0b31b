"""One test over many cases, since thousands of ids cost more than what they check. All run; what fails is told with its case."""

import inspect

import pytest


def each(names, cases, ids=None):
    """As ``pytest.mark.parametrize``, in a loop; for tests whose fixtures need not be new for every case."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [values_of(case, len(keys)) for case in cases]

    def over(test):
        def loop(**fixtures):
            failed, skipped = [], []
            for row in rows:
                try:
                    test(**dict(zip(keys, row, strict=True)), **fixtures)
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case: {dict(zip(keys, row, strict=True))}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} cases", failed)
            if rows and len(skipped) == len(rows):
                raise skipped[0]

        for name in ("__name__", "__doc__", "__module__", "__qualname__"):
            setattr(loop, name, getattr(test, name))
        loop.test = test
        loop.pytestmark = list(getattr(test, "pytestmark", []))
        left = [p for p in inspect.signature(test).parameters.values() if p.name not in keys]
        loop.__signature__ = inspect.Signature(left)
        return loop

    return over


def values_of(case, count):
    """A row of values: of a case, or of one that ``pytest.param`` gave a name."""
    named = getattr(case, "values", None)
    return named if isinstance(named, tuple) else case if count > 1 else (case,)
