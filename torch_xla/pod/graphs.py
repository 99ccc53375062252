"""What a rank is about to launch, and whether all ranks are about to launch the same."""

import hashlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import _XLAC
import torch

from torch_xla.pod.meeting import PodError, names

OURS = "xla::ordinal_"  # the names of every user computation that torch_xla.collectives traces begin so
_COLLECTIVE = re.compile(r" (xla::(?:ordinal_|all_|cross_replica_sum|reduce_scatter|collective_|send|recv)\w*)\(")
_LOWERED_COLLECTIVE = re.compile(
  r"stablehlo\.(?:all_gather|all_reduce|all_to_all|collective_|reduce_scatter|send|recv)"
)
_MODULE_NAME = re.compile(r"^module @\S+")  # ends in a number that counts this process's lowerings
_SHOWN = 6  # collectives named per group of ranks in a message

_contains: dict[bytes, bool] = {}


class Call(NamedTuple):
  """One collective that a rank has traced.

  Args:
    name: the operation's name in the graph.
    shapes: its operands, such as "f32[8]".
    site: file and line of the caller.
  """

  name: str
  shapes: str
  site: str

  def __str__(self) -> str:
    return f"{self.name}({self.shapes}) at {self.site}"


class Graph(NamedTuple):
  """What a rank is about to launch.

  Args:
    key: equal on all ranks where they launch the same.
    exact: True where equal keys prove equal programs; otherwise a new key has the lowered texts compared.
    where: what is done and where in the user's program.
    calls: the collectives that the rank has traced, in order.
    text: lowers the graph; slow.
  """

  key: bytes
  exact: bool
  where: str
  calls: tuple[Call, ...]
  text: Callable[[], str]


class Trace:
  """What a rank has traced since its last step.

  Args:
    device: its device, such as "xla:3".
  """

  def __init__(self, device: str):
    self.device = device
    self.known: set[bytes] = set()  # see agree
    self.forget()

  def forget(self) -> None:
    """Drops what was recorded since the last step."""
    self.calls: list[Call] = []  # since the last launch that held a collective
    self.outputs: list[torch.Tensor] = []
    self.history = b""  # stands for the recorded calls whose outputs were let go; empty where there were none

  def record(self, call: Call, outputs: Sequence[torch.Tensor]) -> None:
    """Notes a traced collective.

    Args:
      call: the collective.
      outputs: its results; kept until the next launch, because their hash says what led to them.
    """
    self.calls.append(call)
    self.outputs += outputs

  def let_go(self) -> None:
    """Folds the recorded results into a digest and drops them, so that they do not become outputs of a program."""
    if self.outputs:
      self.history = digest(self.history, _XLAC._get_graph_hash(self.outputs))
      self.outputs = []


def has_collective(tensors: Sequence[torch.Tensor], key: bytes) -> bool:
  """Says whether the pending graph of some tensors contains a collective.

  Args:
    tensors: tensors of one XLA device.
    key: their graph hash; the answer is remembered by it.

  Returns:
    True if it does.
  """
  if key not in _contains:
    _contains[key] = _COLLECTIVE.search(_XLAC._get_xla_tensors_text(tensors)) is not None
  return _contains[key]


def lowered(tensors: Sequence[torch.Tensor], device: str) -> str:
  """Lowers a pending graph to text that is equal on all ranks that traced the same.

  Args:
    tensors: the roots, or nothing for all live tensors of the device.
    device: such as "xla:3".

  Returns:
    StableHLO, or why it cannot be had.
  """
  try:
    return _MODULE_NAME.sub("module", _XLAC._get_stablehlo(tensors, device, [], False).decode())
  except RuntimeError as error:  # the comparison must reach every rank, whatever state this one is in
    return f"(this graph cannot be lowered: {str(error).splitlines()[0]})"


def shapes(tensors: Iterable[torch.Tensor]) -> str:
  """Writes the operands of a collective briefly.

  Args:
    tensors: the operands.

  Returns:
    Text like "float32[4, 2], int64[]".
  """
  return ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors)


def lowers_to_collective(text: str) -> bool:
  """Says whether lowered text contains a collective.

  Args:
    text: what `lowered` returned.

  Returns:
    True if it does.
  """
  return _LOWERED_COLLECTIVE.search(text) is not None


def digest(*parts: object) -> bytes:
  """Hashes the representation of some values, the same in every process."""
  return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def call_site(frame: FrameType | None = None) -> str:
  """Says which line of the user's program is running.

  Args:
    frame: where to start; None is the caller.

  Returns:
    "file:line" of the innermost frame outside torch, torch_xla and the standard library.
  """
  frame = innermost = frame or sys._getframe(1)
  while frame is not None and not _is_users(frame.f_code.co_filename):
    frame = frame.f_back
  frame = frame or innermost
  return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_MACHINERY = (
  os.path.dirname(torch.__file__) + os.sep,
  os.path.dirname(os.path.dirname(__file__)) + os.sep,  # torch_xla
  "<eval_with_key>",  # code that torch.fx makes
  "<frozen ",
)
_STDLIB = os.path.dirname(os.__file__) + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"


def _is_users(file: str) -> bool:
  if file.startswith(_MACHINERY):
    return False
  return not file.startswith(_STDLIB) or _PACKAGES in file


def agree(exchange: Callable[[Any, str], list[Any]], graph: Graph, known: set[bytes]) -> bool:
  """Makes sure that all ranks are about to launch the same program.

  Args:
    exchange: hands everyone's value to everyone: exchange(value, where) -> values in rank order; tuples may come
      back as lists.
    graph: what this rank is about to launch.
    known: keys whose programs were compared before; grows.

  Returns:
    True if the key was known on every rank, so that no new program is expected.

  Raises:
    PodError: the programs differ; raised on all ranks.
  """
  # Only what JSON can carry is exchanged: the peers may be other processes.
  own = graph.key.hex()
  heads = exchange((own, graph.exact or graph.key in known), graph.where)
  same = all(key == own for key, _ in heads)
  if same and all(is_known for _, is_known in heads):
    return not graph.exact
  text = graph.text()
  if same:
    mark = digest(text).hex()
    if all(other == mark for other in exchange(mark, graph.where)):
      known.add(graph.key)
      return False
  raise PodError(_mismatch(exchange((own, graph.where, [str(call) for call in graph.calls], text), graph.where)))


def _mismatch(views: list[tuple[str, str, list[str], str]]) -> str:
  groups: dict[tuple, list[int]] = {}
  for rank, (key, _, _, text) in enumerate(views):
    groups.setdefault((key, text), []).append(rank)
  ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))
  lines = [f"pod of {len(views)} ranks: the ranks are about to run different graphs."]
  for ranks in ordered:
    key, where, calls, _ = views[ranks[0]]
    shown = "; ".join(calls[:_SHOWN]) or "no collective"
    more = f"; and {len(calls) - _SHOWN} more" if len(calls) > _SHOWN else ""
    lines.append(f"  {names(ranks)}: {where}, graph {key[:16]}, traced {shown}{more}")
  lines.append(_first_difference(ordered[0], views[ordered[0][0]][3], ordered[1], views[ordered[1][0]][3]))
  lines.append("Trace the same operations with the same shapes and constants on every rank.")
  return "\n".join(lines)


def _first_difference(these: list[int], text: str, others: list[int], other_text: str) -> str:
  mine, theirs = text.splitlines(), other_text.splitlines()
  lines = enumerate(itertools.zip_longest(mine, theirs, fillvalue="(the graph ends)"), 1)
  for number, (line, other) in lines:
    if line != other:
      return (
        f"  first differing line ({number}):\n    {names(these)}: {line.strip()}\n    {names(others)}: {other.strip()}"
      )
  return "  the lowered graphs are equal; the ranks reached them by different operations"
