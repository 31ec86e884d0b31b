"""What carries caches between workers, ``carriers.toml``, and where prefixes are put by, ``tiers.toml``."""

from functools import lru_cache

from commtax.catalog.hardware import link
from commtax.catalog.loader import record, suggest
from commtax.shipped_tables import table
from commtax.spec import Chip
from commtax.spec.hardware import CacheCarrier, CacheTier
from commtax.statement import Refusal

USUAL = "usual"
TIERS = ("host", "disk", "remote")


@lru_cache(maxsize=8)
def carrier(name: str) -> CacheCarrier:
    """Return a carrier by name; "": what is priced where nobody names one."""
    known = table("catalog/carriers.toml")
    if (key := name or USUAL) not in known:
        told = tuple(one for one in known if one != USUAL)
        raise Refusal(f"kv_transfer '{name}': one of {', '.join(told)}{suggest(name, told)}", "kv_transfer", told)
    return record(CacheCarrier, {"key": key, **known[key]}, "carriers.toml")


@lru_cache(maxsize=8)
def started_with(engine: str) -> str:
    """Return the carrier that an engine's launch names where nobody asks for one; "": none that is priced by its pieces."""
    return next((key for key, row in table("catalog/carriers.toml").items() if engine in row.get("starts", ())), "")


@lru_cache(maxsize=4)
def tier(name: str) -> CacheTier:
    if name not in TIERS:
        raise Refusal(f"kv_tier '{name}': one of {', '.join(TIERS)}{suggest(name, TIERS)}", "kv_tier", TIERS)
    return record(CacheTier, {"key": name, **table("catalog/tiers.toml")[name]}, "tiers.toml")


def host_Bps(chip: Chip) -> float:
    """Of a GPU's link to its host's memory, one way; 0 where none is known."""
    known = table("catalog/tiers.toml")
    if chip.key in known["superchips"]:
        return float(known["superchips"][chip.key])
    usual = known["links"].get(chip.key) or known["links"].get(chip.family)
    return link(usual).bandwidth_Bps if usual else 0.0
