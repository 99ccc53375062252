"""Plans: shapes of the results, translation to replicas, and every error that a user's arguments can cause."""

import dataclasses

import pytest
import torch

from torch_xla.collectives import plan
from torch_xla.collectives.hlo import Array


@dataclasses.dataclass(frozen=True)
class World:
  size: int = 4
  replicas: tuple[int, ...] = (0, 2, 3, 1)


WORLD = World()


def f32(*dims):
  return (Array(torch.float32, dims),)


def gather(kinds, dim=0, groups=None, channel=None, ids=False):
  return plan.all_gather(WORLD, kinds, dim, groups, True, channel, ids)


def scatter(kinds, reduce="sum", scale=1.0, dim=0, count=4, groups=None):
  return plan.reduce_scatter(WORLD, kinds, reduce, scale, dim, count, groups, True, None, False)


def exchange(kinds, split=0, concat=0, count=4, groups=None):
  return plan.all_to_all(WORLD, kinds, split, concat, count, groups, True)


def test_results_have_the_documented_shapes():
  assert gather(f32(2, 3), -1).results == f32(2, 12)
  assert gather(f32()).results == f32(4)
  assert gather(f32(0, 3), 0).results == f32(0, 3)
  assert scatter(f32(8, 3)).results == f32(2, 3)
  assert scatter(f32(8, 3), count=2, groups=((0, 1), (2, 3))).results == f32(4, 3)
  assert exchange(f32(4, 3), 0, 1).results == f32(1, 12)
  assert exchange(f32(4, 3), -2, -2).results == f32(4, 3)
  assert plan.collective_permute(WORLD, f32(5), ((0, 1),), True).results == f32(5)


def test_ordinals_become_replicas_in_the_order_given():
  assert gather(f32(1)).groups == ((0, 2, 3, 1),)
  assert gather(f32(1), groups=((3, 0), (1, 2))).groups == ((1, 0), (2, 3))
  assert plan.collective_permute(WORLD, f32(1), ((1, 3), (0, 0)), True).groups == ((2, 1), (0, 0))
  assert plan.all_reduce(WORLD, f32(1), "sum", 1.0, ((1,), (0, 2, 3)), True).groups == ((2,), (0, 3, 1))


def test_a_broadcast_knows_the_root_of_each_group():
  assert plan.collective_broadcast(WORLD, f32(1), 3, None, True).roots == (1,)
  assert plan.collective_broadcast(WORLD, f32(1), 3, ((0, 1), (2, 3)), True).roots == (-1, 1)


def test_plans_are_hashable_and_equal_by_value():
  assert gather(f32(2)) == gather(f32(2))
  assert len({gather(f32(2)), gather(f32(2)), gather(f32(3))}) == 2


@pytest.mark.parametrize(
  ("call", "kind", "text"),
  [
    (lambda: gather(f32(2, 3), 2), ValueError, r"all_gather: dim 2 is out of range.*\[2, 3\]. Use -2..1"),
    (lambda: gather(f32(2), "0"), TypeError, "dim must be an int, got '0' of type str"),
    (lambda: gather(f32(2), True), TypeError, "dim must be an int, got True"),
    (lambda: gather(f32(2), channel=0), ValueError, "channel_id 0 is not positive"),
    (lambda: gather(f32(2), ids=True), ValueError, "use_global_device_ids=True without a channel_id"),
    (lambda: gather(f32(2), groups=((0,), (1, 2, 3))), ValueError, r"have sizes \[1, 3\]"),
    (lambda: scatter(f32(6)), ValueError, r"shape \[6\] has size 6, not a multiple of shard_count 4. Pad it to 8"),
    (lambda: scatter(f32(8), count=2), ValueError, "shard_count is 2, but each group has 4 ranks"),
    (lambda: scatter(f32(8), "avg"), ValueError, "reduce_type 'avg' is unknown. Use one of sum, mul, and"),
    (lambda: scatter(f32()), ValueError, r"scatter_dim 0 is out of range.*none: it has no dimensions"),
    (lambda: scatter(f32(8), scale="1"), TypeError, "scale must be a number, got '1' of type str"),
    (lambda: exchange(f32(6)), ValueError, "not a multiple of split_count 4"),
    (lambda: exchange(f32(4), count=3), ValueError, "split_count is 3, but each group has 4 ranks"),
    (lambda: exchange(f32(4), concat=1), ValueError, "concat_dimension 1 is out of range"),
    (lambda: exchange(f32(4), split=-2), ValueError, "split_dimension -2 is out of range"),
    (
      lambda: plan.all_reduce(WORLD, f32(1), "and", 1.0, None, True),
      TypeError,
      "'and' works on bits, but the dtype is torch.float32",
    ),
    (
      lambda: plan.all_reduce(WORLD, (Array(torch.complex64, (1,)),), "max", 1.0, None, True),
      TypeError,
      "'max' needs an order, but the dtype is torch.complex64",
    ),
    (
      lambda: plan.all_reduce(WORLD, (Array(torch.bool, (1,)),), "sum", 0.5, None, True),
      TypeError,
      "scale 0.5 has no torch.bool value",
    ),
    (
      lambda: plan.collective_broadcast(WORLD, f32(1), 4, None, True),
      ValueError,
      "root_ordinal 4 is not a rank. Use one of 0..3",
    ),
    (
      lambda: gather((Array(torch.complex128, (1,)),)),
      TypeError,
      "XLA has no dtype torch.complex128. Convert to one of bool",
    ),
  ],
)
def test_errors_name_the_call_the_values_and_the_cure(call, kind, text):
  with pytest.raises(kind, match=text):
    call()


def test_tensors_elsewhere_are_refused():
  with pytest.raises(ValueError, match=r"operands are on \['cpu'\].*Move them with .to\('xla'\)"):
    plan.check_tensors("all_gather", [torch.ones(1)])
  with pytest.raises(TypeError, match="got a int"):
    plan.check_tensors("all_gather", [3])


def test_outputs_of_another_type_are_refused():
  with pytest.raises(ValueError, match=r"output has float32\[2\], but the result is float32\[3\]"):
    plan.check_output("all_gather", [torch.ones(2)], f32(3))
