"""Every collective on every rank: the systematic list and random programs, against the oracle and the HLO text."""

import re

import cases
import on_ranks
import pods
import pytest
from hypothesis import HealthCheck, given, settings

from torch_xla.collectives import reductions

OPCODES = {
  "all_gather": "all-gather",
  "reduce_scatter": "reduce-scatter",
  "all_reduce": "all-reduce",
  "all_to_all": "all-to-all",
  "collective_permute": "collective-permute",
  "collective_broadcast": "all-reduce",
}


def check(pod: pods.Pod, chosen: list[cases.Case]) -> None:
  """Runs the cases on the pod and compares values, graphs and HLO on every rank."""
  by_rank = pod.run(on_ranks.run_cases, chosen)
  world = cases.with_replicas(pod.run(on_ranks.replicas)[0])
  for number, case in enumerate(chosen):
    wanted = cases.expected(case, pod.size)
    for rank in range(pod.size):
      results, graph, _ = by_rank[rank][number]
      assert graph == by_rank[0][number][1], f"{case}: rank {rank} traced another graph than rank 0"
      for result, want in zip(results, wanted[rank], strict=True):
        assert cases.close(result, want), f"{case}: rank {rank} got\n{result}\ninstead of\n{want}"
    _check_text(case, cases.plan(case, world), by_rank[0][number][2])


def _check_text(case: cases.Case, plan, text: str) -> None:
  moved = any(kind.numel for kind in plan.results) and (plan.groups or case.op != "collective_permute")
  if not moved:
    assert not any(f" {opcode}(" in text for opcode in OPCODES.values())
    return
  groups = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in plan.groups) + "}"
  native = OPCODES[case.op]
  lines = [line for line in text.splitlines() if f" {native}(" in line]
  reduce = dict(case.args).get("reduce_type")
  if not reduce or all(reductions.is_native(native, reduce, kind.dtype, not pods.ON_TPU) for kind in plan.operands):
    assert lines, f"{case}: no {native} in\n{text}"
  name = "source_target_pairs" if case.op == "collective_permute" else "replica_groups"
  for line in lines:
    assert re.search(rf"{name}={re.escape(groups)}", line), f"{case}: not {groups} in {line}"
    assert ("use_global_device_ids=true" in line) == bool(plan.use_global_device_ids)
  solid = sum(1 for kind in plan.results if kind.numel)
  wide = pods.ON_TPU and any(kind.dtype.itemsize == 8 for kind in plan.operands)
  if not wide:
    assert text.count('"LayoutConstraint"') == (solid if case.pin else 0)


@pytest.mark.timeout(900)
def test_systematic(pod):
  every = cases.systematic(pod.size)
  # Each device order takes a quarter of the list.
  quarter = 0 if pods.ON_TPU else list(pods.ORDERS.values()).index(pod.order)
  share = every if pods.ON_TPU else every[quarter::4]
  for start in range(0, len(share), 20):
    check(pod, share[start : start + 20])


@pytest.mark.timeout(1200)
def test_random_programs(pod):
  # 500 examples in each of 4 device orders.
  @settings(max_examples=500, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
  @given(cases.cases(pod.size))
  def run(case):
    check(pod, [case])

  run()
