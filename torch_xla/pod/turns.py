"""One rank's turn: drain the own device, meet the others where the graph holds a collective, start under the lock."""

import functools
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import _XLAC
import torch

from torch_xla import options
from torch_xla.pod import graphs, meeting, threads

# Stock keeps the permission to execute for the process; ranks that are threads each need their own.
_UNEXPECTED = (
  "torch_xla.compile(full_graph=True): unexpected execution inside the compiled function, caused by {}; "
  "move it out or compile without full_graph"
)

# Keys of steps under which more than one program was seen: XLA's cache outlives a pod, so this does too.
_varying: set[bytes] = set()

_LOCAL_READS = 16

# XLA ends the process 15 s after the first rank began to wait.
_STUCK_S = 5.0
_IDLE = 0.05  # of one core

_FATAL = (
  "Trace the same operations with the same shapes and constants on every rank; XLA_POD_CHECK_GRAPHS=1 shows the first "
  "difference. Ranks that have started their program wait inside XLA for the others, so this process ends."
)

_wait_device_ops = _XLAC._xla_wait_device_ops
_clear_pending_irs = _XLAC._clear_pending_irs


def _lookups_in_vain() -> int:
  # Counted before the compilation begins, which may take minutes.
  return _XLAC._xla_counter_value("UncachedCompile") or 0


def _other_program(index: int, where: str) -> str:
  return f"rank {index} compiles another program than the ranks before it in {where}"


class Rank(graphs.Trace):
  """What the pod keeps about one rank.

  Args:
    index: the rank.
    device: its device, such as "xla:3".
  """

  def __init__(self, index: int, device: str):
    super().__init__(device)
    self.index = index
    self.turn = threading.RLock()  # autograd's and the loaders' threads launch for the rank too
    self._lingering: dict[bytes, bool] = {}
    self.meetings = 0
    self.started = ""  # what it last started together with the others
    self.waits: dict[int, float] = {}  # thread -> since when it waits for the device
    self.may_execute = True
    self.fell_back = False  # whether it has read a tensor; asked while torch.compile traces
    self.records = True  # False while torch.compile traces: what it traces it drops
    # A sync that finds no tensor on its device waits for device 0 instead, under the pod's lock: keep one alive.
    self.anchor = torch.zeros(1).to(device)
    _XLAC._set_all_reduce_token(device, None)  # a pod that failed before may have left one

  def forget(self) -> None:
    """Drops what was recorded since the last step."""
    super().forget()
    self.local_reads = 0
    self.read_alone = ""  # where the rank last read a tensor without the others

  def still_collective(self, key: bytes) -> bool:
    """Says whether a collective is pending though all that were traced since the step have been read.

    Args:
      key: stands for the pending graph; the answer is remembered by it, because lowering is slow.

    Returns:
      True if one is, e.g. because the program will read its result a second time.
    """
    if key not in self._lingering:
      self._lingering[key] = graphs.lowers_to_collective(graphs.lowered([], self.device))
    return self._lingering[key]

  def drain(self) -> None:
    """Waits for this device's earlier work; never under the pod's lock, which the peers may need to start theirs."""
    thread = threading.get_ident()
    self.waits[thread] = time.monotonic()
    try:
      _wait_device_ops([self.device.replace("xla", "CPU")])
    finally:
      self.waits.pop(thread, None)

  def drop(self) -> None:
    """Gives up all that is pending on the device.

    After a failed launch the tensors that it was to compute make every later sync fail until they are given up.
    """
    self.forget()
    _XLAC._set_all_reduce_token(self.device, None)  # stock's collectives chain their results through it
    _clear_pending_irs(self.device)


class Pod:
  """All ranks of this process.

  Args:
    devices: devices in rank order.
  """

  def __init__(self, devices: Sequence[str]):
    self.ranks = [Rank(index, device) for index, device in enumerate(devices)]
    self.by_device = {rank.device: rank for rank in self.ranks}
    self.board = meeting.Board(len(devices), self._locate)
    self._starting = threading.RLock()
    self._last_meeting = 0
    self._seen = (time.monotonic(), time.process_time(), time.monotonic())  # see watch
    # Who is starting a program that another rank has compiled: its number, where, _lookups_in_vain() before.
    self._follower: tuple[int, str, int] | None = None

  def of(self, device: Any = None) -> Rank | None:
    """Returns the rank of a device, by default of the calling thread's, or None where it has none."""
    return self.by_device.get(str(device or _XLAC._xla_get_default_device()))

  def step(self, rank: Rank, start: Callable[[], Any]) -> None:
    """Takes a turn for everything that is pending on a rank's device.

    Args:
      rank: whose.
      start: compiles and starts the program without waiting for it; so in the methods below.

    Raises:
      PodError: the ranks do not launch the same, or not all came; so in the methods below.
    """
    with rank.turn:
      rank.drain()
      graph = None
      rank.let_go()
      if rank.history:
        # Live tensors cannot be listed from Python. What led to the collectives and how much is pending stand for
        # the graph; where that is new, the lowered texts are compared.
        pending = sum(_XLAC._check_device_tensor_need_materialization(rank.device))
        key = graphs.digest(rank.history, pending)
        if rank.calls or rank.still_collective(key):
          text = functools.partial(graphs.lowered, [], rank.device)
          alone = f" (since the last step it has read a local tensor at {rank.read_alone})" if rank.read_alone else ""
          where = f"the step at {graphs.call_site()}{alone}"
          graph = graphs.Graph(key, False, where, tuple(rank.calls), text)
      if not rank.may_execute and any(_XLAC._check_device_tensor_need_materialization(rank.device)):
        raise RuntimeError(_UNEXPECTED.format("a step"))
      self._launch(rank, graph, start)
      rank.forget()

  def compute(self, rank: Rank, tensors: Sequence[torch.Tensor], start: Callable[[], Any]) -> None:
    """Takes a turn for the pending graph of some tensors, if they have one.

    Args:
      rank: the rank of their device.
      tensors: what to compute.
      start: see step.
    """
    rank.drain()
    if any(_XLAC._check_tensor_need_materialization(tensors)):
      self._compute(rank, tensors, "the sync of tensors", start)

  def read(
    self,
    rank: Rank,
    tensors: Sequence[torch.Tensor],
    compute: Callable[[Sequence[torch.Tensor]], None],
  ) -> Sequence[torch.Tensor]:
    """Takes a turn for tensors that are about to be read, if they are pending.

    A rank may read a local tensor on its own, as with `if master: print(loss.item())`. If that left a mark on its
    pending graph, its next step would be another program than its peers'; so a copy is computed and read. Past
    _LOCAL_READS of them in one step the tensors themselves are, since a chain of reads would grow without end.

    Args:
      rank: the rank of their device.
      tensors: what will be read.
      compute: starts the computation of tensors, without waiting for it.

    Returns:
      The tensors to read from.

    Raises:
      PodError: see step.
    """
    rank.drain()
    if not any(_XLAC._check_tensor_need_materialization(tensors)):
      return tensors
    with rank.turn:
      rank.drain()
      if graphs.has_collective(tensors, _XLAC._get_graph_hash(tensors)):
        rank.local_reads = 0
      elif rank.local_reads < _LOCAL_READS:
        rank.local_reads += 1
        tensors = [torch.ops.aten.clone.default(tensor) for tensor in tensors]
      else:
        rank.read_alone = graphs.call_site()
      self._compute(rank, tensors, "the read of a tensor", functools.partial(compute, tensors))
    return tensors

  def _compute(self, rank: Rank, tensors: Sequence[torch.Tensor], what: str, start: Callable[[], Any]) -> None:
    if not rank.may_execute:
      raise RuntimeError(_UNEXPECTED.format(what))
    with rank.turn:
      rank.drain()
      graph = None
      key = _XLAC._get_graph_hash(tensors)
      if graphs.has_collective(tensors, key):
        rank.let_go()
        text = functools.partial(graphs.lowered, tensors, rank.device)
        graph = graphs.Graph(key, True, f"{what} at {graphs.call_site()}", tuple(rank.calls), text)
      self._launch(rank, graph, start)
      if graph:
        rank.calls = []

  def run(self, rank: Rank, key: bytes, what: str, start: Callable[[], Any]) -> Any:
    """Takes a turn for one program that is known by its key alone.

    Args:
      rank: whose.
      key: equal on all ranks.
      what: the action, for messages.
      start: see step.

    Returns:
      What start returns.
    """
    with rank.turn:
      rank.drain()
      graph = graphs.Graph(key, True, f"{what} at {graphs.call_site()}", (), lambda: "")
      return self._launch(rank, graph, start)

  def alone(self, rank: Rank, start: Callable[[], Any]) -> Any:
    """Takes a turn for a program without collectives: no meeting; see run."""
    with rank.turn:
      rank.drain()
      return self._launch(rank, None, start)

  def _launch(self, rank: Rank, graph: graphs.Graph | None, start: Callable[[], Any]) -> Any:
    try:
      if graph is None:
        with self._starting:
          return start()
      rank.known -= rank.known if options.get("XLA_POD_CHECK_GRAPHS") else _varying
      repeats = graphs.agree(functools.partial(self.board.exchange, rank.index), graph, rank.known)
      rank.meetings += 1
      return self._start_together(rank, graph, start, repeats)
    except meeting.PodError as error:
      if not error.keeps_graph and not error.fatal:  # after a fatal one the device never becomes idle
        rank.drop()
      raise
    except RuntimeError:
      rank.drop()
      raise

  def _start_together(self, rank: Rank, graph: graphs.Graph, start: Callable[[], Any], repeats: bool) -> Any:
    problem, error, result = "", None, None
    with self._starting:
      leads = rank.meetings != self._last_meeting  # the first of its meeting
      self._last_meeting = rank.meetings
      # Eager operations compile at any time, beside the pod's lock.
      counts = not _XLAC._get_use_eager_mode()
      before = _XLAC._xla_get_num_cached_compilation_graph()
      if counts and not leads:
        self._follower = (rank.index, graph.where, _lookups_in_vain())
      try:
        result = start()
      except Exception as caught:
        error = caught
        problem = f"rank {rank.index} could not start {graph.where}: {caught}"
      self._follower, rank.started = None, graph.where
      if counts and _XLAC._xla_get_num_cached_compilation_graph() > before:
        if repeats:
          _varying.add(graph.key)
        if not leads:
          problem = _other_program(rank.index, graph.where)
    # Nobody goes on before all have started: torch may wait for a device while it holds the interpreter's lock, which
    # the others need to start. Compiling counts here, so there is no deadline.
    try:
      outcomes = self.board.exchange(
        rank.index,
        (problem, error is None),
        f"the start of {graph.where}",
        timeout_s=math.inf,
      )
      text = "; ".join(text for text, _ in outcomes if text)
    except meeting.PodError as failed:
      outcomes, text = [("", True)], str(failed)
    if text and any(started for _, started in outcomes):
      raise self._end(text) from error
    if error is not None:
      raise error
    return result

  def _end(self, text: str) -> meeting.PodError:
    fatal = meeting.PodError(f"pod of {len(self.ranks)} ranks: {text}. {_FATAL}", fatal=True)
    threads.end_soon(fatal)
    return fatal

  def watch(self) -> None:
    """Ends the process where its ranks can never end; to be called each second or so.

    All ranks start a program together, and what has started needs the host no more. So where a rank has waited for its
    device for long, and this process computes nothing, the ranks have started different programs. Counting compilations
    does not tell: a rank may compile a new program while its peers find their old one.
    """
    follower = self._follower
    if follower and _lookups_in_vain() > follower[2]:
      self._end(_other_program(*follower[:2]))
      return
    now, worked = time.monotonic(), time.process_time()
    then, worked_then, idle_since = self._seen
    if worked - worked_then > _IDLE * (now - then):
      idle_since = now
    self._seen = (now, worked, idle_since)
    if now - idle_since < _STUCK_S:
      return
    stuck = [rank for rank in self.ranks if any(now - since > _STUCK_S for since in list(rank.waits.values()))]
    if stuck:
      who = meeting.names(rank.index for rank in stuck)
      self._end(f"{who} can never end {stuck[0].started}, because the ranks have started different programs")

  def _locate(self, index: int) -> str:
    thread = threads.thread_of.get(self.ranks[index].device)
    frame = sys._current_frames().get(thread) if thread else None
    return f"is at {graphs.call_site(frame)}" if frame else "has no thread"
