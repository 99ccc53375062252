"""Runtime names that programs for torch_xla 1.13 to 2.4 use and 2.9 has dropped."""

import functools
import os
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable)


def using_pjrt() -> bool:
  """Returns whether a PJRT device is selected; every supported runtime is PJRT."""
  return bool(os.environ.get("PJRT_DEVICE"))


def requires_pjrt(fn: F) -> F:
  """Decorates a function that needs PJRT.

  Args:
    fn: the function.

  Returns:
    The function, raising NotImplementedError where no PJRT device is selected.
  """

  @functools.wraps(fn)
  def checked(*args, **kwargs):
    if not using_pjrt():
      raise NotImplementedError(f"{fn.__name__}: no PJRT device is selected; set PJRT_DEVICE, e.g. to TPU or CPU.")
    return fn(*args, **kwargs)

  return checked  # type: ignore[return-value]
