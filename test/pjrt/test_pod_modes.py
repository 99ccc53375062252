"""The ways to run a program in an emulated pod: training with loaders, eager mode, torch_xla.compile, torch.compile."""

import pod_programs
import pytest

PROGRAM = """
import torch_xla.experimental
import torch_xla.distributed.parallel_loader as pl

together = threading.Barrier(N)

def training(r):
  torch.manual_seed(0)
  device = torch_xla.device()
  model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
  ).to(device)
  xm.broadcast_master_param(model)
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
  schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
  data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(0, 2, (32,)))
  loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1)
  steps = 0
  for epoch in range(2):
    for inputs, labels in pl.MpDeviceLoader(loader, device):
      optimizer.zero_grad()
      loss = torch.nn.functional.cross_entropy(model(inputs), labels)
      loss.backward()
      xm.optimizer_step(optimizer)
      if r == 0 and steps % 2: print("loss", loss.item())
      steps += 1
    schedule.step()
  xm.rendezvous("end")
  weights = torch.cat([p.detach().flatten() for p in model.parameters()])
  everyone = gather(weights.view(1, -1)).cpu()
  return [steps, bool((everyone == everyone[0]).all())]

def eager(r):
  together.wait()
  torch_xla.experimental.eager_mode(True)
  together.wait()
  x = full(r)
  for _ in range(10):
    assert (total(x) + 1)[0].item() == SUM + 1
    assert gather(x)[-1].item() == N - 1
    assert (x.to(torch.bfloat16) * 3).float().sum().item() == 12 * r
  together.wait()
  torch_xla.experimental.eager_mode(False)
  together.wait()
  return True

def compiled_by_torch_xla(r):
  double = torch_xla.compile(lambda v: total(v) * 2, full_graph=True)
  for _ in range(5):
    assert double(full(r))[0].item() == 2 * SUM
  with torch_xla.compile():
    y = gather(full(r)).sum()
  assert y.item() == 4 * SUM
  try:
    torch_xla.compile(lambda v: total(v)[0].item(), full_graph=True)(full(r))
  except RuntimeError as error:
    assert "full_graph" in str(error), error
    return total(full(r))[0].item()

def compiled_by_torch(r):
  x, device = full(r), torch_xla.device()
  linear = torch.nn.Linear(4, 4).to(device)
  with torch.no_grad():
    for p in linear.parameters(): p.fill_(0.5)
  forward = torch.compile(lambda v: torch.sin(linear(v)) * 2, backend="openxla")
  expected = sum(2 * np.sin(2.0 * i + 0.5) for i in range(N))
  for _ in range(3):
    assert abs(total(forward(x))[0].item() - expected) < 1e-3
  model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
  fast, optimizer = torch.compile(model, backend="openxla"), torch.optim.SGD(model.parameters(), lr=0.01)
  for _ in range(3):
    optimizer.zero_grad()
    fast(x[None]).sum().backward()
    xm.optimizer_step(optimizer)
  y = total(x)  # pending when the next function is compiled
  after = torch.compile(lambda v: v * 3 + 1, backend="openxla")
  assert after(y)[0].item() == 3 * SUM + 1
  inside = torch.compile(lambda v: total(v + 1) * 2, backend="openxla")
  for _ in range(3):
    z = inside(x)
  return z[0].item()

for fn in (training, eager, compiled_by_torch_xla, compiled_by_torch):
  scenario(fn)
"""


@pytest.fixture(scope="module")
def lines():
  return pod_programs.scenarios(PROGRAM)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("training", [8, True]),
    ("eager", True),
    ("compiled_by_torch_xla", 28.0),
    ("compiled_by_torch", 72.0),
  ],
)
def test_modes(lines, name, expected):
  assert lines[name].get("results") == [expected] * 8, lines[name]
