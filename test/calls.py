"""Calls of xm's collectives as plain data: a name and keywords, with what the oracle gives for them."""

from __future__ import annotations

from typing import Any

import reference
import torch

Value = torch.Tensor | list[torch.Tensor]
Keywords = dict[str, Any]
# A collective's name, each rank's operand and the keywords.
Step = tuple[str, list[Value], Keywords]

# What each function calls its operand; "value" where it is not listed.
OPERANDS = {"reduce_scatter": "input", "all_reduce": "inputs", "collective_broadcast": "tensors"}
# Work in place on a list.
IN_PLACE = ("collective_broadcast",)


def standard(size: int, root: int = 3) -> dict[str, Keywords]:
  """Returns one call of each collective for operands [size, ...]."""
  return {
    "all_gather": {"dim": 0},
    "reduce_scatter": {"reduce_type": "sum", "scale": 1.0, "scatter_dim": 0, "shard_count": size},
    "all_to_all": {"split_dimension": 0, "concat_dimension": 0, "split_count": size},
    "collective_permute": {"pairs": ring(size)},
    "all_reduce": {"reduce_type": "sum"},
    "collective_broadcast": {"root_ordinal": root % size},
  }


def ring(size: int) -> list[list[int]]:
  """Returns the pairs that send everything one rank on."""
  return [[rank, (rank + 1) % size] for rank in range(size)]


def oracle(name: str, ranks: list[Value], keywords: Keywords) -> list[Any]:
  """Returns what each rank must get: tensors for tensors, lists for lists."""
  if not isinstance(ranks[0], torch.Tensor):
    columns = [oracle(name, [rank[index] for rank in ranks], keywords) for index in range(len(ranks[0]))]
    return [[column[rank] for column in columns] for rank in range(len(ranks))]
  keywords = {"groups": None, "scale": 1.0, "dim": 0, "root_ordinal": 0, **keywords}
  groups = keywords["groups"]
  if name == "all_gather":
    return reference.all_gather(ranks, keywords["dim"], groups)
  if name == "reduce_scatter":
    return reference.reduce_scatter(ranks, keywords["reduce_type"], keywords["scale"], keywords["scatter_dim"], groups)
  if name == "all_reduce":
    return reference.all_reduce(ranks, keywords["reduce_type"], keywords["scale"], groups)
  if name == "all_to_all":
    return reference.all_to_all(ranks, keywords["split_dimension"], keywords["concat_dimension"], groups)
  if name == "collective_permute":
    return reference.collective_permute(ranks, keywords["pairs"])
  return reference.collective_broadcast(ranks, keywords["root_ordinal"], groups)


def bits(tensor: torch.Tensor) -> torch.Tensor:
  """Views a tensor as integers, so that NaN payloads and signs of zero count."""
  integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
  if tensor.is_complex():
    tensor = torch.view_as_real(tensor.resolve_conj())
  return tensor.contiguous().view(integers[tensor.dtype.itemsize])


def assert_same(results: list[Any], wanted: list[Any], what: object = "") -> None:
  """Compares each rank's results with the oracle's, bit for bit."""
  assert len(results) == len(wanted)
  for rank, (mine, want) in enumerate(zip(results, wanted, strict=True)):
    pairs = [(mine, want)] if isinstance(want, torch.Tensor) else list(zip(mine, want, strict=True))
    for got, expected in pairs:
      assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (
        f"{what}: rank {rank} got {got}, not {expected}"
      )
      differ = bits(got) != bits(expected)
      if differ.any():
        some = f"{bits(got)[differ][:5].tolist()} instead of {bits(expected)[differ][:5].tolist()}"
        raise AssertionError(
          f"{what}: rank {rank} got\n{got}\ninstead of\n{expected}\n{int(differ.sum())} differ: as bits {some}"
        )
