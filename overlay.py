"""The build table: which stock files we replace and which public names we rebind."""

from typing import NamedTuple


class Graft(NamedTuple):
  """One import line appended to a stock module.

  Args:
    module: our module the names come from.
    names: names the stock module has too; ours take every argument that stock's take.
    new_names: names the stock module lacks (programs of earlier releases use them).
  """

  module: str
  names: tuple[str, ...]
  new_names: tuple[str, ...] = ()


REPLACED: tuple[str, ...] = (
  "torch_xla/_internal/pjrt.py",  # starts processes and rank threads in launch order
  "torch_xla/_internal/rendezvous.py",  # xla:// takes rank and store from the pod
  "torch_xla/version.py",  # the version of this build
)

GRAFTS: dict[str, tuple[Graft, ...]] = {
  "torch_xla/runtime.py": (
    Graft("torch_xla.pod.identity", ("global_ordinal", "local_ordinal", "world_size")),
    Graft("torch_xla.pod.legacy", (), ("requires_pjrt", "using_pjrt")),
  ),
  "torch_xla/core/functions.py": (
    Graft("torch_xla.collectives.functions", ("all_gather", "all_reduce", "distributed_mm")),
  ),
  "torch_xla/core/xla_model.py": (
    Graft(
      "torch_xla.collectives",
      (
        "all_gather",
        "all_gather_bucketized",
        "all_reduce",
        "all_reduce_bucketized_gradients",
        "all_to_all",
        "broadcast_master_param",
        "collective_broadcast",
        "collective_permute",
        "optimizer_step",
        "reduce_gradients",
        "reduce_scatter",
        "reduce_scatter_bucketized",
      ),
    ),
    Graft("torch_xla.pod.replication", ("set_replication",), ("get_ordinal", "xrt_world_size")),
  ),
  "torch_xla/torch_xla.py": (Graft("torch_xla._internal.pjrt", ("launch",)),),
}


def graft_line(graft: Graft) -> str:
  """Returns the import line that a graft appends."""
  return f"from {graft.module} import {', '.join(graft.names + graft.new_names)}  # noqa: E402"
