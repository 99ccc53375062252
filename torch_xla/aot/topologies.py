"""The TPU slices that libtpu can compile for, by their cloud names and by libtpu's own."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
  """One slice as libtpu is asked for it.

  Args:
    name: libtpu's name, generation and chips per axis.
    devices: number of devices that PJRT shows on it.
    megacore: the two cores of a chip are one device, as on real v4 slices; libtpu's default is one each.
    cost: whether libtpu 0.0.21 can analyse costs for it; for the others the analysis aborts libtpu's process.
  """

  name: str
  devices: int
  megacore: bool = False
  cost: bool = False

  @property
  def create_options(self) -> dict[str, str]:
    """Options of libtpu's topology constructor."""
    return {"chip_config_name": "megacore"} if self.megacore else {}


_TOPOLOGIES = {
  "v2-8": Topology("v2:2x2", 8, cost=True),
  "v3-8": Topology("v3:2x2", 8, cost=True),
  "v3-32": Topology("v3:4x4", 32, cost=True),
  "v4-8": Topology("v4:2x2x1", 4, megacore=True),
  "v5e-8": Topology("v5e:2x4", 8, cost=True),
  "v5p-8": Topology("v5p:2x2x1", 4),
  "v5p-16": Topology("v5p:2x2x2", 8),
  "v6e-8": Topology("v6e:2x4", 8),
  "v6e-16": Topology("v6e:4x4", 16),
}
# libtpu's own names mean its own defaults, which for v4 is a device for each core.
_TOPOLOGIES |= {row.name: row for row in _TOPOLOGIES.values() if not row.megacore}
_TOPOLOGIES["v4:2x2x1"] = Topology("v4:2x2x1", 8)


def topology(name: str) -> Topology:
  """Looks a slice up.

  Args:
    name: a cloud name (`v3-8`: devices as that slice shows them) or libtpu's name (`v3:2x2`).

  Returns:
    The topology.

  Raises:
    ValueError: there is no such slice; the message lists what there is.
  """
  if name in _TOPOLOGIES:
    return _TOPOLOGIES[name]
  near = difflib.get_close_matches(name, _TOPOLOGIES, n=1)
  hint = f"did you mean {near[0]!r}? " if near else ""
  raise ValueError(f"topology {name!r} is unknown; {hint}choose one of {', '.join(_TOPOLOGIES)}")
