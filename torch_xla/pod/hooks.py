"""Where the emulated pod takes hold of torch_xla: each native call that launches device work becomes a turn.

The functions below stand in for those of the extension module `_XLAC` that have the same name without `_xla` in front.
A device that is no rank's, e.g. in a process whose pod has ended, is served as stock does.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import _XLAC
import torch

from torch_xla.pod import compiled, graphs, reads, threads
from torch_xla.pod.turns import Pod

_pod: Pod = None  # type: ignore[assignment]  # install sets it before any hook can run
_stock: dict[str, Any] = {}
# Graphs that torch.compile has compiled: hash -> holds a collective.
_compiled: dict[bytes, bool] = {}


def install(devices: Sequence[str]) -> None:
  """Starts a pod, and hooks it in where this is the first one of the process.

  Args:
    devices: one device per rank, in rank order.
  """
  global _pod
  if _pod is not None and _pod.board.failed:
    for rank in _pod.ranks:  # what the failed ranks had not launched must not become part of the next pod's graphs
      rank.drop()
  _pod = Pod(devices)
  if _stock:
    return
  for name, hook in _HOOKS.items():
    _stock[name] = getattr(_XLAC, name)
    setattr(_XLAC, name, hook)
  for name in _STOCK_COLLECTIVES:
    _stock[name] = getattr(_XLAC, name)
    setattr(_XLAC, name, functools.partial(_stock_collective, name))
  reads.install(fetch, settle)
  compiled.install(len(devices), _aside)
  threads.watchers.append(lambda: _pod.watch())
  threads.on_end.append(lambda device, error: _pod.board.end(_pod.by_device[device].index, error))


@contextlib.contextmanager
def _aside() -> Iterator[None]:
  _step_marker(wait=False, reset_scope=False)
  rank = _pod.of()
  if rank is None:
    yield
    return
  _stock["_xla_increment_counter"]("DynamoExtractCompiledGraph", 1)
  rank.records, rank.fell_back = False, False
  try:
    yield
  finally:
    rank.records = True


def _step_marker(device: str = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True) -> None:
  rank = _pod.of(device)
  if rank is None:
    return _stock["_xla_step_marker"](device, list(devices), wait=wait, reset_scope=reset_scope)
  _pod.step(
    rank,
    lambda: _stock["_xla_step_marker"](rank.device, list(devices), wait=False, reset_scope=reset_scope),
  )
  if wait:
    rank.drain()


def _sync_live_tensors(device: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
  rank = _pod.of(device)
  if rank is None:
    return _stock["_xla_sync_live_tensors"](device, list(devices), wait=wait)
  _pod.step(rank, lambda: _stock["_xla_sync_live_tensors"](rank.device, list(devices), wait=False))
  if wait:
    rank.drain()


def _sync_multi(
  tensors: Sequence[torch.Tensor], devices: Sequence[str], wait: bool = True, sync_xla_data: bool = True
) -> None:
  tensors = [tensor for tensor in tensors if tensor.device.type == "xla"]
  rank = _pod.of(tensors[0].device) if tensors else None
  if rank is None:
    if tensors:
      _stock["_xla_sync_multi"](tensors, list(devices), wait, sync_xla_data)
    return
  _pod.compute(
    rank,
    tensors,
    lambda: _stock["_xla_sync_multi"](tensors, list(devices), False, sync_xla_data),
  )
  if wait:
    rank.drain()


def fetch(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
  """Makes the data of tensors available, before stock's code reads it.

  Args:
    tensors: any tensors; those on no rank's device are left alone.

  Returns:
    The tensors to read from, in the same order.
  """
  sources = list(tensors)
  by_device: dict[torch.device, list[int]] = {}
  for position, tensor in enumerate(sources):
    if tensor.device.type == "xla":
      by_device.setdefault(tensor.device, []).append(position)
  for device, positions in by_device.items():
    rank = _pod.of(device)
    if rank is not None:
      rank.fell_back = True
      for position, source in zip(positions, _pod.read(rank, [sources[p] for p in positions], _compute), strict=True):
        sources[position] = source
      rank.drain()
  return sources


def _compute(tensors: Sequence[torch.Tensor]) -> None:
  _stock["_xla_sync_multi"](list(tensors), [], False, False)


def settle(device: torch.device) -> None:
  """Waits for a device's earlier work where the next operation would wait for it without giving way to other ranks.

  Args:
    device: any device.
  """
  rank = _pod.of(device)
  if rank is not None and _XLAC._get_use_eager_mode():
    rank.drain()


def _wait_device_ops(devices: Sequence[str] = ()) -> None:
  rank = None if devices else _pod.of()
  if rank is None:
    return _stock["_xla_wait_device_ops"](list(devices))
  rank.drain()


def _warm_up_cache(tensors: Sequence[torch.Tensor], devices: Sequence[str]) -> None:
  key = _XLAC._get_graph_hash(tensors)
  _compiled[key] = graphs.has_collective(tensors, key)
  rank = _pod.of(tensors[0].device) if tensors else _pod.of()
  start = functools.partial(_stock["_xla_warm_up_cache"], tensors, list(devices))
  if rank is None:
    return start()
  _pod.alone(rank, start)


def _run_cached_graph(key: bytes, inputs: Sequence[Any]) -> list[torch.Tensor]:
  rank = _pod.of(next((i.device for i in inputs if isinstance(i, torch.Tensor)), None))
  start = functools.partial(_stock["_run_cached_graph"], key, inputs)
  if rank is None:
    return start()
  if _compiled.get(key):
    return _pod.run(rank, key, "the compiled function", start)
  return _pod.alone(rank, start)


def _clear_pending_irs(device: str) -> None:
  rank = _pod.of(device)
  if rank is not None:
    rank.drain()
    rank.forget()
  _stock["_clear_pending_irs"](device)


def _user_computation(name: str, tensors: Sequence[torch.Tensor], computation: Any) -> list[torch.Tensor]:
  start = functools.partial(_stock["_xla_user_computation"], name, tensors, computation)
  return _collective(name, tensors, start) if name.startswith(graphs.OURS) else start()


def _stock_collective(name: str, *args: Any) -> Any:
  tensors = [tensor for arg in args for tensor in (arg if isinstance(arg, (list, tuple)) else (arg,))]
  return _collective(name, tensors, functools.partial(_stock[name], *args))


def _collective(name: str, operands: Sequence[Any], start: functools.partial) -> Any:
  tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
  rank = _pod.of(tensors[0].device if tensors else None)
  if rank is None:
    return start()
  name = name.removeprefix(graphs.OURS).removeprefix("_xla_")
  shapes = graphs.shapes(tensors)
  if _XLAC._get_use_eager_mode():  # the call itself launches the collective
    return _pod.run(rank, graphs.digest(name, shapes), f"{name}({shapes})", start)
  results = start()
  if not rank.records:
    return results
  outputs = results if isinstance(results, (list, tuple)) else [results]
  outputs = [output for output in outputs if isinstance(output, torch.Tensor)]
  # The in-place and out forms return no tensor: what they wrote into is then the operand.
  rank.record(graphs.Call(name, shapes, graphs.call_site()), outputs or tensors)
  return results


# The bridge of torch.compile asks the counters of the process which operations fell back to the CPU, and clears and
# restores them on the way. With other ranks at work beside it, only what this rank did may count.
def _clear_counters() -> None:
  rank = _pod.of()
  if rank is None or rank.records:
    return _stock["_clear_xla_counters"]()
  rank.fell_back = False


def _executed_fallback_ops() -> list[str]:
  rank = _pod.of()
  if rank is None or rank.records:
    return _stock["_get_executed_fallback_ops"]()
  return ["an operation that reads a tensor"] if rank.fell_back else []


def _increment_counter(name: str, value: int) -> None:
  rank = _pod.of()
  if rank is None or rank.records:
    _stock["_xla_increment_counter"](name, value)


def _set_allow_execution(allowed: bool) -> None:
  rank = _pod.of()
  if rank is None:
    return _stock["_set_allow_execution"](allowed)
  rank.may_execute = allowed


def _get_allow_execution() -> bool:
  rank = _pod.of()
  return _stock["_get_allow_execution"]() if rank is None else rank.may_execute


_HOOKS = {
  "_xla_step_marker": _step_marker,
  "_xla_sync_live_tensors": _sync_live_tensors,
  "_xla_sync_multi": _sync_multi,
  "_xla_wait_device_ops": _wait_device_ops,
  "_xla_warm_up_cache": _warm_up_cache,
  "_run_cached_graph": _run_cached_graph,
  "_clear_pending_irs": _clear_pending_irs,
  "_xla_user_computation": _user_computation,
  "_clear_xla_counters": _clear_counters,
  "_get_executed_fallback_ops": _executed_fallback_ops,
  "_xla_increment_counter": _increment_counter,
  "_set_allow_execution": _set_allow_execution,
  "_get_allow_execution": _get_allow_execution,
}

# Stock's own lowerings, for what still calls them: xm.send and xm.recv, torch's kernels, programs that go native.
_STOCK_COLLECTIVES = (
  "_xla_all_gather",
  "_xla_all_gather_coalesced",
  "_xla_all_gather_coalesced_out",
  "_xla_all_gather_out",
  "_xla_all_reduce",
  "_xla_all_reduce_inplace",
  "_xla_all_to_all",
  "_xla_collective_permute",
  "_xla_recv",
  "_xla_reduce_scatter",
  "_xla_reduce_scatter_coalesced",
  "_xla_reduce_scatter_coalesced_out",
  "_xla_reduce_scatter_out",
  "_xla_send",
)
