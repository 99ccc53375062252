"""The oracle: every collective as a function from the list of all ranks' tensors to the list of all ranks' results.

Plain torch on one machine; position in a list is the ordinal. Groups are lists of lists of ordinals.
"""

import functools

import torch

COMBINE = {
  "sum": torch.add,
  "mul": torch.mul,
  "min": torch.minimum,
  "max": torch.maximum,
  "and": torch.bitwise_and,
  "or": torch.bitwise_or,
}
# Of truth values a sum is "any", a product "all".
BOOL = {"sum": "or", "max": "or", "or": "or", "mul": "and", "min": "and", "and": "and"}


def _per_group(values, groups, of_group):
  """Calls of_group(list of the group's tensors) -> list of its members' results, and puts them back by ordinal."""
  groups = groups or [list(range(len(values)))]
  results = list(values)
  for group in groups:
    for ordinal, result in zip(group, of_group([values[member] for member in group]), strict=True):
      results[ordinal] = result
  return results


def _reduce(reduce, members, scale=1.0):
  dtype = members[0].dtype
  kind = BOOL[reduce] if dtype == torch.bool else reduce
  total = functools.reduce(COMBINE[kind], members)
  return total if scale == 1.0 else (total * scale).to(dtype)


def all_gather(values, dim=0, groups=None):
  values = [value.reshape(1) if value.dim() == 0 else value for value in values]
  return _per_group(values, groups, lambda members: [torch.cat(members, dim)] * len(members))


def reduce_scatter(values, reduce, scale, dim, groups=None):
  def of_group(members):
    return [part.contiguous() for part in _reduce(reduce, members, scale).tensor_split(len(members), dim)]

  return _per_group(values, groups, of_group)


def all_reduce(values, reduce, scale=1.0, groups=None):
  return _per_group(values, groups, lambda members: [_reduce(reduce, members, scale)] * len(members))


def all_to_all(values, split_dim, concat_dim, groups=None):
  def of_group(members):
    blocks = [member.tensor_split(len(members), split_dim) for member in members]
    return [torch.cat([sent[j] for sent in blocks], concat_dim) for j in range(len(members))]

  return _per_group(values, groups, of_group)


def collective_permute(values, pairs):
  results = [torch.zeros_like(value) for value in values]
  for source, target in pairs:
    results[target] = values[source]
  return results


def collective_broadcast(values, root, groups=None):
  return _per_group(
    values,
    [group for group in (groups or [list(range(len(values)))]) if root in group],
    lambda members: [values[root]] * len(members),
  )
