"""Values, on every rank and bit for bit: what reaches a rank is what was sent, whatever it is and however it lies."""

import itertools

import calls
import on_ranks_calls
import pods
import pytest
import torch

pytestmark = pytest.mark.timeout(300)

MOVES = ("all_gather", "all_to_all", "collective_permute", "collective_broadcast")


def check(pod: pods.Pod, steps: list, one_graph: bool = True) -> None:
  """Runs steps (name, every rank's operand, keywords) and compares them with the oracle."""
  results = pod.run(on_ranks_calls.in_one_graph if one_graph else on_ranks_calls.each, steps)
  compare(steps, results)


def compare(steps: list, results: list) -> None:
  for number, (name, ranks, keywords) in enumerate(steps):
    calls.assert_same([mine[number] for mine in results], calls.oracle(name, ranks, keywords), (number, name, keywords))


def moves(size: int) -> dict:
  return {name: keywords for name, keywords in calls.standard(size).items() if name in MOVES}


def numbered(size: int, dtype: torch.dtype = torch.float32, tail: tuple[int, ...] = (2,)) -> list[torch.Tensor]:
  """Returns for each rank a tensor [size, *tail] of numbers that occur once in the world, as far as the dtype goes."""
  count = torch.Size((size, *tail)).numel()
  return [(torch.arange(count).reshape(size, *tail) + rank * count).to(dtype) for rank in range(size)]


@pytest.mark.parametrize("pin", (True, False))
def test_what_one_collective_carries_does_not_reach_the_next(v3_pod, pin):
  """V1: every ordered pair, Inf and NaN in the first."""
  size = v3_pod.size
  spoiled = [torch.full((size, 3), float(rank)) for rank in range(size)]
  for rank, tensor in enumerate(spoiled):
    tensor[:, 0], tensor[rank, 1] = float("inf") if rank % 2 else float("-inf"), float("nan")
  clean = [torch.full((size, 2), rank + 1.0) for rank in range(size)]
  ops = calls.standard(size)
  assert len(ops) ** 2 == 36
  for first, second in itertools.product(ops, ops):
    steps = [(first, spoiled, {**ops[first], "pin_layout": pin}), (second, clean, {**ops[second], "pin_layout": pin})]
    results = v3_pod.run(on_ranks_calls.in_one_graph, steps)
    assert all(torch.isfinite(mine[1]).all() for mine in results), (first, second)
    compare(steps[1:], [mine[1:] for mine in results])
    for mine, want in zip(results, calls.oracle(first, spoiled, ops[first]), strict=True):
      torch.testing.assert_close(mine[0], want, rtol=0, atol=0, equal_nan=True)


def test_negative_zero_keeps_its_sign(v3_pod):
  """V2."""
  size = v3_pod.size
  for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    zeros = [torch.tensor([-0.0, 0.0] if rank % 2 else [0.0, -0.0]).repeat(size, 1).to(dtype) for rank in range(size)]
    steps = [
      (name, zeros, {**words, "pin_layout": pin}) for name, words in moves(size).items() for pin in (True, False)
    ]
    check(v3_pod, steps)


@pytest.mark.parametrize("waste", ("empty", "nan"))
def test_a_broadcast_overwrites_whatever_was_there(v3_pod, waste):
  """V3."""
  dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]
  for root in (0, v3_pod.size - 2):
    for mine in v3_pod.run(on_ranks_calls.into_waste, dtypes, root, waste):
      for got, dtype in zip(mine, dtypes, strict=True):
        assert torch.equal(got, (torch.arange(15.0).reshape(5, 3) - 7).to(dtype)), dtype


def test_integers_beyond_float_precision(v3_pod):
  """V4: 2^40 + r, for every reduction that admits it and every move."""
  size = v3_pod.size
  big = [torch.full((size, 2), 2**40 + rank) for rank in range(size)]
  steps = [("all_reduce", big, {"reduce_type": kind}) for kind in ("max", "min", "sum", "and", "or", "mul")]
  scatter = {"scale": 1.0, "scatter_dim": 0, "shard_count": size}
  steps += [("reduce_scatter", big, {"reduce_type": kind, **scatter}) for kind in ("max", "min", "sum", "and", "or")]
  steps += [(name, big, words) for name, words in moves(size).items()]
  check(v3_pod, steps)
  assert torch.equal(calls.oracle("all_reduce", big, {"reduce_type": "max"})[0], big[-1])


@pytest.mark.parametrize(
  "dtype", (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), ids=lambda dtype: str(dtype)[6:]
)
def test_integer_sums_and_products_wrap_as_torchs(v3_pod, dtype):
  """V4: the largest and the smallest value, so that every sum of two leaves the range."""
  size, info = v3_pod.size, torch.iinfo(dtype)
  ranks = [torch.tensor([[info.max - rank, info.min + rank]] * size, dtype=dtype) for rank in range(size)]
  scatter = {"scale": 1.0, "scatter_dim": 0, "shard_count": size}
  steps = []
  for kind in ("sum", "mul", "min", "max"):
    steps += [("all_reduce", ranks, {"reduce_type": kind}), ("reduce_scatter", ranks, {"reduce_type": kind, **scatter})]
  check(v3_pod, steps + [(name, ranks, words) for name, words in moves(size).items()])


def test_a_sum_of_truth_values_is_or_and_a_product_and(v3_pod):
  """V4."""
  size = v3_pod.size
  ranks = [torch.tensor([[False, True, rank == 3, rank != 3]] * size) for rank in range(size)]
  scatter = {"scale": 1.0, "scatter_dim": 0, "shard_count": size}
  results = v3_pod.run(
    on_ranks_calls.in_one_graph,
    [("all_reduce", ranks, {"reduce_type": kind}) for kind in ("sum", "max", "or", "mul", "min", "and")]
    + [("reduce_scatter", ranks, {"reduce_type": kind, **scatter}) for kind in ("sum", "mul")],
  )
  any_, all_ = torch.tensor([False, True, True, True]), torch.tensor([False, True, False, False])
  for mine in results:
    for got, want in zip(mine, (any_, any_, any_, all_, all_, all_, any_, all_), strict=True):
      assert got.dtype == torch.bool and (got == want).all()


def test_complex_numbers(v3_pod):
  """V4: parts that differ, signed zeros in them, sums and products."""
  size = v3_pod.size
  parts = [torch.tensor([[1.0 + rank, -0.0], [-2.0, float("inf")]]).repeat(size // 2, 1) for rank in range(size)]
  ranks = [torch.complex(part, part.flip(1)) for part in parts]
  check(v3_pod, [(name, ranks, words) for name, words in moves(size).items()])
  small = [torch.complex(torch.full((size,), float(rank % 3)), torch.full((size,), 1.0)) for rank in range(size)]
  results = v3_pod.run(on_ranks_calls.each, [("all_reduce", small, {"reduce_type": kind}) for kind in ("sum", "mul")])
  for number, kind in enumerate(("sum", "mul")):
    want = calls.oracle("all_reduce", small, {"reduce_type": kind})[0]
    assert all(torch.allclose(mine[number], want, rtol=1e-5) for mine in results)


def test_numbers_without_dimensions(v3_pod):
  """V5: alone, beside others in a list, and on every rank another."""
  size = v3_pod.size
  for dtype in (torch.float32, torch.int64, torch.bool):
    numbers = [torch.tensor(rank % 3).to(dtype) for rank in range(size)]
    beside = [[number, torch.full((2,), 1).to(dtype), number] for number in numbers]
    steps = []
    for ranks in (numbers, beside):
      steps += [
        ("all_gather", ranks, {}),
        ("collective_permute", ranks, {"pairs": calls.ring(size)}),
        ("all_reduce", ranks, {"reduce_type": "max"}),
        ("collective_broadcast", ranks, {"root_ordinal": size - 1}),
      ]
    check(v3_pod, steps, one_graph=False)
  assert calls.oracle("all_gather", numbers, {})[0].shape == (size,)


@pytest.mark.parametrize("shape", ((0, 3), (1, 0, 2), (0,)), ids=str)
def test_tensors_without_elements(v3_pod, shape):
  """V5: results of the right shape, alone and beside others."""
  size = v3_pod.size
  nothing, solid = [torch.zeros(shape)] * size, numbered(size)
  beside = [[nothing[rank], solid[rank]] for rank in range(size)]
  scatter = {"reduce_type": "sum", "scale": 1.0, "scatter_dim": 0, "shard_count": size}
  steps = [(name, beside, words) for name, words in moves(size).items()]
  steps += [("all_reduce", beside, {"reduce_type": "sum"}), ("all_reduce", nothing, {"reduce_type": "min"})]
  steps += [(name, nothing, words) for name, words in moves(size).items()]
  steps += [("all_gather", nothing, {"dim": -1})]
  if shape[0] == 0:
    steps += [("reduce_scatter", beside, scatter), ("reduce_scatter", nothing, scatter)]
  steps = [step for step in steps if shape[0] % size == 0 or step[0] != "all_to_all"]
  check(v3_pod, steps, one_graph=False)


@pytest.mark.parametrize("layout", on_ranks_calls.LAYOUTS)
def test_a_tensor_may_lie_in_memory_as_it_likes(v3_pod, layout):
  """V6."""
  size = v3_pod.size
  ranks = numbered(size, tail=(3, 4, 2))
  ops = calls.standard(size)
  ops["all_gather"] = {"dim": 2}
  ops["all_to_all"] = {"split_dimension": 0, "concat_dimension": 3, "split_count": size}
  steps = [(name, ranks, {**words, "pin_layout": pin}) for name, words in ops.items() for pin in (True, False)]
  compare(steps, v3_pod.run(on_ranks_calls.laid_out, layout, steps))


def test_in_place_results_go_into_views_and_nowhere_else(v3_pod):
  """V6: rows, columns, steps and corners of one tensor; the rest keeps what it had."""
  size = v3_pod.size
  written = torch.zeros(8, 6, dtype=torch.bool)
  written[1], written[3:5, 2], written[6:8, ::3], written[0, 5] = True, True, True, True
  total = size * (size + 1) / 2
  for rank, whole in enumerate(v3_pod.run(on_ranks_calls.into_slices, "all_reduce", {"reduce_type": "sum"})):
    assert torch.equal(whole, torch.where(written, total, rank + 1.0)), rank
  for rank, whole in enumerate(v3_pod.run(on_ranks_calls.into_slices, "collective_broadcast", {"root_ordinal": 5})):
    assert torch.equal(whole, torch.where(written, 6.0, rank + 1.0)), rank


def _patterns(dtype: torch.dtype) -> torch.Tensor:
  """Returns bit patterns of a float dtype: all of a 16-bit one; NaN payloads, subnormals, limits and noise of wider."""
  if dtype.itemsize == 2:
    return torch.arange(-(2**15), 2**15).to(torch.int16)
  generator = torch.Generator().manual_seed(7)
  quiet, exponent, sign = (1 << 22, 0xFF << 23, 31) if dtype == torch.float32 else (1 << 51, 0x7FF << 52, 63)
  special = [0, 1, quiet * 2 - 1, exponent - 1, exponent, exponent + 1, exponent | quiet, exponent | quiet | 0x123]
  special += [exponent | quiet * 2 - 1, exponent | 0x155, quiet, 2]
  signed = special + [pattern - (1 << sign) for pattern in special]
  noise = torch.randint(-(2**31), 2**31, (1024 - len(signed),), generator=generator)
  if dtype == torch.float64:
    noise = noise * 2**32 + noise.flip(0)
  return torch.cat([torch.tensor(signed), noise]).to(torch.int32 if dtype == torch.float32 else torch.int64)


@pytest.mark.parametrize("pin", (True, False))
@pytest.mark.parametrize(
  "dtype", (torch.bfloat16, torch.float16, torch.float32, torch.float64), ids=lambda dtype: str(dtype)[6:]
)
def test_every_bit_pattern_arrives_as_it_was(v3_pod, dtype, pin):
  """V7, and more than it asks: payloads of quiet and signaling NaNs, compared as integers."""
  size = v3_pod.size
  patterns = _patterns(dtype)
  ranks = [patterns.roll(rank * 77).view(dtype).reshape(size, -1) for rank in range(size)]
  halves = [list(range(size // 2)), list(range(size // 2, size))]
  ops = [*moves(size).items(), ("all_gather", {"dim": 1, "groups": halves})]
  ops += [("collective_broadcast", {"root_ordinal": 1, "groups": halves})]
  steps = [(name, ranks, {**words, "pin_layout": pin}) for name, words in ops]
  as_integers = [(name, [calls.bits(rank) for rank in ranks], words) for name, _, words in steps]
  compare(as_integers, v3_pod.run(on_ranks_calls.as_bits, steps))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=lambda dtype: str(dtype)[6:])
def test_large_and_subnormal_halves_arrive_from_the_host_and_back(v3_pod, dtype):
  """V7 through the runtime's own transfers, which keep every number (of float16's NaNs they make one)."""
  size = v3_pod.size
  patterns = _patterns(dtype).view(dtype)
  patterns = torch.where(patterns.isnan(), torch.zeros((), dtype=dtype), patterns)
  ranks = [patterns.roll(rank * 77).reshape(size, -1) for rank in range(size)]
  check(v3_pod, [(name, ranks, words) for name, words in moves(size).items()])


def test_permutations(v3_pod):
  """V8."""
  size = v3_pod.size
  ranks = [torch.full((2,), rank + 1.0) for rank in range(size)]
  kinds = [
    ([[0, 1], [2, 3]], {1: 1.0, 3: 3.0}),
    ([[3, 3]], {3: 4.0}),
    ([[1, 2], [2, 1]], {1: 3.0, 2: 2.0}),
    ([], {}),
    ([[size - 1, 0]], {0: float(size)}),
  ]
  steps = [
    ("collective_permute", ranks, {"pairs": pairs, "pin_layout": pin}) for pairs, _ in kinds for pin in (True, False)
  ]
  results = v3_pod.run(on_ranks_calls.in_one_graph, steps)
  for rank, mine in enumerate(results):
    for number, got in enumerate(mine):
      assert got.tolist() == [kinds[number // 2][1].get(rank, 0.0)] * 2, (rank, steps[number])


def test_a_list_of_every_size(v3_pod):
  """V10: sizes 1..8 along dimension 0, the same list on all ranks."""
  size = v3_pod.size
  lists = [[torch.full((count, 2), 100.0 * count + rank) for count in range(1, 9)] for rank in range(size)]
  scatter = {"reduce_type": "sum", "scale": 1.0, "scatter_dim": 0, "shard_count": size}
  shards = [[tensor.repeat(size, 1) for tensor in tensors] for tensors in lists]
  steps = [("all_gather", lists, {"dim": dim, "pin_layout": pin}) for dim in (0, 1) for pin in (True, False)]
  steps += [("reduce_scatter", shards, scatter), ("all_reduce", lists, {"reduce_type": "sum"})]
  steps += [("collective_permute", lists, {"pairs": calls.ring(size)})]
  check(v3_pod, steps, one_graph=False)


def test_groups_in_their_own_order(pod):
  """Each op in groups whose members are listed out of order, in every device order."""
  size = pod.size
  half = size // 2
  order = list(range(1, size, 2)) + list(range(0, size, 2))
  groups = [order[:half], order[half:][::-1]]
  ranks = numbered(size)
  ops = calls.standard(size)
  del ops["collective_permute"]
  ops["all_to_all"]["split_count"] = ops["reduce_scatter"]["shard_count"] = half
  check(pod, [(name, ranks, {**words, "groups": groups}) for name, words in ops.items()])
