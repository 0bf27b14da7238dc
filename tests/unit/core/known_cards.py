"""Every card whose MIG tables are known, as the planner sees it. The tables are the simulator's."""

import json
from pathlib import Path

from gpupolicy.core.inventory import MigProfile, Placement

TABLES = Path(__file__).resolve().parents[3] / "simulator" / "data" / "gpus.json"
COLUMNS = (
    "name",
    "memory_mib",
    "multiprocessors",
    "copy_engines",
    "decoders",
    "encoders",
    "jpeg_engines",
    "ofa_engines",
)


def known_cards() -> dict[str, tuple[MigProfile, ...]]:
    """Return model key -> profiles, of all models that can be partitioned."""
    tables = json.loads(TABLES.read_text())
    cards = {}
    for model in tables["models"]:
        if not model.get("geometry"):
            continue
        geometry = tables["geometries"][model["geometry"]]
        cards[model["key"]] = tuple(
            MigProfile(
                id=shape["id"],
                enum=shape["enum"],
                slices=shape["slices"],
                max_instances=shape["max_instances"],
                placements=tuple(Placement(start, shape["size"]) for start in shape["starts"]),
                **dict(zip(COLUMNS, model["profiles"][shape["key"]], strict=True)),
            )
            for shape in geometry["profiles"]
        )
    return cards


KNOWN_CARDS = known_cards()
