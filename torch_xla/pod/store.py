"""The store that the processes of a launch meet at: who serves it, on which address, and how to reach it."""

import errno
import ipaddress
import logging
import os
import queue
import socket
import threading
import time
from datetime import timedelta

import torch.distributed as dist

from torch_xla.pod.environments import DEFAULT_PORT, Launch

# How long a process that found its port taken talks to whoever took it before it calls them a stranger.
_STRANGER_S = 10.0

_servers: dict[tuple[str, int], dist.TCPStore] = {}  # keeps served stores alive as long as the process


def listen(host: str, port: int) -> socket.socket | None:
  """Opens a listening socket on the one address that the launch names.

  Args:
    host: name or address.
    port: the port, or 0 for any free one.

  Returns:
    The socket, or None where the address is another machine's or the port is taken.

  Raises:
    OSError: the address cannot be served for another reason, e.g. a port that needs privileges.
  """
  for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
    try:
      ours = socket.socket(family, kind)
    except OSError:
      continue  # an address family that this machine does not have
    try:
      ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      ours.bind(address)
      ours.listen(4096)
      return ours
    except OSError as error:
      ours.close()
      if error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
        raise
  return None


def serve(host: str, port: int, timeout_s: float) -> int | None:
  """Serves a store from this process until it ends; a second call for the same address is the same store.

  Args:
    host: name or address to listen on, never every interface.
    port: the port, or 0 for a new store on any free one.
    timeout_s: the store's default deadline.

  Returns:
    The port, or None where another process holds it or another machine owns the address.
  """
  if (host, port) in _servers:
    return port
  ours = listen(host, port)
  if ours is None:
    return None
  port = ours.getsockname()[1]
  # multi_tenant: torch's env:// may ask for the same port in this process and then shares the server.
  _servers[host, port] = dist.TCPStore(
    host,
    port,
    None,
    True,
    timedelta(seconds=timeout_s),
    wait_for_workers=False,
    multi_tenant=True,
    master_listen_fd=ours.detach(),
  )
  return port


def warn_unreachable(launch: Launch) -> None:
  """Warns where the store's address means only this machine; for the process that serves it.

  Several hosts may be one machine in disguise (`torchrun --nnodes=2` twice, to try a program), so it is no error.

  Args:
    launch: where this process stands.
  """
  if launch.hosts == 1:
    return
  found = {info[4][0] for info in socket.getaddrinfo(launch.store_host, None, type=socket.SOCK_STREAM)}
  if all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found):
    logging.getLogger(__name__).warning(
      f"store {launch.store_host}: on this machine the name means {', '.join(map(str, sorted(found)))}, which other "
      f"machines cannot reach. If the {launch.hosts} hosts are several machines, launch with an address that all of "
      "them can reach, or correct /etc/hosts."
    )


def connect(host: str, port: int, timeout_s: float) -> dist.TCPStore:
  """Opens a connection of its own to a store, waiting for the store to appear.

  Args:
    host: name or address.
    port: the port.
    timeout_s: the longest wait, and the default deadline of the store's calls.

  Returns:
    A client; calls of one client block each other, so a thread that waits long wants its own.

  Raises:
    RuntimeError: nobody serves the address by the deadline, or who does is no store.
  """
  deadline = time.monotonic() + timeout_s
  pause_s, reason = 0.02, ""
  while True:  # probing first keeps torch's per-attempt warnings off the user's screen
    left_s = deadline - time.monotonic()
    if left_s <= 0:
      raise RuntimeError(
        f"store {host}:{port}: nobody answered within {timeout_s:g} s ({reason}). The process of rank 0 "
        "serves it: see whether it is up and its address and port are reachable, or raise XLA_POD_TIMEOUT_S."
      )
    try:
      socket.create_connection((host, port), timeout=min(left_s, 5.0)).close()
      break
    except OSError as error:
      reason = str(error) or type(error).__name__
    time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
    pause_s = min(pause_s * 1.5, 0.5)
  client, reason = _open(host, port, max(1.0, deadline - time.monotonic()))
  if client is None:
    raise RuntimeError(
      f"store {host}:{port}: the program that holds this port is no store of this job ({reason}). "
      "Set XLA_POD_STORE_PORT to a free port, the same on every host."
    )
  client.set_timeout(timedelta(seconds=timeout_s))
  return client


def _open(host: str, port: int, timeout_s: float) -> tuple[dist.TCPStore | None, str]:
  """Opens a client, or says why not; a listener that never answers would keep torch waiting without end."""
  done: queue.SimpleQueue[tuple[dist.TCPStore | None, str]] = queue.SimpleQueue()

  def work() -> None:
    try:
      done.put((dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s), wait_for_workers=False), ""))
    except RuntimeError as error:
      done.put((None, str(error)))

  threading.Thread(target=work, name="store client", daemon=True).start()
  try:
    return done.get(timeout=timeout_s)
  except queue.Empty:
    return None, f"it did not answer within {timeout_s:.1f} s"


def join(launch: Launch, timeout_s: float) -> tuple[dist.Store, bool]:
  """Reaches the store of a launch, serving it first where that is this process's part.

  Args:
    launch: where this process stands.
    timeout_s: the longest wait for the store to appear.

  Returns:
    A connection whose keys are private to this launch, and whether this process serves the store.

  Raises:
    RuntimeError: the store does not appear, or a stranger holds its port.
  """
  host, port = launch.store_host, launch.store_port or DEFAULT_PORT
  serves = False
  if launch.rank == 0 and not launch.served:
    # Taken: another process that claims rank 0, or torch's own store in this one. Both can be joined; the
    # exchange finds the twin. A stranger's port shows by not answering as a store.
    warn_unreachable(launch)
    serves = serve(host, port, timeout_s) is not None
    if not serves and _is_local(host):
      timeout_s = min(timeout_s, _STRANGER_S)
  return dist.PrefixStore(launch.prefix, connect(host, port, timeout_s)), serves


def _is_local(host: str) -> bool:
  probe = listen(host, 0)
  if probe is None:
    return False
  probe.close()
  return True


def local() -> dist.Store:
  """Returns a new store for the threads of this process alone; no socket is opened."""
  return dist.PrefixStore(f"xla_pod/{os.getpid()}", dist.HashStore())
