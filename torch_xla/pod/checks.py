"""XLA_POD_CHECK_GRAPHS=1 on TPU: before each step with collectives the ranks compare what they are about to run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import _XLAC
import torch

from torch_xla import options
from torch_xla.pod import graphs
from torch_xla.pod.turns import Rank


def install(ordinals: Mapping[str, int], size: int, connect: Callable[[], Any]) -> None:
  """Hooks the comparison into torch_xla, for the rest of the process; nothing is hooked where this is not called.

  Args:
    ordinals: this process's devices, such as "xla:0", and the ordinals of their ranks.
    size: ranks of the pod.
    connect: opens a connection to the pod's store; each rank gets its own, since its calls block.
  """
  timeout_s = options.get("XLA_POD_TIMEOUT_S")
  ranks = {device: Rank(ordinal, device) for device, ordinal in ordinals.items()}
  exchanges = {
    device: graphs.StoreExchange(connect(), ordinal, size, timeout_s) for device, ordinal in ordinals.items()
  }
  stock_step, stock_computation = _XLAC._xla_step_marker, _XLAC._xla_user_computation

  def step(device: str = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True) -> None:
    rank = ranks.get(device or _XLAC._xla_get_default_device())
    if rank is not None and rank.calls:
      rank.let_go()
      pending = sum(_XLAC._check_device_tensor_need_materialization(rank.device))
      graph = graphs.Graph(
        graphs.digest(rank.history, pending),
        False,
        f"the step at {graphs.call_site()}",
        tuple(rank.calls),
        lambda: graphs.lowered([], rank.device),
      )
      rank.forget()
      graphs.agree(exchanges[rank.device], graph, rank.known)
    stock_step(device, list(devices), wait=wait, reset_scope=reset_scope)

  def computation(name: str, tensors: Sequence[torch.Tensor], body: Any) -> list[torch.Tensor]:
    results = stock_computation(name, tensors, body)
    rank = ranks.get(str(tensors[0].device)) if tensors and name.startswith(graphs.OURS) else None
    if rank is not None and not _XLAC._get_use_eager_mode():
      rank.record(graphs.Call(name.removeprefix(graphs.OURS), graphs.shapes(tensors), graphs.call_site()), results)
    return results

  _XLAC._xla_step_marker, _XLAC._xla_user_computation = step, computation
