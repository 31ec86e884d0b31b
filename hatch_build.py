"""Puts the man pages into the wheel. ``make man`` writes them; a build from a plain clone has none and is none the worse."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface[Any]):
    """Installed as share/man/man1/commtax*.1."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        pages = sorted(Path(self.root, "man").glob("commtax*.1"))
        build_data["shared_data"].update({str(page): f"share/man/man1/{page.name}" for page in pages})
