"""Gradients are the adjoint collectives: first and second order, eager and compiled, against one graph of all ranks."""

import on_ranks_training as ranks
import pytest
import reference
import torch

ORACLE = {
  "all_gather": lambda xs: reference.all_gather(xs, 1),
  "all_gather_groups": lambda xs: reference.all_gather(xs, 0, ranks.HALVES),
  "reduce_scatter": lambda xs: reference.reduce_scatter(xs, "sum", 0.5, 0),
  "reduce_scatter_groups": lambda xs: reference.reduce_scatter(xs, "sum", 1.0, 1, ranks.HALVES),
  "all_to_all": lambda xs: reference.all_to_all(xs, 0, 1),
  "all_to_all_groups": lambda xs: reference.all_to_all(xs, 1, 0, ranks.HALVES),
  "collective_permute": lambda xs: reference.collective_permute(xs, [[0, 1], [2, 2], [5, 0]]),
  "all_reduce": lambda xs: reference.all_reduce(xs, "sum", 0.25),
  "all_reduce_groups": lambda xs: reference.all_reduce(xs, "sum", 1.0, ranks.HALVES),
  "functions.all_gather": lambda xs: reference.all_gather(xs, 0),
  "functions.all_reduce": lambda xs: reference.all_reduce(xs, "sum"),
}


def stacked(kind, xs, groups):
  """Reduces with torch's own stack reductions, whose gradients at ties and zeros are the ones to have."""
  reduce = {"mul": lambda s: s.prod(0), "min": lambda s: s.amin(0), "max": lambda s: s.amax(0)}[kind]
  return reference._per_group(xs, groups, lambda members: [reduce(torch.stack(members))] * len(members))


for _kind in ("mul", "min", "max"):
  ORACLE[f"all_reduce_{_kind}"] = lambda xs, k=_kind: stacked(k, xs, ranks.HALVES)
  ORACLE[f"reduce_scatter_{_kind}"] = lambda xs, k=_kind: [
    part * 2 for part in stacked(k, xs, None)[0].tensor_split(len(xs))
  ]


def expected(name, size, ties):
  """Returns for each rank result, first and second gradient, from one autograd graph over all ranks."""
  hosts = [ranks.number((8, 8), rank) for rank in range(size)]
  xs = [(host.round().clamp(-1, 1) if ties else host).requires_grad_() for host in hosts]
  ys = ORACLE[name](xs)
  loss = sum((ranks.number(tuple(y.shape), rank, 1) * y * y).sum() for rank, y in enumerate(ys))
  every = {"allow_unused": True, "materialize_grads": True}
  first = torch.autograd.grad(loss, xs, create_graph=True, **every)
  second = torch.autograd.grad(sum(g.sum() for g in first), xs, **every)
  return [(y.detach(), g.detach(), s) for y, g, s in zip(ys, first, second, strict=True)]


def compare(got, wanted, orders):
  for rank, (mine, want) in enumerate(zip(got, wanted, strict=True)):
    for order in range(orders):
      torch.testing.assert_close(mine[order], want[order], rtol=1e-4, atol=1e-4, msg=lambda m, r=rank: f"rank {r}: {m}")


@pytest.mark.parametrize("name", list(ORACLE))
def test_first_and_second_order(v3_pod, name):
  compare(v3_pod.run(ranks.gradients, name, False), expected(name, v3_pod.size, False), 3)


@pytest.mark.parametrize("name", list(ranks.NONLINEAR))
def test_ties_and_zeros(v3_pod, name):
  compare(v3_pod.run(ranks.gradients, name, False, True), expected(name, v3_pod.size, True), 2)


@pytest.mark.parametrize("name", list(ranks.LINEAR))
def test_compiled_without_a_graph_break(v3_pod, name):
  compare(v3_pod.run(ranks.gradients, name, True), expected(name, v3_pod.size, False), 2)


def test_each_rank_gets_the_sum_over_all_losses(v3_pod):
  total = sum(range(1, v3_pod.size + 1))
  for rank, gradient in enumerate(v3_pod.run(ranks.g15)):
    assert gradient.tolist() == [total * (rank + 1)]


def test_lists_and_outputs_that_nobody_uses(v3_pod):
  for eager, compiled in v3_pod.run(ranks.lists):
    assert [set(g.flatten().tolist()) for g in eager] == [{2.0 * v3_pod.size}, {3.0 * v3_pod.size}]
    assert compiled


def test_in_place_forms_compile(v3_pod):
  half = sum(range(v3_pod.size)) / 2
  for a, b in v3_pod.run(ranks.compiled_in_place):
    assert a.tolist() == [half] * 2
    assert b.tolist() == [half] * 3


def test_distributed_matmul_is_the_matmul(v3_pod):
  size = v3_pod.size
  ws = [ranks.number((4, 3), rank, 1).requires_grad_() for rank in range(size)]
  xs = [ranks.number((3 * size, 6), rank, 2).requires_grad_() for rank in range(size)]
  ys = [torch.cat(ws, 1) @ x for x in xs]
  sum(y.sum() for y in ys).backward()
  for rank, (y, w, x) in enumerate(v3_pod.run(ranks.sharded_matmul)):
    torch.testing.assert_close(y, ys[rank].detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(w, ws[rank].grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x, xs[rank].grad, rtol=1e-4, atol=1e-4)
