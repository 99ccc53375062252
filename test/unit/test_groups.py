"""Groups and pairs: what is accepted, what is refused, and how they become replica ids."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_xla.collectives import groups


@pytest.mark.parametrize(
  "value",
  [[[0, 1], [2, 3]], ((0, 1), (2, 3)), [range(2), range(2, 4)], torch.tensor([[0, 1], [2, 3]])],
)
def test_freeze_takes_any_nesting_of_ints(value):
  assert groups.freeze(value) == ((0, 1), (2, 3))


@pytest.mark.parametrize("value", [[0, 1], 3, [["a"]], [[0.5]]])
def test_freeze_refuses_what_is_no_nesting_of_ints(value):
  with pytest.raises(TypeError, match="list of lists of ordinals"):
    groups.freeze(value)


@pytest.mark.parametrize("value", [None, ()])
def test_no_groups_are_the_world_in_order(value):
  assert groups.canonical("op", value, 4) == ((0, 1, 2, 3),)


@given(st.data(), st.integers(1, 12))
def test_any_partition_is_kept_as_it_is(data, size):
  order = data.draw(st.permutations(range(size)))
  cuts = sorted(data.draw(st.sets(st.integers(1, size)))) if size > 1 else []
  parts = tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, size], strict=True) if a < b)
  assert groups.canonical("op", parts, size) == parts


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (((0, 1), (2, 9)), r"ordinals \[9\] are outside the world of 4 ranks"),
    (((0, 1), (1, 2, 3)), r"ordinals \[1\] stand in them twice"),
    (((0, 1),), r"ordinals \[2, 3\] are in no group"),
    (((0, 1, 2, 3), ()), "a group is empty"),
  ],
)
def test_what_is_no_partition_is_refused(value, text):
  with pytest.raises(ValueError, match=text) as error:
    groups.canonical("all_gather", value, 4)
  assert str(error.value).startswith("all_gather: groups [[0, 1")
  assert "Put each ordinal 0..3 into exactly one group" in str(error.value)


def test_unequal_sizes_are_named():
  assert groups.common_size("op", ((0, 1), (2, 3))) == 2
  with pytest.raises(ValueError, match=r"have sizes \[1, 3\].*Use groups of one size"):
    groups.common_size("op", ((0,), (1, 2, 3)))


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (((0, 4),), r"pair \[0, 4\] is not \[source, target\] with ordinals 0..3"),
    (((0, 1, 2),), r"pair \[0, 1, 2\]"),
    (((0, 1), (2, 1)), r"target \[1\] stands in several pairs.*receives one tensor"),
    (((0, 1), (0, 2)), r"source \[0\] stands in several pairs.*sends to one target"),
  ],
)
def test_wrong_pairs_are_refused(value, text):
  with pytest.raises(ValueError, match=text):
    groups.pairs("collective_permute", value, 4)


@given(st.permutations(range(8)))
def test_translation_renames_member_by_member(replicas):
  value = ((3, 1), (0, 2), (7, 6, 5, 4))
  renamed = groups.translate(value, replicas)
  assert [[replicas.index(r) for r in group] for group in renamed] == [list(group) for group in value]
