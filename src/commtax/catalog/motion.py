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
    """Return a carrier by name, where "" is what is priced by default."""
    rows = table("catalog/carriers.toml")
    if (key := name or USUAL) not in rows:
        names = tuple(one for one in rows if one != USUAL)
        raise Refusal(f"kv_transfer '{name}': one of {', '.join(names)}{suggest(name, names)}", "kv_transfer", names)
    return record(CacheCarrier, {"key": key, **rows[key]}, "carriers.toml")


@lru_cache(maxsize=8)
def started_with(engine: str) -> str:
    """Return the carrier that an engine's launch names by default, or "" for none that is priced by its pieces."""
    return next((key for key, row in table("catalog/carriers.toml").items() if engine in row.get("starts", ())), "")


@lru_cache(maxsize=4)
def tier(name: str) -> CacheTier:
    if name not in TIERS:
        raise Refusal(f"kv_tier '{name}': one of {', '.join(TIERS)}{suggest(name, TIERS)}", "kv_tier", TIERS)
    return record(CacheTier, {"key": name, **table("catalog/tiers.toml")[name]}, "tiers.toml")


def host_Bps(chip: Chip) -> float:
    """Return the bandwidth of a GPU's link to its host's memory, one way, or 0 where it is not listed."""
    rows = table("catalog/tiers.toml")
    if chip.key in rows["superchips"]:
        return float(rows["superchips"][chip.key])
    usual = rows["links"].get(chip.key) or rows["links"].get(chip.family)
    return link(usual).bandwidth_Bps if usual else 0.0
