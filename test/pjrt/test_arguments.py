"""Bad arguments on other roads than most: reductions under gradients, arguments that cannot be hashed, odd scales."""

import re

import on_ranks_calls
import pytest
import torch
from on_ranks_calls import OnHost

pytestmark = pytest.mark.timeout(120)

X = torch.ones(8, 2)
G = torch.ones(8, 2, requires_grad=True)
SCATTER = {"reduce_type": "max", "input": G, "scale": 1.0, "scatter_dim": 0, "shard_count": 8}
UNEQUAL = [[0, 1, 2], [3, 4, 5, 6, 7]]
NUMBER = torch.ones((), requires_grad=True)
COMPLEX = torch.ones(8, dtype=torch.complex64, requires_grad=True)

# With gradients these reductions are composed of other collectives: the message is still about the one called.
UNDER_GRADIENTS = [
  ("reduce_scatter", {**SCATTER, "scatter_dim": 9}, "ValueError", r"scatter_dim 9 is out of range .*\[8, 2\]"),
  ("reduce_scatter", {**SCATTER, "input": NUMBER}, "ValueError", r"scatter_dim 0 is out of range .*shape \[\]"),
  ("reduce_scatter", {**SCATTER, "scatter_dim": 1}, "ValueError", "has size 2, not a multiple of shard_count 8"),
  ("reduce_scatter", {**SCATTER, "scale": "1"}, "TypeError", "scale must be a number, got '1' of type str"),
  ("reduce_scatter", {**SCATTER, "shard_count": 4}, "ValueError", "shard_count is 4, but each group has 8 ranks"),
  ("reduce_scatter", {**SCATTER, "channel_id": 0}, "ValueError", "channel_id 0 is not positive"),
  (
    "reduce_scatter",
    {**SCATTER, "output": torch.zeros(3, 2)},
    "ValueError",
    r"output has float32\[3, 2\], but .*\[1, 2\]",
  ),
  ("reduce_scatter", {**SCATTER, "input": [G, 1]}, "TypeError", "takes a tensor or a list of tensors, got a int"),
  ("reduce_scatter", {**SCATTER, "reduce_type": "avg"}, "ValueError", "reduce_type 'avg' is unknown"),
  (
    "all_reduce",
    {"reduce_type": "and", "inputs": G},
    "TypeError",
    "'and' works on bits, but the dtype is torch.float32",
  ),
  ("all_reduce", {"reduce_type": "min", "inputs": COMPLEX}, "TypeError", "'min' needs an order, .*complex64"),
  ("all_reduce", {"reduce_type": "max", "inputs": G, "scale": "x"}, "TypeError", "scale must be a number, got 'x'"),
  ("all_reduce", {"reduce_type": "max", "inputs": G, "groups": [[0]]}, "ValueError", "are in no group"),
  (
    "all_reduce",
    {"reduce_type": "max", "inputs": G, "groups": UNEQUAL},
    "ValueError",
    r"gradient of 'max' needs groups of one size, but theirs are \[3, 5\]. .*torch.no_grad",
  ),
  ("all_reduce", {"reduce_type": "max", "inputs": OnHost(G)}, "ValueError", r"on \['cpu'\], but must be on one XLA"),
]
ODD = [
  ("all_reduce", {"reduce_type": "sum", "inputs": [X, 1]}, "TypeError", "list of tensors, got a int"),
  ("collective_broadcast", {"tensors": [X, None]}, "TypeError", "list of tensors, got a NoneType"),
  ("all_gather", {"value": X, "dim": [0]}, "TypeError", r"dim must be an int, got \[0\] of type list"),
  ("all_gather", {"value": [X, X], "dim": [0]}, "TypeError", r"dim must be an int, got \[0\] of type list"),
  ("all_gather", {"value": X, "channel_id": [1]}, "TypeError", r"channel_id must be an int, got \[1\]"),
  (
    "collective_broadcast",
    {"tensors": [X], "root_ordinal": [0]},
    "TypeError",
    r"root_ordinal must be an int, got \[0\]",
  ),
  ("all_reduce", {"reduce_type": ["sum"], "inputs": X}, "ValueError", r"reduce_type \['sum'\] is unknown"),
  *[
    (
      "all_reduce",
      {"reduce_type": "sum", "inputs": X.int(), "scale": scale},
      "TypeError",
      f"scale {words} has no torch.int32",
    )
    for scale, words in ((float("nan"), "nan"), (float("inf"), "inf"), (2**70, str(2**70)))
  ],
]
REFUSED = UNDER_GRADIENTS + ODD


@pytest.mark.parametrize(
  ("name", "keywords", "error", "words"), REFUSED, ids=[f"{index}-{row[0]}" for index, row in enumerate(REFUSED)]
)
def test_refused_on_every_rank_and_the_next_collective_is_right(v3_pod, name, keywords, error, words):
  for rank, (kind, text, gathered) in enumerate(v3_pod.run(on_ranks_calls.outcome, name, keywords)):
    assert kind == error and text.startswith(f"{name}: ") and re.search(words, text), f"rank {rank} got {kind}: {text}"
    assert gathered == list(range(8))
