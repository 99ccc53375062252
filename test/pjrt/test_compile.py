"""One program for all ranks, compiled once; torch.compile and fx see collectives whole, in rank threads."""

import calls
import on_ranks_calls
import on_ranks_compile
import pods
import pytest
import torch

pytestmark = pytest.mark.timeout(300)


def programs(size: int, columns: int) -> list[calls.Step]:
  """Returns calls of every collective that no other test makes, told from others' by their number of columns."""
  half = size // 2
  groups = [list(range(1, size, 2)), list(range(0, size, 2))]
  ranks = [torch.full((size, columns), rank + 1.0) for rank in range(size)]
  lists = [[tensor, tensor[:1] * 2] for tensor in ranks]
  steps = [
    (name, ranks, {**words, "pin_layout": pin}) for name, words in calls.standard(size).items() for pin in (0, 1)
  ]
  ops = calls.standard(size)
  del ops["collective_permute"]
  ops["all_to_all"]["split_count"] = ops["reduce_scatter"]["shard_count"] = half
  steps += [(name, ranks, {**words, "groups": groups}) for name, words in ops.items()]
  steps += [(name, lists, calls.standard(size)[name]) for name in ("all_gather", "all_reduce", "collective_broadcast")]
  steps = [(name, value, {**words, "pin_layout": bool(words.get("pin_layout", 1))}) for name, value, words in steps]
  return steps


def test_every_rank_traces_the_same_graph(v3_pod):
  """Also ranks 0 and 1, whose numbers XLA would write into the graph."""
  steps = programs(v3_pod.size, 3)
  numbers = [torch.tensor(float(rank)) for rank in range(v3_pod.size)]
  steps += [("all_gather", numbers, {}), ("all_reduce", numbers, {"reduce_type": "max"})]
  hashes = v3_pod.run(on_ranks_calls.hashes, steps)
  for number, step in enumerate(steps):
    assert len({mine[number] for mine in hashes}) == 1, (number, step[0], step[2])


def test_a_pod_compiles_each_program_once(v3_pod):
  for number, step in enumerate(programs(v3_pod.size, 11)):
    before = v3_pod.run(on_ranks_calls.compilations)
    v3_pod.run(on_ranks_calls.each, [step])
    first = v3_pod.run(on_ranks_calls.compilations)
    v3_pod.run(on_ranks_calls.each, [step])
    again = v3_pod.run(on_ranks_calls.compilations)
    counts = [after - earlier for earlier, after in zip(before, first, strict=True)]
    # On a TPU each process compiles for itself.
    assert set(counts) == {1}, (number, step[0], step[2], counts)
    assert again == first, (number, step[0], step[2])


@pytest.mark.timeout(400)
def test_torch_compile_takes_every_form_whole(v3_pod):
  """fullgraph=True would raise at a graph break; results and gradients are those of the eager call."""
  eager = v3_pod.run(on_ranks_compile.run_every_form, False)
  for rank, (results, gradient, breaks) in enumerate(v3_pod.run(on_ranks_compile.run_every_form, True, timeout_s=300)):
    assert not breaks, (rank, breaks)
    for number, (got, want) in enumerate(zip(results, eager[rank][0], strict=True)):
      assert got.shape == want.shape and torch.equal(got, want), (rank, number, got, want)
    assert torch.equal(gradient, eager[rank][1]), rank


def test_eager_forms_are_right(v3_pod):
  """What the test above compares with, against the oracle."""
  size = v3_pod.size
  half = size // 2
  groups = [list(range(half))[::-1], [*range(half + 1, size), half]]
  pairs = {"pairs": [[0, 1], [1, 0], [size - 1, 2]]}
  ranks = [torch.arange(2.0 * size).reshape(size, 2) % 5 + rank for rank in range(size)]
  twos = [[rank, rank + 1] for rank in range(0, size, 2)]

  def scatter(scale, dim, groups=None):
    return {"reduce_type": "sum", "scale": scale, "scatter_dim": dim, "groups": groups}

  def exchange(dim, groups=None):
    return {"split_dimension": 0, "concat_dimension": dim, "groups": groups}

  plan = [
    ("all_gather", ranks, {"dim": 1}),
    ("all_gather", ranks, {"groups": groups}),
    ("all_gather", ranks, {"dim": -1}),
    ("all_gather", [x[:1] * 2 for x in ranks], {"dim": -1}),
    ("reduce_scatter", ranks, scatter(0.5, 0)),
    ("reduce_scatter", ranks, scatter(1.0, 0, groups)),
    ("reduce_scatter", ranks, scatter(1.0, 0, twos)),
    ("all_to_all", ranks, exchange(1)),
    ("all_to_all", ranks, exchange(0, groups)),
    ("collective_permute", ranks, pairs),
    ("collective_permute", ranks, pairs),
    ("collective_permute", [x + 1 for x in ranks], pairs),
    ("all_reduce", ranks, {"reduce_type": "sum", "scale": 0.25}),
    ("all_reduce", ranks, {"reduce_type": "sum", "groups": groups}),
    ("all_gather", ranks, {}),
    ("all_reduce", ranks, {"reduce_type": "sum"}),
    ("all_reduce", ranks, {"reduce_type": "sum", "scale": 0.5}),
    ("all_reduce", [x.sum() * 3 for x in ranks], {"reduce_type": "sum", "scale": 0.5}),
    ("collective_broadcast", [x * 5 for x in ranks], {"root_ordinal": 1}),
    ("collective_broadcast", [x[0] * 7 for x in ranks], {"root_ordinal": 1}),
  ]
  answers = v3_pod.run(on_ranks_compile.run_every_form, False)
  for number, (name, operands, words) in enumerate(plan):
    calls.assert_same([results[number] for results, _, _ in answers], calls.oracle(name, operands, words), number)
  assert all(len(results) == len(plan) for results, _, _ in answers)


def test_fx_traces_on_fake_tensors(v3_pod):
  operators = {f"ordinal.{name}.default" for name in calls.standard(8)}
  for names, shapes, true in v3_pod.run(on_ranks_compile.traced_by_fx):
    assert set(names) == operators
    assert shapes == true


def test_collectives_on_tensors_without_data_have_the_right_shapes(v3_pod):
  n, half = v3_pod.size, v3_pod.size // 2
  wanted = [(n, 3 * n), (1, 3), (1, 3 * n), (n, 3), (n, 3), (half * n, 3), (half * n,)]
  for shapes in v3_pod.run(on_ranks_compile.on_fake_tensors):
    assert shapes == wanted


@pytest.mark.skipif(pods.ON_TPU, reason="starts an emulated pod with another switch")
def test_a_pod_in_strict_order_compiles_once_and_changes_no_bit():
  """V1 and V2 under XLA_POD_STRICT_ORDER=1; the second step runs the program of the first."""
  pod = pods.Pod(pods.ORDERS["v3"], env={"XLA_POD_STRICT_ORDER": "1"})
  try:
    size = pod.size
    spoiled = [torch.full((size, 3), float("inf") if rank % 2 else float("nan")) for rank in range(size)]
    clean = [torch.full((size, 2), rank + 1.0) for rank in range(size)]
    zeros = [torch.full((size, 5), -0.0) for _ in range(size)]
    moves = [name for name in calls.standard(size) if "reduce" not in name]
    ops = calls.standard(size)
    for first, second in zip(ops, [*list(ops)[1:], next(iter(ops))], strict=True):
      steps = [(first, spoiled, ops[first]), (second, clean, ops[second])]
      steps += [(name, zeros, ops[name]) for name in moves]
      pod.run(on_ranks_calls.in_one_graph, steps)
      compiled = pod.run(on_ranks_calls.compilations)
      results = pod.run(on_ranks_calls.in_one_graph, steps)
      assert pod.run(on_ranks_calls.compilations) == compiled, (first, second)
      for number, (name, ranks, words) in enumerate(steps[1:], 1):
        calls.assert_same([mine[number] for mine in results], calls.oracle(name, ranks, words), (first, name))
    hashes = pod.run(on_ranks_calls.hashes, programs(size, 4))
    assert all(mine == hashes[0] for mine in hashes)
  finally:
    pod.close()
