"""Bad arguments: refused at the call, on every rank, with both values and the cure; the pod goes on."""

import math
import re

import on_ranks_calls
import pytest
import torch
from on_ranks_calls import OnHost

pytestmark = pytest.mark.timeout(240)

X = torch.ones(8, 2)
SCATTER = {"reduce_type": "sum", "input": X, "scale": 1.0, "scatter_dim": 0, "shard_count": 8}
ALL_TO_ALL = {"value": X, "split_dimension": 0, "concat_dimension": 0, "split_count": 8}
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
UNEQUAL = [[0, 1, 2], [3, 4, 5, 6, 7]]

# (function, arguments, exception, what the text says)
REFUSED = [
  (
    "all_gather",
    {"value": X, "groups": [[0, 1, 2, 3], [3, 4, 5, 6, 7]]},
    "ValueError",
    r"ordinals \[3\] stand in them twice",
  ),
  ("all_gather", {"value": X, "groups": [[0, 1, 2, 3]]}, "ValueError", r"ordinals \[4, 5, 6, 7\] are in no group"),
  (
    "all_gather",
    {"value": X, "groups": [[0, 1, 2, 3], [4, 5, 6, 8]]},
    "ValueError",
    r"ordinals \[8\] are outside the world of 8",
  ),
  ("all_gather", {"value": X, "groups": [[-1, 0, 1, 2, 3, 4, 5, 6, 7]]}, "ValueError", r"ordinals \[-1\] are outside"),
  ("all_gather", {"value": X, "groups": [list(range(8)), []]}, "ValueError", "a group is empty"),
  ("all_gather", {"value": X, "groups": UNEQUAL}, "ValueError", r"sizes \[3, 5\].*Use groups of one size"),
  ("all_gather", {"value": X, "groups": [0, 1]}, "TypeError", r"list of lists of ordinals.*got \[0, 1\]"),
  ("all_gather", {"value": X, "groups": [["a"]]}, "TypeError", "list of lists of ordinals"),
  (
    "all_gather",
    {"value": X, "dim": 2},
    "ValueError",
    r"dim 2 is out of range for a tensor of shape \[8, 2\]. Use -2..1",
  ),
  ("all_gather", {"value": X, "dim": -3}, "ValueError", r"dim -3 is out of range .*\[8, 2\]"),
  ("all_gather", {"value": X, "dim": 1.0}, "TypeError", "dim must be an int, got 1.0 of type float"),
  (
    "all_gather",
    {"value": X, "output": torch.zeros(8, 2)},
    "ValueError",
    r"output has float32\[8, 2\], but the result is float32\[64, 2\]",
  ),
  (
    "all_gather",
    {"value": X, "output": torch.zeros(64, 2).int()},
    "ValueError",
    r"output has int32\[64, 2\].*float32\[64, 2\]",
  ),
  (
    "all_gather",
    {"value": [X, X], "output": [torch.zeros(64, 2)]},
    "ValueError",
    r"output has float32\[64, 2\], but the result is",
  ),
  ("all_gather", {"value": X, "channel_id": 0}, "ValueError", "channel_id 0 is not positive"),
  (
    "all_gather",
    {"value": X, "use_global_device_ids": True},
    "ValueError",
    "use_global_device_ids=True without a channel_id",
  ),
  ("all_gather", {"value": "x"}, "TypeError", "takes a tensor or a list of tensors, got a str"),
  ("all_gather", {"value": [X, 1]}, "TypeError", "takes a tensor or a list of tensors, got a int"),
  ("all_gather", {"value": OnHost(X)}, "ValueError", r"on \['cpu'\], but must be on one XLA device.*\.to\('xla'\)"),
  ("all_gather", {"value": [X, OnHost(X)]}, "ValueError", r"on \['cpu', 'xla:\d'\]"),
  (
    "all_gather",
    {"value": OnHost(torch.zeros(2, dtype=torch.complex128))},
    "TypeError",
    r"no dtype torch.complex128. Convert to one of .*complex64",
  ),
  (
    "reduce_scatter",
    {**SCATTER, "shard_count": 4},
    "ValueError",
    "shard_count is 4, but each group has 8 ranks. Pass shard_count=8",
  ),
  (
    "reduce_scatter",
    {**SCATTER, "groups": HALVES},
    "ValueError",
    "shard_count is 8, but each group has 4 ranks. Pass shard_count=4",
  ),
  (
    "reduce_scatter",
    {**SCATTER, "input": torch.ones(9, 2)},
    "ValueError",
    r"dimension 0 of shape \[9, 2\] has size 9, not a multiple of shard_count 8. Pad it to 16",
  ),
  (
    "reduce_scatter",
    {**SCATTER, "input": torch.tensor(1.0)},
    "ValueError",
    r"scatter_dim 0 is out of range for a tensor of shape \[\]",
  ),
  ("reduce_scatter", {**SCATTER, "scatter_dim": 5}, "ValueError", r"scatter_dim 5 is out of range .*\[8, 2\]"),
  (
    "reduce_scatter",
    {**SCATTER, "reduce_type": "avg"},
    "ValueError",
    "reduce_type 'avg' is unknown. Use one of sum, mul",
  ),
  ("reduce_scatter", {**SCATTER, "scale": "1"}, "TypeError", "scale must be a number, got '1' of type str"),
  ("reduce_scatter", {**SCATTER, "input": X.bool(), "scale": 0.5}, "TypeError", r"scale 0.5 has no torch.bool value"),
  ("reduce_scatter", {**SCATTER, "groups": UNEQUAL, "shard_count": 3}, "ValueError", r"sizes \[3, 5\]"),
  (
    "reduce_scatter",
    {**SCATTER, "output": torch.zeros(2, 2)},
    "ValueError",
    r"output has float32\[2, 2\], but the result is float32\[1, 2\]",
  ),
  (
    "all_reduce",
    {"reduce_type": "and", "inputs": X},
    "TypeError",
    "'and' works on bits, but the dtype is torch.float32",
  ),
  (
    "all_reduce",
    {"reduce_type": "max", "inputs": torch.zeros(2, dtype=torch.complex64)},
    "TypeError",
    "'max' needs an order, but the dtype is torch.complex64",
  ),
  ("all_reduce", {"reduce_type": "SUM", "inputs": X}, "ValueError", "reduce_type 'SUM' is unknown"),
  (
    "all_reduce",
    {"reduce_type": "sum", "inputs": X, "groups": [[0], [0, 1, 2, 3, 4, 5, 6]]},
    "ValueError",
    r"\[0\] stand in them twice",
  ),
  ("all_reduce", {"reduce_type": "sum", "inputs": X > 0, "scale": 2}, "TypeError", "scale 2 has no torch.bool value"),
  ("all_reduce", {"reduce_type": "sum", "inputs": {"a": X}}, "TypeError", "list of tensors, got a dict"),
  ("all_to_all", {**ALL_TO_ALL, "split_count": 4}, "ValueError", "split_count is 4, but each group has 8 ranks"),
  ("all_to_all", {**ALL_TO_ALL, "split_dimension": 2}, "ValueError", r"split_dimension 2 is out of range .*\[8, 2\]"),
  (
    "all_to_all",
    {**ALL_TO_ALL, "concat_dimension": -3},
    "ValueError",
    r"concat_dimension -3 is out of range .*\[8, 2\]",
  ),
  (
    "all_to_all",
    {**ALL_TO_ALL, "split_dimension": 1},
    "ValueError",
    r"dimension 1 of shape \[8, 2\] has size 2, not a multiple of split_count 8",
  ),
  ("all_to_all", {**ALL_TO_ALL, "value": torch.tensor(1.0)}, "ValueError", r"out of range for a tensor of shape \[\]"),
  ("all_to_all", {**ALL_TO_ALL, "groups": [[0, 1], [2, 3], [4, 5], [6]]}, "ValueError", r"\[7\] are in no group"),
  (
    "collective_permute",
    {"value": X, "pairs": [[0, 1], [2, 1]]},
    "ValueError",
    r"target \[1\] stands in several pairs",
  ),
  (
    "collective_permute",
    {"value": X, "pairs": [[0, 1], [0, 2]]},
    "ValueError",
    r"source \[0\] stands in several pairs",
  ),
  (
    "collective_permute",
    {"value": X, "pairs": [[0, 8]]},
    "ValueError",
    r"pair \[0, 8\] is not \[source, target\] with ordinals 0..7",
  ),
  ("collective_permute", {"value": X, "pairs": [[0, 1, 2]]}, "ValueError", r"pair \[0, 1, 2\] is not"),
  ("collective_permute", {"value": X, "pairs": [0, 1]}, "TypeError", "groups \\(or pairs\\) must be a list of lists"),
  (
    "collective_broadcast",
    {"tensors": [X], "root_ordinal": 8},
    "ValueError",
    "root_ordinal 8 is not a rank. Use one of 0..7",
  ),
  ("collective_broadcast", {"tensors": [X], "root_ordinal": -1}, "ValueError", "root_ordinal -1 is not a rank"),
  ("collective_broadcast", {"tensors": X}, "TypeError", "works in place on a list of tensors, got a Tensor"),
  ("collective_broadcast", {"tensors": [X], "groups": [[0]]}, "ValueError", r"\[1, 2, 3, 4, 5, 6, 7\] are in no group"),
  ("all_gather_bucketized", {"input_list": X}, "TypeError", "input_list: must be a list of tensors, got a Tensor"),
  ("all_gather_bucketized", {"input_list": [X, X], "output": [X]}, "ValueError", "output: has 1 tensors for 2 inputs"),
  (
    "reduce_scatter_bucketized",
    {"reduce_type": "sum", "input_list": [X], "scale": 1.0, "scatter_dim": 0, "shard_count": 3},
    "ValueError",
    "shard_count is 3, but each group has 8",
  ),
]


@pytest.mark.parametrize(
  ("name", "keywords", "error", "words"), REFUSED, ids=[f"{index}-{row[0]}" for index, row in enumerate(REFUSED)]
)
def test_refused_at_the_call_on_every_rank_and_the_next_collective_is_right(v3_pod, name, keywords, error, words):
  """V9."""
  assert v3_pod.size == 8
  for rank, (kind, text, gathered) in enumerate(v3_pod.run(on_ranks_calls.outcome, name, keywords)):
    assert kind == error and re.search(words, text), f"rank {rank} got {kind}: {text}"
    if kind == "ValueError" and "_bucketized" not in name:
      assert text.startswith(f"{name}: "), text
    assert gathered == list(range(8))


def test_many_groupings_that_are_no_partition(v3_pod):
  """V9: each ordinal left out, and each written twice."""
  for ordinal in range(8):
    for groups, words in (
      ([[other for other in range(8) if other != ordinal]], rf"\[{ordinal}\] are in no group"),
      ([list(range(8)), [ordinal]], rf"\[{ordinal}\] stand in them twice"),
    ):
      for kind, text, gathered in v3_pod.run(
        on_ranks_calls.outcome, "all_reduce", {"reduce_type": "sum", "inputs": X, "groups": groups}
      ):
        assert kind == "ValueError" and re.search(words, text), text
        assert gathered == list(range(8))


def test_sizes_that_differ_between_ranks_raise_on_every_rank_and_name_each_size(v3_pod):
  """V10: nobody hangs, everybody is told every rank's size, and the pod goes on."""
  for rank, (kind, text, gathered) in enumerate(v3_pod.run(on_ranks_calls.gather_own_size, timeout_s=60)):
    assert kind == "PodError", (rank, kind, text)
    for other in range(8):
      assert re.search(rf"rank {other}: .*all_gather\(float32\[{other + 1}, 2\]\)", text), (other, text)
    assert gathered == list(range(8)), rank


def test_a_mean_of_whole_numbers_is_not_taken_silently(v3_pod):
  """A scale that an integer dtype can express is applied, another is refused."""
  ones = {"reduce_type": "sum", "inputs": torch.ones(2, dtype=torch.int32), "scale": 3}
  steps = [("all_reduce", [ones["inputs"]] * 8, {"reduce_type": "sum", "scale": 3})]
  for (got,) in v3_pod.run(on_ranks_calls.each, steps):
    assert got.tolist() == [24, 24] and math.prod(got.shape) == 2
