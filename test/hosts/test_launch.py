"""Launchers on real emulated pods: who is who in every rank, and how failing ranks end the launch."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

PROGRAMS = pathlib.Path(__file__).with_name("programs.py")
SWAPPED = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4", "PJRT_CPU_DEVICE_ORDER": "0,1,3,2"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


def start(*words, options=(), limit_s=280, **environ):
  inherited = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_POD_", "PJRT_", "TORCHELASTIC"))}
  return subprocess.run(
    [sys.executable, *options, str(PROGRAMS), *words],
    env=inherited | SWAPPED | {"TMPDIR": "/tmp"} | environ,
    cwd="/",  # the checkout holds our half of the package only
    capture_output=True,
    text=True,
    timeout=limit_s,
  )


def results(*words, **keywords):
  done = start(*words, **keywords)
  assert done.returncode == 0, done.stderr
  return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


def row(ordinal, device, *before, word=""):
  return [*before, ordinal, ordinal, 4, f"xla:{device}", word]


DEVICES = (0, 1, 3, 2)


def test_every_launcher_gives_the_launch_order():  # cases O3 and O4
  ((early, first, second, late),) = results("tables")
  assert early == [1, 1, 0]
  assert first == [[o, row(o, d, "x", word="y")] for o, d in enumerate(DEVICES)]
  assert second == [[o, row(o, d)] for o, d in enumerate(DEVICES)]
  assert late == 1  # the parent never became part of a pod


def test_device_order_numbers_ranks_as_stock_does():
  (seen,) = results("autograd", PJRT_ORDINALS="device")
  # Rank 2 of the launch runs on device 3, so it is ordinal 3 and the third on its host.
  assert sorted(seen) == [[0, [0, [[0, 0, 4]]]], [1, [1, [[1, 1, 4]]]], [2, [2, [[2, 3, 4]]]], [3, [3, [[3, 2, 4]]]]]


def test_autograds_threads_know_the_rank():  # case O6
  (seen,) = results("autograd")
  assert seen == [[o, [o, [[o, o, 4]]]] for o in range(4)]


def test_one_compiled_function_serves_all_threads():
  ((alone, seen),) = results("dynamo")
  assert alone == 100.0
  assert seen == [[o, [o + 400.0 + 10000.0 * o] * 2] for o in range(4)]


def test_rank_threads_in_this_process():
  ((seen, size, ordinal),) = results("threads")
  assert seen == [[o, row(o, d, o)] for o, d in enumerate(DEVICES)]
  assert (size, ordinal) == (1, 0)


def test_one_rank_in_this_process():
  (seen,) = results("alone")
  assert seen[:2] == [[0, 0, 0, 1, "xla:0", ""]] * 2
  assert "Runtime is already initialized: this process has used an XLA device" in seen[2]
  assert "Unsupported nprocs (3): only 1 and None" in seen[3]


def test_torchrun_with_one_process_runs_all_devices():
  seen = results("torchrun", options=(*TORCHRUN, "--nproc_per_node=1"))
  assert sorted(seen) == [row(o, d, o) for o, d in enumerate(DEVICES)]


@pytest.mark.parametrize("program", ["torchrun", "init_group"])
def test_torchrun_with_two_cpu_processes_is_refused(program):  # case P6
  done = start(program, options=(*TORCHRUN, "--nproc_per_node=2"))
  assert done.returncode != 0
  assert "PJRT_DEVICE=CPU with 2 processes" in done.stderr
  assert "CPU_NUM_DEVICES=2 with torch_xla.launch" in done.stderr
  assert "RESULT" not in done.stdout


def test_init_process_group_takes_rank_and_size_from_the_pod():
  assert results("init_group", CPU_NUM_DEVICES="1", PJRT_CPU_DEVICE_ORDER="") == [[0, 1]]


@pytest.mark.parametrize(
  ("how", "code", "texts"),
  [
    ("raise", 1, ["rank 2 raised", "LookupError: the third"]),
    ("unsendable", 1, ["rank 2 raised", "Unsendable: left"]),
    ("exit", 7, []),
    ("kill", 1, ["process 0 of 1 on this host", "was killed by SIGKILL before it returned anything"]),
  ],
)
def test_a_failing_rank_ends_the_launch(how, code, texts):  # case P3
  started = time.monotonic()
  done = start("failing", how)
  assert done.returncode == code, done.stderr
  for text in texts:
    assert text in done.stderr
  assert time.monotonic() - started < 120


def test_a_result_that_cannot_be_sent_is_named():
  done = start("unpicklable")
  assert done.returncode == 1
  assert "cannot pickle '_thread.lock' object" in done.stderr


@pytest.mark.parametrize("order", ["", "0,1,3,2"])
def test_info_prints_the_table(order):
  done = subprocess.run(
    [sys.executable, "-m", "torch_xla.pod", "info"],
    env=os.environ | SWAPPED | {"PJRT_CPU_DEVICE_ORDER": order},
    cwd="/",
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  heading, *lines = done.stdout.splitlines()
  assert heading.split("  ")[0] == "ordinal"
  expected = enumerate(DEVICES if order else range(4))
  assert [line.split()[:8] for line in lines] == [
    [str(o), str(d), str(d), "0", "0", "0", str(o), "-"] for o, d in expected
  ]
