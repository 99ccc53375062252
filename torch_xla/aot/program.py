"""Reads a compiled program's text: its collectives, in the order in which the TPU runs them."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import NamedTuple

COLLECTIVES = frozenset(
  {"all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter"}
)
# Opcodes that move or rename data and compute nothing on it. The compiler splits 64-bit and complex arrays in two.
MOVES = frozenset(
  {
    "bitcast",
    "copy",
    "copy-done",
    "copy-start",
    "custom-call ConcatBitcast",
    "custom-call X64SplitHigh",
    "custom-call X64SplitLow",
    "get-tuple-element",
    "imag",
    "parameter",
    "real",
    "reshape",
    "slice",
    "slice-done",
    "slice-start",
    "transpose",
    "tuple",
  }
)


class Shape(NamedTuple):
  """Type of one array in a compiled program.

  `dtype` is XLA's name of it, `layout` the minor-to-major order of the dimensions.
  """

  dtype: str
  dims: tuple[int, ...]
  layout: tuple[int, ...]


@dataclass(frozen=True)
class Instruction:
  """One instruction: its name, opcode, result types, operand names and the rest of its line."""

  name: str
  opcode: str
  shapes: tuple[Shape, ...]
  operands: tuple[str, ...]
  attributes: str


@dataclass(frozen=True)
class Collective:
  """One collective of a compiled program.

  Args:
    name: the instruction.
    opcode: XLA's name of the operation, without `-start`.
    asynchronous: it is a start / done pair.
    replica_groups: replica ids as the program lists them; None where it has pairs.
    pairs: (source, target) replica ids of a permute; None where it has groups.
    channel_id: None if it has none.
    operands: types of the inputs.
    results: types of the outputs.
    parameters: numbers of the program's parameters that its inputs are computed from, without passing through
      another collective.
    passes: opcodes on the way from there, `fusion` replaced by what it fuses; those in MOVES compute nothing.
  """

  name: str
  opcode: str
  asynchronous: bool
  replica_groups: tuple[tuple[int, ...], ...] | None
  pairs: tuple[tuple[int, int], ...] | None
  channel_id: int | None
  operands: tuple[Shape, ...]
  results: tuple[Shape, ...]
  parameters: frozenset[int]
  passes: frozenset[str]


def _balanced(text: str, start: int) -> int:
  """Returns the position behind the parenthesis that closes the one at `start`."""
  depth = 0
  for position in range(start, len(text)):
    depth += {"(": 1, ")": -1}.get(text[position], 0)
    if not depth:
      return position + 1
  raise ValueError(f"HLO line is cut off: {text!r}")


def _shapes(text: str) -> tuple[Shape, ...]:
  found = re.findall(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([\d,]*))?", text)
  return tuple(Shape(dtype, _numbers(dims), _numbers(layout)) for dtype, dims, layout in found)


def _numbers(text: str) -> tuple[int, ...]:
  return tuple(int(number) for number in re.findall(r"\d+", text))


def parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
  """Splits a program's text.

  Args:
    text: HLO text.

  Returns:
    Instructions by name for each computation, in program order, and the entry computation's name.
  """
  computations: dict[str, dict[str, Instruction]] = {}
  entry = ""
  body: dict[str, Instruction] = {}
  for line in text.splitlines():
    header = re.match(r"(ENTRY )?%?(\S+) .*\{$", line)
    if header and not line.startswith(("HloModule", " ")):
      body = computations.setdefault(header[2], {})
      entry = header[2] if header[1] else entry
      continue
    match = re.match(r"\s+(?:ROOT )?%?(\S+) = ", line)
    if not match:
      continue
    rest = line[match.end() :]
    end = _balanced(rest, 0) if rest.startswith("(") else rest.index(" ")
    opening = rest.index("(", end)
    close = _balanced(rest, opening)
    opcode, arguments = rest[end:opening].strip(), rest[opening + 1 : close - 1]
    operands = (arguments,) if opcode == "parameter" else tuple(re.findall(r"%([\w.\-]+)", arguments))
    body[match[1]] = Instruction(match[1], opcode, _shapes(rest[:end]), operands, rest[close:])
  return computations, entry


def replica_groups(attributes: str) -> tuple[tuple[int, ...], ...] | None:
  """Reads a collective's groups, in either of the forms in which XLA writes them.

  Args:
    attributes: the instruction's text behind its operands: `replica_groups={{0,1},{2,3}}` or, for a regular
      grid of replicas, `replica_groups=[2,2]<=[2,2]T(1,0)`: 0, 1, 2... reshaped to the right-hand list,
      transposed, reshaped to the left-hand one.

  Returns:
    The groups, or None if there are none.
  """
  listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", attributes)
  if listed:
    return tuple(_numbers(group) for group in re.findall(r"\{([\d,]*)\}", listed[1]))
  iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
  if not iota:
    return None
  size, dims = _numbers(iota[1])[-1], _numbers(iota[2])
  order = _numbers(iota[3]) if iota[3] else tuple(range(len(dims)))
  strides = [1] * len(dims)
  for axis in range(len(dims) - 2, -1, -1):
    strides[axis] = strides[axis + 1] * dims[axis + 1]
  indices = itertools.product(*(range(dims[axis]) for axis in order))
  flat = [sum(i * strides[axis] for i, axis in zip(index, order, strict=True)) for index in indices]
  return tuple(tuple(flat[start : start + size]) for start in range(0, len(flat), size))


def _called(instruction: Instruction) -> list[str]:
  return re.findall(r"(?:calls|body|to_apply)=%?([\w.\-]+)", instruction.attributes)


def _origin(
  computations: dict[str, dict[str, Instruction]], body: dict[str, Instruction], instruction: Instruction
) -> tuple[frozenset[int], frozenset[str]]:
  parameters, passes = set(), set()
  seen: set[str] = set()
  waiting = list(instruction.operands)
  while waiting:
    name = waiting.pop()
    if name in seen or name not in body:
      continue
    seen.add(name)
    source = body[name]
    if source.opcode == "parameter":
      parameters.add(int(source.operands[0]))
    elif source.opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVES:
      continue
    elif source.opcode == "fusion":
      passes |= {part.opcode for called in _called(source) for part in computations[called].values()}
    elif source.opcode == "custom-call":
      target = re.search(r'custom_call_target="([^"]*)"', source.attributes)
      passes.add(f"custom-call {target[1]}" if target else "custom-call")
    else:
      passes.add(source.opcode)
    waiting += source.operands if source.opcode != "parameter" else ()
  return frozenset(parameters), frozenset(passes)


def collectives(text: str) -> tuple[Collective, ...]:
  """Lists a program's collectives.

  Args:
    text: HLO text of a compiled (scheduled) program.

  Returns:
    Those of the entry computation first, in the order in which they start, then those in fusions and loops.
  """
  computations, entry = parse(text)
  result = []
  for name in sorted(computations, key=lambda name: name != entry):
    body = computations[name]
    for instruction in body.values():
      opcode = instruction.opcode.removesuffix("-start")
      if opcode not in COLLECTIVES:
        continue
      started = instruction.opcode != opcode
      inputs = tuple(shape for operand in instruction.operands for shape in body[operand].shapes)
      shapes = instruction.shapes
      # A start's result is (operands, results, bookkeeping); only an all-reduce's is the results alone.
      if started and opcode != "all-reduce":
        shapes = shapes[len(inputs) : 2 * len(inputs)]
      pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", instruction.attributes)
      channel = re.search(r"channel_id=(\d+)", instruction.attributes)
      flat = _numbers(pairs[1]) if pairs else ()
      parameters, passes = _origin(computations, body, instruction)
      result.append(
        Collective(
          instruction.name,
          opcode,
          started,
          replica_groups(instruction.attributes),
          tuple(zip(flat[::2], flat[1::2], strict=True)) if pairs else None,
          int(channel[1]) if channel else None,
          inputs,
          shapes,
          parameters,
          passes,
        )
      )
  return tuple(result)
