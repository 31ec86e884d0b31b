"""A run that ended in an error, whatever program it was: the root of it, and what to change."""

from commtax.evidence.finding import Cause, Claim, Finding, Section
from commtax.logs.crashes import Crash
from commtax.logs.started import to_change
from commtax.statement import Note


def audit_crash(crash: Crash, claim: Claim | None, name: str = "log") -> Section:
    """The error that came first, and where it was raised."""
    finding = Finding("runs that ended in an error", 0, 1, reason=crash.error).judged()
    facts = {"process": crash.who, "raised at": crash.where}
    causes = (Cause("failure", f"the run ended: {crash.said}", change=to_change(crash.said)),)
    notes = (Note("claim", "the run ended before anything of the claim could be judged"),) if claim else ()
    return Section(
        "crash", (name,), (finding,), notes, causes=causes, facts={name: value for name, value in facts.items() if value}
    )
