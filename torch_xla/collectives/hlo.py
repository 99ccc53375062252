"""A minimal writer of HLO modules; it knows no collective.

XLA's builder in the stock wheel cannot attach replica groups, channel ids or layout constraints, so the module is
written as the protocol buffer that XLA itself serializes. Field numbers are those of XLA's `hlo.proto` and
`xla_data.proto`; `test/unit/test_hlo.py` checks them against a module that torch_xla serializes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

# Message -> field -> (number, type). A trailing `*` means repeated, a capital letter another message of this table.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
  "Layout": {"minor_to_major": (1, "int64*")},
  "Shape": {
    "element_type": (2, "int32"),
    "dimensions": (3, "int64*"),
    "tuple_shapes": (4, "Shape*"),
    "layout": (5, "Layout"),
    "is_dynamic_dimension": (6, "bool*"),
  },
  "ProgramShape": {"parameters": (1, "Shape*"), "result": (2, "Shape"), "parameter_names": (3, "string*")},
  "Literal": {
    "shape": (1, "Shape"),
    "preds": (2, "bool*"),
    "s32s": (4, "int32*"),
    "s64s": (5, "int64*"),
    "u64s": (7, "uint64*"),
    "f32s": (8, "float*"),
    "f64s": (9, "double*"),
  },
  "ReplicaGroup": {"replica_ids": (1, "int64*")},
  "SourceTarget": {"source": (1, "int64"), "target": (2, "int64")},
  "Instruction": {
    "name": (1, "string"),
    "opcode": (2, "string"),
    "shape": (3, "Shape"),
    "literal": (8, "Literal"),
    "parameter_number": (9, "int64"),
    "tuple_index": (13, "int64"),
    "dimensions": (14, "int64*"),
    "dynamic_slice_sizes": (20, "int64*"),
    "channel_id": (26, "int64"),
    "custom_call_target": (28, "string"),
    "id": (35, "int64"),
    "operand_ids": (36, "int64*"),
    "called_computation_ids": (38, "int64*"),
    "replica_groups": (49, "ReplicaGroup*"),
    "source_target_pairs": (52, "SourceTarget*"),
    "constrain_layout": (56, "bool"),
    "operand_shapes_with_layout": (57, "Shape*"),
    "comparison_direction": (63, "string"),
    "use_global_device_ids": (71, "bool"),
  },
  "Computation": {
    "name": (1, "string"),
    "instructions": (2, "Instruction*"),
    "program_shape": (4, "ProgramShape"),
    "id": (5, "int64"),
    "root_id": (6, "int64"),
  },
  "Module": {
    "name": (1, "string"),
    "entry_computation_name": (2, "string"),
    "computations": (3, "Computation*"),
    "host_program_shape": (4, "ProgramShape"),
    "id": (5, "int64"),
    "entry_computation_id": (6, "int64"),
  },
}

# XLA's PrimitiveType numbers.
PRIMITIVE_TYPES: dict[torch.dtype, int] = {
  torch.bool: 1,
  torch.int8: 2,
  torch.int16: 3,
  torch.int32: 4,
  torch.int64: 5,
  torch.uint8: 6,
  torch.uint16: 7,
  torch.uint32: 8,
  torch.uint64: 9,
  torch.float16: 10,
  torch.float32: 11,
  torch.float64: 12,
  torch.complex64: 15,
  torch.bfloat16: 16,
}
_TUPLE = 13
# Literals of the other dtypes are byte strings; they are converted from these instead.
_LITERALS = {
  torch.bool: "preds",
  torch.int32: "s32s",
  torch.int64: "s64s",
  torch.uint64: "u64s",
  torch.float32: "f32s",
  torch.float64: "f64s",
}


@functools.cache
def messages() -> dict[str, Any]:
  """Returns the message classes by name; made on first use, since importing protobuf costs 15 ms.

  Returns:
    Class of each message of the table above. They live in a private pool, so that a program which also loads XLA's own
    descriptors (JAX, TensorFlow) does not clash with them.
  """
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

  kinds = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(name="ordinal_hlo.proto", package="ordinal", syntax="proto3")
  for message, fields in _MESSAGES.items():
    entry = file.message_type.add(name=message)
    for name, (number, kind) in fields.items():
      field = entry.field.add(name=name, number=number)
      base = kind.rstrip("*")
      field.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
      field.type = kinds.TYPE_MESSAGE if base[0].isupper() else getattr(kinds, f"TYPE_{base.upper()}")
      if base[0].isupper():
        field.type_name = f".ordinal.{base}"
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ordinal.{name}")) for name in _MESSAGES}


class Array(NamedTuple):
  """Type of one array value: its dtype and dimension sizes, with the default (row-major) layout."""

  dtype: torch.dtype
  dims: tuple[int, ...]

  @property
  def numel(self) -> int:
    """Number of elements."""
    count = 1
    for size in self.dims:
      count *= size
    return count


class Value(NamedTuple):
  """An instruction's result: its id and its type, an Array (for a tuple value a tuple of them)."""

  id: int
  type: Any


def shape(kind: Array | tuple[Array, ...]) -> Any:
  """Returns the message that describes a type, arrays in the row-major layout.

  Args:
    kind: an array type or a tuple of them.

  Returns:
    A ShapeProto.
  """
  message = messages()["Shape"]
  if not isinstance(kind, Array):
    return message(element_type=_TUPLE, tuple_shapes=[shape(part) for part in kind])
  rank = len(kind.dims)
  layout = messages()["Layout"](minor_to_major=range(rank - 1, -1, -1))
  return message(
    element_type=PRIMITIVE_TYPES[kind.dtype],
    dimensions=kind.dims,
    layout=layout,
    is_dynamic_dimension=[False] * rank,
  )


class Module:
  """One HLO module in the making.

  Args:
    name: the module's name.
  """

  def __init__(self, name: str):
    self.name = name
    self.computations: list[Computation] = []
    self._last_id = 0

  def next_id(self) -> int:
    """Returns an unused id: instructions and computations share one counter, as XLA's reader demands.

    Returns:
      An int, 1 at first.
    """
    self._last_id += 1
    return self._last_id

  def serialize(self, entry: Computation) -> bytes:
    """Closes the module.

    Args:
      entry: the computation that the module runs.

    Returns:
      The serialized module.
    """
    # XLA's reader wants a called computation before its caller.
    ordered = [part.proto for part in self.computations if part is not entry] + [entry.proto]
    module = messages()["Module"](
      name=self.name,
      id=1,
      computations=ordered,
      entry_computation_name=entry.proto.name,
      entry_computation_id=entry.proto.id,
      host_program_shape=entry.proto.program_shape,
    )
    return module.SerializeToString(deterministic=True)


class Computation:
  """One computation of a module.

  Args:
    module: the module it belongs to.
    name: base of its name.
  """

  def __init__(self, module: Module, name: str):
    self.module = module
    number = module.next_id()
    # XLA aborts the process on a name without a dot.
    self.proto = messages()["Computation"](id=number, name=f"{name}.{number}")
    module.computations.append(self)

  def add(self, opcode: str, kind: Array | tuple[Array, ...], *operands: Value, **fields: Any) -> Value:
    """Appends an instruction.

    Args:
      opcode: XLA's name of the operation.
      kind: type of the result.
      *operands: values of this computation.
      **fields: further fields of XLA's HloInstructionProto.

    Returns:
      The instruction's value.
    """
    number = self.module.next_id()
    self.proto.instructions.add(
      id=number,
      name=f"{opcode}.{number}",
      opcode=opcode,
      shape=shape(kind),
      operand_ids=[operand.id for operand in operands],
      **fields,
    )
    return Value(number, kind)

  def close(self, root: Value) -> None:
    """Says what the computation returns.

    Args:
      root: one of its values.
    """
    self.proto.root_id = root.id
    self.proto.program_shape.result.CopyFrom(shape(root.type))

  def parameter(self, kind: Array) -> Value:
    """Appends the next parameter.

    Args:
      kind: its type.

    Returns:
      The parameter's value.
    """
    shapes = self.proto.program_shape
    index = len(shapes.parameters)
    shapes.parameters.append(shape(kind))
    shapes.parameter_names.append(f"p{index}")
    return self.add("parameter", kind, parameter_number=index)

  def scalar(self, dtype: torch.dtype, value: float | int | bool) -> Value:
    """Appends a constant of no dimensions.

    Args:
      dtype: any dtype of PRIMITIVE_TYPES.
      value: a number.

    Returns:
      The constant's value.
    """
    if dtype in _LITERALS:
      return self.constant(Array(dtype, ()), [value])
    wide = torch.float32 if dtype.is_floating_point or dtype.is_complex else torch.int64
    return self.add("convert", Array(dtype, ()), self.scalar(wide, value))

  def constant(self, kind: Array, values: Sequence[float | int | bool]) -> Value:
    """Appends a constant array.

    Args:
      kind: its type; of dtype bool, int32, int64, uint64, float32 or float64.
      values: its elements in row-major order.

    Returns:
      The constant's value.
    """
    literal = messages()["Literal"](shape=shape(kind), **{_LITERALS[kind.dtype]: values})
    return self.add("constant", kind, literal=literal)

  def full(self, kind: Array, value: float | int | bool) -> Value:
    """Appends an array of one repeated number.

    Args:
      kind: type of the array.
      value: the number.

    Returns:
      The array's value.
    """
    return self.add("broadcast", kind, self.scalar(kind.dtype, value))
