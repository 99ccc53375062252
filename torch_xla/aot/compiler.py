"""Compiles HLO modules for TPUs that are not there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import program
from .process import AotError, worker
from .topologies import Topology
from .topologies import topology as find_topology


@dataclass(frozen=True)
class Memory:
  """What a compiled program needs on each device, in bytes."""

  argument_bytes: int
  output_bytes: int
  alias_bytes: int
  temp_bytes: int
  peak_bytes: int
  code_bytes: int


@dataclass(frozen=True)
class Compiled:
  """A program as the TPU would run it.

  Args:
    topology: the slice it was compiled for.
    hlo: the optimized, scheduled HLO as text.
    memory: its memory.
    cost: the compiler's cost analysis (`bytes accessed` and others; it holds no interconnect time), None where
      that analysis would abort this libtpu.
    seconds: time that the compiler took.
  """

  topology: Topology
  hlo: str = field(repr=False)
  memory: Memory
  cost: dict[str, float] | None
  seconds: float

  @property
  def collectives(self) -> tuple[program.Collective, ...]:
    """The program's collectives, in the order in which they start."""
    return program.collectives(self.hlo)


def _varint(number: int) -> bytes:
  number &= (1 << 64) - 1
  out = bytearray()
  while number > 127:
    out.append(number & 127 | 128)
    number >>= 7
  return bytes([*out, number])


def _field(number: int, value: int | str | bytes) -> bytes:
  """Returns one field of a protocol buffer."""
  if isinstance(value, int):
    return _varint(number << 3) + _varint(int(value))
  data = value.encode() if isinstance(value, str) else value
  return _varint(number << 3 | 2) + _varint(len(data)) + data


def _compile_options(ids: list[int], flags: dict[str, Any]) -> bytes:
  """Returns a serialized CompileOptionsProto: one replica on each device, one partition."""
  flags = dict(flags)
  spmd = bool(flags.pop("use_spmd_partitioning", False))
  # DeviceAssignmentProto: replica_count=1 computation_count=2 computation_devices=3, whose ids are field 1.
  devices = _field(1, b"".join(map(_varint, ids)))
  assignment = _field(1, len(ids)) + _field(2, 1) + _field(3, devices)
  # ExecutableBuildOptionsProto: device_ordinal=1 num_replicas=4 num_partitions=5 use_spmd_partitioning=6
  # device_assignment=9.
  build = _field(1, -1) + _field(4, len(ids)) + _field(5, 1) + _field(6, spmd) + _field(9, assignment)
  result = _field(3, build)
  for name, value in flags.items():
    # CompileOptionsProto.env_option_overrides=7, its OptionOverrideProto: string=1 bool=2 int64=3.
    kind = 2 if isinstance(value, bool) else 3 if isinstance(value, int) else 1
    result += _field(7, _field(1, name) + _field(2, _field(kind, value if kind != 1 else str(value))))
  return result


def _module(wrapped: bytes) -> bytes:
  """Returns the HloModuleProto in an HloModuleProtoWithConfig (its field 1, written first)."""
  if wrapped[:1] != bytes([1 << 3 | 2]):
    raise AotError("libtpu's compiled program is of a form that this build does not know; use libtpu 0.0.21")
  size, position = 0, 1
  while True:
    byte = wrapped[position]
    size |= (byte & 127) << 7 * (position - 1)
    position += 1
    if byte < 128:
      return wrapped[position : position + size]


def _text(module: bytes) -> str:
  # Imported here: whoever only reads programs needs no XLA.
  import _XLAC

  return _XLAC._xla_computation_text(_XLAC._xla_op_computation_from_module_proto("compiled", module))


def compile_hlo(
  module: bytes,
  topology: str,
  *,
  options: dict[str, Any] | None = None,
  replicas: int | None = None,
  timeout_s: float = 120,
) -> Compiled:
  """Compiles one HLO module for a TPU slice that need not be there.

  Args:
    module: a serialized HloModuleProto.
    topology: the slice: a cloud name (`v3-8`) or libtpu's (`v3:2x2`); see topologies.py.
    options: XLA flags by name (`xla_tpu_...`), and `use_spmd_partitioning`.
    replicas: number of replicas, on the slice's first devices; None for all of them.
    timeout_s: longest wait in seconds.

  Returns:
    The compiled program.

  Raises:
    ValueError: the topology is unknown, or smaller than `replicas`.
    AotError: the compiler refused the module, crashed or took too long (its message is included), or there is
      no libtpu.
  """
  slice_ = find_topology(topology)
  count = slice_.devices if replicas is None else replicas
  if not 1 <= count <= slice_.devices:
    raise ValueError(
      f"replicas={replicas} does not fit topology {topology!r}, which has {slice_.devices} devices; "
      f"ask for 1 to {slice_.devices}"
    )
  request: dict[str, Any] = {"topology": slice_.name, "create_options": slice_.create_options, "module": None}
  devices = worker.ask(request, timeout_s)["devices"]
  ids = sorted(device["id"] for device in devices)[:count]
  request |= {"module": module, "options": _compile_options(ids, options or {}), "cost": slice_.cost}
  reply = worker.ask(request, timeout_s)
  memory = [reply["memory"][name] for name in ("argument", "output", "alias", "temp", "peak", "generated_code")]
  return Compiled(
    topology=slice_,
    hlo=_text(_module(reply["program"])),
    memory=Memory(*memory),
    cost=reply["cost"],
    seconds=reply["seconds"],
  )
