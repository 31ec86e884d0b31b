"""The command line: a thin skin, one file a verb. Exit codes: 0 an answer, 1 no, 2 bad input, 3 no verdict, 70 a fault of ours."""

TYPE_CHECKING = False  # as in typing, which nobody needs who completes a line
if TYPE_CHECKING:
    from commtax.cli.app import VERBS, app, commands, main

_FRAME = ("VERBS", "app", "commands", "main")


def __getattr__(name: str) -> object:
    """Fetch a name of the frame when it is first used: a shell that completes a line needs none of them."""
    if name not in _FRAME:
        raise AttributeError(name)
    from importlib import import_module

    frame = import_module("commtax.cli.app")
    globals().update({one: getattr(frame, one) for one in _FRAME})  # the group, and not the module of its name
    return globals()[name]
