"""Reads of tensors in the emulated pod: what leaves a device is computed by a turn before stock's kernel copies it.

Every read (`.item()`, `print`, `bool`, `.numpy()`, a mask as index, an operation that falls back to the CPU) ends in
one of four kernels. They are overridden for the XLA dispatch key rather than caught by a mode per thread, because
autograd's and the loaders' threads read too.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

_library: torch.library.Library | None = None


def install(
  fetch: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], settle: Callable[[torch.device], None]
) -> None:
  """Overrides the kernels, for the rest of the process.

  Args:
    fetch: makes the data of tensors available, and returns the tensors to read it from.
    settle: waits for a device where the stock kernel would wait for it.
  """
  global _library
  _library = torch.library.Library("aten", "IMPL")

  def override(name: str, kernel: Callable[..., Any]) -> None:
    stock = torch.library.get_kernel(getattr(torch.ops.aten, name).default, "XLA")
    with warnings.catch_warnings():
      warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
      _library.impl(name, functools.partial(kernel, stock), "XLA", with_keyset=True, allow_override=True)

  def read(source: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    if source.device.type == "xla" and device is not None and device != source.device:
      return fetch([source])[0]
    settle(source.device)
    return source

  def to_cpu(stock: Any, keyset: Any, tensors: Sequence[torch.Tensor]) -> Any:
    return stock.call_boxed(keyset, fetch(tensors))

  def to_copy(stock: Any, keyset: Any, source: torch.Tensor, **options: Any) -> Any:
    return stock.call_boxed(keyset, read(source, options.get("device")), **options)

  def copy(stock: Any, keyset: Any, target: torch.Tensor, source: torch.Tensor, *rest: Any) -> Any:
    return stock.call_boxed(keyset, target, read(source, target.device), *rest)

  def copy_from(stock: Any, keyset: Any, source: torch.Tensor, target: torch.Tensor, *rest: Any) -> Any:
    return stock.call_boxed(keyset, read(source, target.device), target, *rest)

  override("_to_cpu", to_cpu)
  override("_to_copy", to_copy)
  override("copy_", copy)
  override("_copy_from", copy_from)
