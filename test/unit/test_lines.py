"""Lines that threads print stay whole."""

import sys
import threading

from torch_xla.pod.lines import whole_lines


def test_lines_of_threads_do_not_mix(capsys):
  def chatter(rank):
    for number in range(200):
      print(rank, number, rank)

  with whole_lines():
    threads = [threading.Thread(target=chatter, args=(rank,)) for rank in range(8)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(30)
  lines = capsys.readouterr().out.splitlines()
  assert sorted(lines) == sorted(f"{rank} {number} {rank}" for rank in range(8) for number in range(200))


def test_what_is_flushed_or_left_over_is_written(capsys):
  stock = sys.stdout
  with whole_lines():
    print("50 %", end="", flush=True)
    assert capsys.readouterr().out == "50 %"
    print("left", end="")
    assert capsys.readouterr().out == ""
    assert sys.stdout.encoding == stock.encoding
  assert sys.stdout is stock
  assert capsys.readouterr().out == "left"
