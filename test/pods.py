"""A pod that stays up while tests send it work: one child launches the ranks, each rank answers over a socket.

On a machine with a TPU the ranks are the TPU's, with the runtime's own device order; elsewhere an emulated pod.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

KEY = b"pods"
START_S = 150
# What a v3-8 shows whose processes own devices (0,1), (4,5), (6,7), (2,3); its reverse; one of no pattern.
ORDERS = {
  "device": (0, 1, 2, 3, 4, 5, 6, 7),
  "v3": (0, 1, 4, 5, 6, 7, 2, 3),
  "reverse": (7, 6, 5, 4, 3, 2, 1, 0),
  "random": (3, 6, 0, 5, 1, 7, 4, 2),
}
ON_TPU = os.environ.get("PJRT_DEVICE", "CPU") == "TPU"


class RankError(AssertionError):
  """A rank raised; the message holds its traceback. `errors` holds (ordinal, exception type name, text)."""

  def __init__(self, errors: list[tuple[int, str, str]], trace: str):
    super().__init__(f"ranks {[ordinal for ordinal, _, _ in errors]} raised\n{trace}")
    self.errors = errors


class Pod:
  """Ranks that run functions on request.

  Args:
    order: PJRT_CPU_DEVICE_ORDER of an emulated pod; also its size. None takes 8 in device order.
    env: further environment variables.
  """

  def __init__(self, order: Sequence[int] | None = None, env: dict[str, str] | None = None):
    self.order = tuple(order or range(8))
    listener = Listener(("127.0.0.1", 0), backlog=64, authkey=KEY)
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path, **(env or {})}
    if not ON_TPU:
      variables.update(
        PJRT_DEVICE="CPU",
        CPU_NUM_DEVICES=str(len(self.order)),
        PJRT_CPU_DEVICE_ORDER=",".join(map(str, self.order)),
      )
    command = [sys.executable, "-W", "ignore", __file__, str(listener.address[1])]
    self.process = subprocess.Popen(command, env=variables)
    links: dict[int, Connection] = {}
    with listener:
      listener._listener._socket.settimeout(START_S)  # type: ignore[attr-defined]
      size = 1
      while len(links) < size:
        link = listener.accept()
        ordinal, size = pickle.loads(link.recv_bytes())
        links[ordinal] = link
    self.links = [links[ordinal] for ordinal in sorted(links)]
    self.size = len(self.links)

  def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120) -> list[Any]:
    """Calls function(*args) on all ranks at once.

    Args:
      function: of a module on the test path.
      *args: plain data.
      timeout_s: how long to wait for each rank.

    Returns:
      What each rank returned, in ordinal order.

    Raises:
      RankError: a rank raised or did not answer.
    """
    message = pickle.dumps((function.__module__, function.__qualname__, args))
    for link in self.links:
      link.send_bytes(message)
    answers = []
    for ordinal, link in enumerate(self.links):
      if not link.poll(timeout_s):
        raise RankError([(ordinal, "TimeoutError", "")], f"rank {ordinal} did not answer in {timeout_s} s")
      answers.append(pickle.loads(link.recv_bytes()))
    errors = [(ordinal, *answer[1:3]) for ordinal, answer in enumerate(answers) if answer[0] == "error"]
    if errors:
      raise RankError(errors, next(answer[3] for answer in answers if answer[0] == "error"))
    return [answer[1] for answer in answers]

  def close(self) -> None:
    """Ends the ranks."""
    for link in self.links:
      link.send_bytes(pickle.dumps(None))
    try:
      self.process.wait(30)
    finally:
      self.process.kill()


def _serve(index: int, port: int) -> None:
  import importlib

  import torch_xla.runtime as xr

  link = Client(("127.0.0.1", port), authkey=KEY)
  assert index == xr.global_ordinal()
  link.send_bytes(pickle.dumps((index, xr.world_size())))
  while (message := pickle.loads(link.recv_bytes())) is not None:
    module, name, args = message
    try:
      answer: tuple = ("ok", getattr(importlib.import_module(module), name)(*args))
    except Exception as error:
      answer = ("error", type(error).__name__, str(error), traceback.format_exc())
    link.send_bytes(pickle.dumps(answer))


if __name__ == "__main__":
  import torch_xla

  torch_xla.launch(_serve, args=(int(sys.argv[1]),))
