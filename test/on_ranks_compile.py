"""Functions that test_compile's `Pod.run` calls on every rank."""

from __future__ import annotations

import threading
from typing import Any

import on_ranks_calls
import torch
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torch_xla


def halves() -> list[list[int]]:
  """Returns two groups, each out of order."""
  half = xr.world_size() // 2
  return [list(range(half))[::-1], [*range(half + 1, 2 * half), half]]


def every_form(x: torch.Tensor) -> list[torch.Tensor]:
  """Calls each collective in each form on a tensor [world, 2] and things made of it; some are differentiable."""
  size = xr.world_size()
  half, groups = size // 2, halves()
  pairs = [[0, 1], [1, 0], [size - 1, 2]]
  results = [
    xm.all_gather(x, 1, pin_layout=False),
    xm.all_gather(x, 0, groups),
    *xm.all_gather([x, x[:1] * 2], -1),
    xm.reduce_scatter("sum", x, 0.5, 0, size),
    xm.reduce_scatter("sum", x, 1.0, 0, half, groups, pin_layout=False),
    *xm.reduce_scatter("sum", [x, x.t()[:, : size // 2].repeat(1, 2)], 1.0, -1 - 1, 2, _in_twos(size))[:1],
    xm.all_to_all(x, 0, 1, size),
    xm.all_to_all(x, 0, 0, half, groups),
    xm.collective_permute(x, pairs),
    *xm.collective_permute([x, x + 1], pairs, pin_layout=False),
    xm.all_reduce("sum", x, 0.25),
    xm.all_reduce("sum", x, 1.0, groups),
    xf.all_gather(x, 0),
    xf.all_reduce("sum", x),
  ]
  summed, given = [x * 1, x.sum() * 3], [x * 5, x[0] * 7]
  xm.all_reduce("sum", summed, 0.5)
  xm.collective_broadcast(given, 1)
  return [*results, *summed, *given]


def _in_twos(size: int) -> list[list[int]]:
  return [[rank, rank + 1] for rank in range(0, size, 2)]


def run_every_form(compiled: bool) -> tuple[list[torch.Tensor], torch.Tensor, dict[str, int]]:
  """Returns results and gradient of `every_form`, and how often torch.compile broke the graph."""
  rank, size = xr.global_ordinal(), xr.world_size()
  host = torch.arange(2.0 * size).reshape(size, 2) % 5 + rank
  x = host.to(torch_xla.device()).requires_grad_()
  counters["graph_break"].clear()
  function = torch.compile(every_form, backend="openxla", fullgraph=True) if compiled else every_form
  results = function(x)
  sum((number + 1) * result.sum() for number, result in enumerate(results) if result.requires_grad).backward()
  torch_xla.sync()
  return on_ranks_calls.fetched(results), x.grad.cpu(), dict(counters["graph_break"])


_tracing = threading.Lock()  # make_fx patches torch while it traces, for all threads


def traced_by_fx() -> tuple[list[str], list[tuple[int, ...]], list[tuple[int, ...]]]:
  """Traces `every_form` on fake tensors; returns the operators in the graph, and the shapes in it and in truth."""
  x = torch.zeros(xr.world_size(), 2).to(torch_xla.device())
  with _tracing:
    graph: Any = make_fx(every_form, tracing_mode="fake")(x)
  names = sorted({str(node.target) for node in graph.graph.nodes if str(node.target).startswith("ordinal")})
  (outputs,) = [node.args[0] for node in graph.graph.nodes if node.op == "output"]
  shapes = [tuple(node.meta["val"].shape) for node in outputs]
  true = [tuple(result.shape) for result in every_form(x)]
  torch_xla.sync()
  return names, shapes, true


def on_fake_tensors() -> list[tuple[int, ...]]:
  """Calls collectives on tensors without data; returns the results' shapes."""
  size = xr.world_size()
  with FakeTensorMode():
    x = torch.empty(size, 3, device=torch_xla.device())
    results = [
      xm.all_gather(x, 1),
      xm.reduce_scatter("sum", x, 1.0, 0, size),
      xm.all_to_all(x, 0, 1, size),
      xm.collective_permute(x, [[0, 1]]),
      xm.all_reduce("max", x),
      *xm.all_gather([x, x[:, 0]], 0, halves()),
    ]
    return [tuple(result.shape) for result in results]
