"""Replica groups made canonical, checked and translated; the one place that does it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence

Groups = tuple[tuple[int, ...], ...]


def freeze(groups: Iterable[Iterable[int]] | None) -> Groups | None:
  """Returns nested sequences of ints as nested tuples, so that they can key a cache.

  Args:
    groups: None, or an iterable of iterables of ints (lists, ranges, tuples, 1-D tensors on the CPU).

  Returns:
    None for None, else a tuple of tuples.

  Raises:
    TypeError: not a collection of collections of ints.
  """
  if groups is None:
    return None
  try:
    given = tuple(map(tuple, groups))
    if {type(member) for group in given for member in group} == {int}:  # the common case, at a third of the cost
      return given
    return tuple(tuple(map(operator.index, group)) for group in given)
  except TypeError as error:
    raise TypeError(
      f"groups (or pairs) must be a list of lists of ordinals, such as [[0, 1], [2, 3]]; got {groups!r}"
    ) from error


def canonical(op: str, groups: Groups | None, world_size: int) -> Groups:
  """Checks a partition of the world.

  Args:
    op: name of the collective, for the message.
    groups: frozen groups of ordinals; None or empty means one group, the world in ordinal order.
    world_size: number of ranks.

  Returns:
    The groups, in the order given: that order is the order of the data.

  Raises:
    ValueError: an ordinal is repeated, missing or outside the world, or a group is empty. XLA needs each replica in
      exactly one group of every collective.
  """
  if not groups:
    return (tuple(range(world_size)),)
  members = sorted(member for group in groups for member in group)
  if members == list(range(world_size)) and all(groups):
    return groups
  outside = [member for member in members if not 0 <= member < world_size]
  repeated = sorted({a for a, b in itertools.pairwise(members) if a == b})
  missing = sorted(set(range(world_size)) - set(members))
  if outside:
    what = f"ordinals {outside} are outside the world of {world_size} ranks"
  elif repeated:
    what = f"ordinals {repeated} stand in them twice"
  elif missing:
    what = f"ordinals {missing} are in no group"
  else:
    what = "a group is empty"
  raise ValueError(
    f"{op}: groups {_text(groups)} do not partition the {world_size} ranks: {what}. "
    f"Put each ordinal 0..{world_size - 1} into exactly one group."
  )


def common_size(op: str, groups: Groups) -> int:
  """Returns the size that all groups share.

  Args:
    op: name of the collective, for the message.
    groups: canonical groups.

  Returns:
    The number of members of each group.

  Raises:
    ValueError: the sizes differ; XLA gives every replica a result of one shape.
  """
  size = len(groups[0])
  if any(len(group) != size for group in groups):
    sizes = [len(group) for group in groups]
    raise ValueError(
      f"{op}: groups {_text(groups)} have sizes {sizes}, but its result has one shape on all ranks. "
      "Use groups of one size (all_reduce alone takes unequal ones)."
    )
  return size


def pairs(op: str, value: Groups, world_size: int) -> Groups:
  """Checks the (source, target) pairs of a permutation.

  Args:
    op: name of the collective, for the message.
    value: frozen pairs of ordinals.
    world_size: number of ranks.

  Returns:
    The pairs.

  Raises:
    ValueError: a pair is not two ordinals of the world, or a source or a target stands in two pairs, which XLA rejects.
  """
  for pair in value:
    if len(pair) != 2 or not all(0 <= ordinal < world_size for ordinal in pair):
      raise ValueError(
        f"{op}: pair {list(pair)} is not [source, target] with ordinals 0..{world_size - 1}. "
        "Give pairs such as [[0, 1], [1, 0]]."
      )
  for side, name, cure in ((1, "target", "receives one tensor"), (0, "source", "sends to one target")):
    ends = [pair[side] for pair in value]
    twice = sorted({end for end in ends if ends.count(end) > 1})
    if twice:
      raise ValueError(f"{op}: {name} {twice} stands in several pairs of {_text(value)}, but each rank {cure}.")
  return value


def translate(groups: Groups, replicas: Sequence[int]) -> Groups:
  """Renames ordinals to replica ids.

  XLA concatenates, numbers shards and matches peers in the order in which a group lists its members, so a list
  translated member by member is ordinal order, with no data moved to get it.

  Args:
    groups: canonical groups, or pairs, of ordinals.
    replicas: replica id of each ordinal.

  Returns:
    The same structure, of replica ids.
  """
  return tuple(tuple(replicas[ordinal] for ordinal in group) for group in groups)


def _text(groups: Groups) -> str:
  return str([list(group) for group in groups])
