"""Device side: what goes into the graph. Knows nothing of launchers; the ranks are told to it by `bind`."""

from .call import bind
from .ops import (
  all_gather,
  all_reduce,
  all_to_all,
  collective_broadcast,
  collective_permute,
  reduce_scatter,
)
from .training import (
  all_gather_bucketized,
  all_reduce_bucketized_gradients,
  broadcast_master_param,
  optimizer_step,
  reduce_gradients,
  reduce_scatter_bucketized,
)

__all__ = [
  "all_gather",
  "all_gather_bucketized",
  "all_reduce",
  "all_reduce_bucketized_gradients",
  "all_to_all",
  "bind",
  "broadcast_master_param",
  "collective_broadcast",
  "collective_permute",
  "optimizer_step",
  "reduce_gradients",
  "reduce_scatter",
  "reduce_scatter_bucketized",
]
