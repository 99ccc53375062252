"""What the TPU compiler may make of a plan: the opcodes, the groups, and nothing before the collective."""

import torch

from torch_xla import aot
from torch_xla.collectives.plan import Plan

# A reduce-scatter over all cores is an all-reduce and a slice on v3 and v4: the compiler's choice for everyone.
_OPCODES = {
  "all_gather": {"all-gather"},
  "all_reduce": {"all-reduce"},
  "all_to_all": {"all-to-all"},
  "collective_broadcast": {"all-reduce"},
  "collective_permute": {"collective-permute"},
  "reduce_scatter": {"reduce-scatter", "all-reduce"},
}
# Reductions of 64-bit types that the compiler lacks are moves and a local reduction; its own float64 sum is, too.
_WIDE_OPCODES = {
  "all_reduce": {"all-reduce", "all-gather"},
  "collective_broadcast": {"all-reduce", "all-gather"},
  "reduce_scatter": {"all-to-all"},
}
_INTEGERS = {"pred", "s8", "u8", "s16", "u16", "s32", "u32"}


def _solid(plan: Plan) -> list[int]:
  return [index for index, kind in enumerate(plan.results) if kind.numel]


def _is_wide(plan: Plan) -> bool:
  return any(plan.operands[index].dtype.itemsize == 8 for index in _solid(plan))


def _opcodes(plan: Plan, collective: aot.Collective) -> set[str]:
  opcodes = set(_OPCODES[plan.op])
  if _is_wide(plan):
    opcodes |= _WIDE_OPCODES.get(plan.op, set())
  if len({len(group) for group in plan.groups}) > 1 and plan.op in ("all_reduce", "collective_broadcast"):
    opcodes.add("all-gather")
  # The compiler adds what it cannot gather in whole lanes to zeros. Of integers that is exact; of floats it is not,
  # and only float64, which a TPU holds as a pair of float32, must live with it.
  exact = all(shape.dtype in _INTEGERS for shape in collective.operands)
  inexact = any(plan.operands[index].dtype == torch.float64 for index in _solid(plan))
  if plan.op == "all_gather" and (exact or inexact):
    opcodes.add("all-reduce")
  return opcodes


def _groups(plan: Plan) -> set[tuple[int, ...]]:
  if plan.op != "collective_permute" and len({len(group) for group in plan.groups}) > 1:
    # XLA:TPU has no collective over groups of several sizes: those are served from a gather of the world.
    return {tuple(sorted(replica for group in plan.groups for replica in group))}
  return set(plan.groups)


def faults(plan: Plan, compiled: aot.Compiled) -> list[str]:
  """Lists what is wrong with a compiled plan; empty when the program is as it should be."""
  found = compiled.collectives
  alone = plan.op != "collective_permute" and all(len(group) == 1 for group in plan.groups)
  if not plan.groups or not _solid(plan):
    return [f"expected no collective, got {c.opcode} {c.name}" for c in found]
  if not found:
    # Nobody to talk to: the compiler drops most such collectives.
    return [] if alone else ["the program holds no collective"]
  wrong = []
  for collective in found:
    if collective.opcode not in _opcodes(plan, collective):
      wrong.append(f"{collective.name}: opcode {collective.opcode} on {collective.operands}")
    groups = collective.replica_groups if collective.pairs is None else collective.pairs
    if set(groups or ()) != _groups(plan):
      wrong.append(f"{collective.name}: groups {groups}, the plan has {plan.groups}")
    passes = collective.passes - aot.MOVES
    # A broadcast blanks what others hold and a summed gather the rows of others: those are their own fused pass.
    chosen = plan.op == "collective_broadcast" or (plan.op == "all_gather" and collective.opcode == "all-reduce")
    if passes and not chosen and not _is_wide(plan):
      wrong.append(f"{collective.name}: its input goes through {sorted(passes)}")
  reached = set().union(*(collective.parameters for collective in found))
  if reached != set(_solid(plan)):
    wrong.append(f"the collectives read parameters {sorted(reached)}, not {_solid(plan)}")
  return wrong
