"""One collective call as data: what it takes, what it must give, and how it is called, planned and drawn at random.

A Case names no device, so the same cases run on a pod (test/pjrt), are compiled for TPUs (test/aot) and are planned in
unit tests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import reference
import torch
from hypothesis import strategies as st

from torch_xla.collectives import ops, rules
from torch_xla.collectives.hlo import Array

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTS = ("int8", "uint8", "int16", "int32", "int64", "bool")
DTYPES = (*FLOATS, *INTS, "complex64")
REDUCTIONS = ("sum", "mul", "min", "max", "and", "or")
Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Case:
  """One call.

  Attributes:
    op: name of the collective.
    dtypes: dtype name of each tensor.
    shapes: shape of each tensor.
    args: the call's own arguments, as (name, value) pairs.
    groups: groups of ordinals, or None; for a permutation its pairs.
    pin: pin_layout.
    form: "tensor", "list" or "output" (a list with output=).
  """

  op: str
  dtypes: tuple[str, ...]
  shapes: tuple[tuple[int, ...], ...]
  args: tuple[tuple[str, Any], ...] = ()
  groups: Groups | None = None
  pin: bool = True
  form: str = "tensor"


def values(case: Case, world: int) -> list[list[torch.Tensor]]:
  """Returns each rank's tensors: small numbers, so that sums and products are exact in every dtype."""
  dtypes = [getattr(torch, name) for name in case.dtypes]
  return [
    [
      _value(dtype, shape, 1000 * rank + index)
      for index, (dtype, shape) in enumerate(zip(dtypes, case.shapes, strict=True))
    ]
    for rank in range(world)
  ]


def _value(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
  generator = torch.Generator().manual_seed(seed)
  # Products of 8 ranks stay below 2^7 = 128 if at most every other factor is 2: rarely more, and then they wrap alike.
  number = torch.randint(0, 3, shape, generator=generator)
  if dtype == torch.bool:
    return number > 0
  if dtype.is_complex:
    return torch.complex(number.float(), torch.randint(-1, 2, shape, generator=generator).float())
  return number.to(dtype)


def expected(case: Case, world: int) -> list[list[torch.Tensor]]:
  """Returns what the oracle gives each rank."""
  given = values(case, world)
  by_tensor = [_oracle(case, [mine[index] for mine in given]) for index in range(len(case.shapes))]
  return [[each[rank] for each in by_tensor] for rank in range(world)]


def _oracle(case: Case, ranks: list[torch.Tensor]) -> list[torch.Tensor]:
  args, groups = dict(case.args), case.groups
  if case.op == "all_gather":
    return reference.all_gather(ranks, args["dim"], groups)
  if case.op == "reduce_scatter":
    return reference.reduce_scatter(ranks, args["reduce_type"], args["scale"], args["scatter_dim"], groups)
  if case.op == "all_reduce":
    return reference.all_reduce(ranks, args["reduce_type"], args["scale"], groups)
  if case.op == "all_to_all":
    return reference.all_to_all(ranks, args["split_dimension"], args["concat_dimension"], groups)
  if case.op == "collective_permute":
    return reference.collective_permute(ranks, groups)
  return reference.collective_broadcast(ranks, args["root_ordinal"], groups)


def call(case: Case, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
  """Makes the call through the public function, and returns the results, for in-place calls the tensors."""
  function = getattr(ops, case.op)
  keywords: dict[str, Any] = {**dict(case.args), "pin_layout": case.pin}
  keywords["pairs" if case.op == "collective_permute" else "groups"] = _lists(case.groups)
  first = {"reduce_scatter": "input", "all_reduce": "inputs", "collective_broadcast": "tensors"}.get(case.op, "value")
  if case.form == "output":
    world = _World(_size(case))
    kinds = plan(case, world).results
    keywords["output"] = [
      torch.full(k.dims, 7, device=t.device).to(k.dtype) for k, t in zip(kinds, tensors, strict=True)
    ]
  result = function(**{first: tensors[0] if case.form == "tensor" else tensors}, **keywords)
  if result is None:
    return tensors
  assert case.form != "output" or result is keywords["output"]
  return [result] if case.form == "tensor" else list(result)


def _lists(groups: Groups | None) -> list[list[int]] | None:
  return None if groups is None else [list(group) for group in groups]


@dataclasses.dataclass(frozen=True)
class _World:
  size: int
  order: tuple[int, ...] = ()

  @property
  def replicas(self) -> tuple[int, ...]:
    return self.order or tuple(range(self.size))


def _size(case: Case) -> int:
  import torch_xla.runtime as xr

  return xr.world_size()


def plan(case: Case, world: Any) -> Any:
  """Returns the Plan of a case; world is anything with a size and the replica of each ordinal."""
  kinds = tuple(Array(getattr(torch, d), s) for d, s in zip(case.dtypes, case.shapes, strict=True))
  return rules.TABLE[case.op].plan(world, kinds, *planner_args(case))


def planner_args(case: Case) -> tuple:
  """Returns the arguments that the row's planner takes, in its order."""
  args = dict(case.args)
  if case.op == "all_gather":
    return (args["dim"], case.groups, case.pin, args.get("channel_id"), args.get("use_global_device_ids", False))
  if case.op == "reduce_scatter":
    own = (args["reduce_type"], args["scale"], args["scatter_dim"], args["shard_count"])
    return (*own, case.groups, case.pin, args.get("channel_id"), args.get("use_global_device_ids", False))
  if case.op == "collective_permute":
    return (case.groups, case.pin)
  return (*args.values(), case.groups, case.pin)


def with_replicas(order: tuple[int, ...]) -> Any:
  """Returns a world in which rank i is replica order[i]."""
  return _World(len(order), order)


# --- the systematic list -------------------------------------------------------------------------------------------


def partitions(world: int) -> list[Groups | None]:
  """Returns groupings of one size: the world, halves, interleaved and reversed ones."""
  half = world // 2
  return [
    None,
    (tuple(range(half)), tuple(range(half, world))),
    (tuple(range(1, world, 2)), tuple(range(0, world, 2))),
    (tuple(range(world - 1, -1, -1)),),
  ]


def systematic(world: int) -> list[Case]:
  """Returns every op x dtype x group kind once, pins and forms spread over them."""
  return list(_systematic(world))


def _systematic(world: int) -> Iterator[Case]:
  kinds = partitions(world)
  uneven: Groups = ((0,), tuple(range(1, world)))
  ring = tuple((rank, (rank + 1) % world) for rank in range(world))
  partial: Groups = ((0, 1), (2, 3))
  for position, dtype in enumerate(DTYPES):
    for number, groups in enumerate(kinds):
      count = len(groups[0]) if groups else world
      pin = (position + number) % 2 == 0
      one, two = (dtype,), (dtype, "float32")
      shape, other = (count, 3), (2, count * 2)
      yield Case("all_gather", one, (shape,), (("dim", number % 2),), groups, pin)
      yield Case("all_gather", two, (shape, other), (("dim", -1),), groups, not pin, ("list", "output")[number % 2])
      split = (("split_dimension", 1), ("concat_dimension", number % 3), ("split_count", count))
      yield Case("all_to_all", one, ((2, count, 3),), split, groups, pin)
      yield Case("collective_broadcast", two, (shape, other), (("root_ordinal", number),), groups, pin, "list")
      reduce = [r for r in REDUCTIONS if _admits(dtype, r)]
      for kind in (reduce[number % len(reduce)], reduce[(number + position) % len(reduce)]):
        scatter = (("reduce_type", kind), ("scale", 1.0), ("scatter_dim", number % 2), ("shard_count", count))
        yield Case("reduce_scatter", one, ((2 * count, count),), scatter, groups, pin)
        yield Case("all_reduce", one, (shape,), (("reduce_type", kind), ("scale", 1.0)), groups, pin)
      listed = (("reduce_type", "sum"), ("scale", 1.0), ("scatter_dim", 0), ("shard_count", count))
      yield Case("reduce_scatter", two, ((count, 2), (count,)), listed, groups, not pin, ("output", "list")[number % 2])
      yield Case("all_reduce", two, (shape, ()), (("reduce_type", "sum"), ("scale", 1.0)), groups, not pin, "list")
    for reduce_type in ("sum", "max"):
      if _admits(dtype, reduce_type):
        yield Case("all_reduce", one, ((3,),), (("reduce_type", reduce_type), ("scale", 1.0)), uneven)
    for pin, pairs in ((True, ring), (False, partial), (True, ((1, 1),)), (False, ())):
      yield Case("collective_permute", one, ((2, 3),), (), pairs, pin)
    yield Case("collective_permute", two, ((2, 3), (5,)), (), ring, True, "list")
    yield Case("all_gather", one, ((),), (("dim", 0),))
    yield Case("all_gather", one, ((0, 3),), (("dim", 1),))
    yield Case("reduce_scatter", one, ((0, world),), (*listed[:2], ("scatter_dim", 1), ("shard_count", world)))
  for dtype in FLOATS:
    yield Case("all_reduce", (dtype,), ((4,),), (("reduce_type", "sum"), ("scale", 0.5)), kinds[1])
    scaled = (("reduce_type", "sum"), ("scale", 0.25), ("scatter_dim", 0), ("shard_count", world))
    yield Case("reduce_scatter", (dtype,), ((world, 2),), scaled)
  for dtype in (
    "int32",
    "int64",
  ):  # as in xm.reduce_scatter(xm.REDUCE_SUM, -torch.arange(world), 1.0 / world, 0, world)
    scaled = (("reduce_type", "sum"), ("scale", 1.0 / world), ("scatter_dim", 0), ("shard_count", world))
    yield Case("reduce_scatter", (dtype,), ((world, 2),), scaled)
  channel = (("channel_id", 3), ("use_global_device_ids", True))
  yield Case("all_gather", ("float32",), ((2, 3),), (("dim", 0), *channel), kinds[1])
  scattered = (("reduce_type", "sum"), ("scale", 1.0), ("scatter_dim", 0), ("shard_count", world), *channel)
  yield Case("reduce_scatter", ("float32",), ((world,),), scattered)


def _admits(dtype: str, reduce_type: str) -> bool:
  if reduce_type in ("and", "or"):
    return dtype in INTS
  return not (dtype == "complex64" and reduce_type in ("min", "max"))


# --- drawn at random -----------------------------------------------------------------------------------------------


@st.composite
def cases(draw: Any, world: int) -> Case:
  """Draws any valid call for a world of that many ranks."""
  op = draw(st.sampled_from(sorted(rules.TABLE)))
  dtype = draw(st.sampled_from(DTYPES))
  pin = draw(st.booleans())
  if op == "collective_permute":
    sources = draw(st.lists(st.integers(0, world - 1), unique=True))
    targets = draw(st.permutations(range(world)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    return Case(op, (dtype,), (shape,), (), tuple(zip(sources, targets[: len(sources)], strict=True)), pin)
  groups = draw(_groupings(world, unequal=op in ("all_reduce", "collective_broadcast")))
  count = len(groups[0]) if groups else world
  few = 1 if op == "all_to_all" else draw(st.integers(1, 3))
  form = "list" if few > 1 or op == "collective_broadcast" else "tensor"
  least = 0 if op in ("all_reduce", "collective_broadcast", "all_gather") else 1
  rank = draw(st.integers(least, 3))
  shapes = [[draw(st.integers(0, 4)) for _ in range(rank)] for _ in range(few)]
  dtypes = (dtype, *(draw(st.sampled_from(DTYPES)) for _ in range(few - 1)))
  args: tuple[tuple[str, Any], ...]
  dim = draw(st.integers(-rank, rank - 1)) if rank else draw(st.sampled_from((0, -1)))
  reduce_type = draw(st.sampled_from([r for r in REDUCTIONS if all(_admits(d, r) for d in dtypes)]))
  if op == "all_gather":
    args = (("dim", dim),)
    form = draw(st.sampled_from(("list", "output"))) if few > 1 else form
  elif op == "all_reduce":
    args = (("reduce_type", reduce_type), ("scale", 1.0))
  elif op == "collective_broadcast":
    args = (("root_ordinal", draw(st.integers(0, world - 1))),)
  else:
    for shape in shapes:
      shape[dim] *= count
    if op == "reduce_scatter":
      args = (("reduce_type", reduce_type), ("scale", 1.0), ("scatter_dim", dim), ("shard_count", count))
      form = draw(st.sampled_from(("list", "output"))) if few > 1 else form
    else:
      concat = draw(st.integers(-rank, rank - 1))
      args = (("split_dimension", dim), ("concat_dimension", concat), ("split_count", count))
  return Case(op, dtypes, tuple(map(tuple, shapes)), args, groups, pin, form)


@st.composite
def _groupings(draw: Any, world: int, unequal: bool) -> Groups | None:
  if draw(st.integers(0, 3)) == 0:
    return None
  order = draw(st.permutations(range(world)))
  if unequal and draw(st.booleans()):
    cuts = sorted(draw(st.sets(st.integers(1, world - 1), max_size=3)))
    return tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, world], strict=True))
  size = draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
  return tuple(tuple(order[i : i + size]) for i in range(0, world, size))


def close(result: torch.Tensor, wanted: torch.Tensor) -> bool:
  """Tells whether a result is the oracle's: exact for integers and moves, to the last bits for sums of floats."""
  if result.dtype != wanted.dtype or result.shape != wanted.shape:
    return False
  if result.dtype.is_floating_point or result.dtype.is_complex:
    loose = math.sqrt(torch.finfo(result.dtype).eps) if result.dtype.itemsize == 2 else 1e-5
    return torch.allclose(result, wanted, rtol=loose, atol=0, equal_nan=True)
  return torch.equal(result, wanted)
