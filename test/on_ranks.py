"""Functions that a test's `Pod.run` calls on every rank."""

from __future__ import annotations

import cases
import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

import torch_xla
from torch_xla.pod import identity


def replicas() -> tuple[int, ...]:
  """Returns the replica of each ordinal."""
  return identity.world().replicas


def run_cases(chosen: list[cases.Case]) -> list[tuple[list[torch.Tensor], str, str]]:
  """Returns for each case this rank's results, the hash of its graph, and on rank 0 the HLO before optimization."""
  return [_run_case(case) for case in chosen]


def _run_case(case: cases.Case) -> tuple[list[torch.Tensor], str, str]:
  device = torch_xla.device()
  tensors = [value.to(device) for value in cases.values(case, xr.world_size())[xr.global_ordinal()]]
  results = cases.call(case, tensors)
  graph = torch_xla._XLAC._get_graph_hash(results).hex()
  text = torch_xla._XLAC._get_xla_tensors_hlo(results) if xm.get_ordinal() == 0 else ""
  torch_xla.sync()
  return [result.cpu() for result in results], graph, text
