"""How other programs word what is read of them: ``wordings.toml`` of each room, regular expressions by module."""

import re
from collections.abc import Mapping

from commtax.files import table


class ModulePatterns:
    """The expressions of one module as attributes, each compiled when it is first asked for: most files need few of them.

    A list is of alternatives.
    """

    def __init__(self, texts: Mapping[str, str | list[str]]) -> None:
        self._texts = texts

    def __getattr__(self, name: str) -> re.Pattern[str]:
        try:
            text = self._texts[name]
            compiled = re.compile(text if isinstance(text, str) else f"(?:{'|'.join(text)})")
        except KeyError:
            raise AttributeError(name) from None
        vars(self)[name] = compiled
        return compiled


def patterns(module: str) -> ModulePatterns:
    """Those of a module, by its dotted name."""
    room, *_, name = module.removeprefix("commtax.").split(".")
    return ModulePatterns(table(f"{room}/wordings.toml")[name])
