"""Reads of tensors in an emulated pod: every way to look at a value, by all ranks, by one, by other threads."""

import pod_programs
import pytest

PROGRAM = """
import io

def every_way_to_read(r):
  x = full(r)
  s = lambda: total(x)
  assert s()[0].item() == SUM and s().tolist() == [SUM] * 4
  assert bool((s() > SUM - 1).all()) and float(s()[1]) == SUM and int(s()[1]) == SUM
  assert str(SUM)[:2] in repr(s()) and f"{s()[0]:.1f}" == f"{SUM:.1f}"
  assert s().cpu().numpy()[0] == SUM and np.asarray(s().cpu())[2] == SUM
  assert torch.equal(s(), s()) and torch.allclose(s(), s())
  assert s().nonzero().shape[0] == 4 and s()[s() > 0].shape[0] == 4 and torch.unique(s()).shape[0] == 1
  host = torch.empty(4)
  host.copy_(s())
  assert host[0] == SUM
  double = s().to("cpu", torch.float64)
  assert double.dtype == torch.float64 and double[3] == SUM
  file = io.BytesIO()
  torch.save({"w": s()}, file)
  file.seek(0)
  assert torch.load(file, map_location="cpu")["w"][0] == SUM
  assert abs(torch.linalg.inv(torch.eye(3).to(x.device) * s()[0])[0, 0].item() - 1 / SUM) < 1e-5
  assert sum(1 for value in s() if value == SUM) == 4
  if not s()[0]: raise AssertionError
  torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(s())], 1.0, error_if_nonfinite=True)
  return True

def a_local_read_on_one_rank(r):
  model = torch.nn.Linear(4, 1).to(torch_xla.device())
  with torch.no_grad():
    for p in model.parameters(): p.fill_(0.5)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
  for step in range(3):
    optimizer.zero_grad()
    loss = model(full(r)).sum()
    if r == 2: loss.item()
    loss.backward()
    xm.reduce_gradients(optimizer)
    optimizer.step()
    if r == step: print(loss.item())
    torch_xla.sync()
  values = {tuple(row) for row in gather(model.bias.detach().view(1, 1)).tolist()}
  return len(values)

def reads_past_the_limit(r):
  x = full(r)
  for step in range(3):
    y = total(x)
    for _ in range(20): x = x * 1.0; x[0].item()
    torch_xla.sync()
  return y[0].item()

def cross_device_thread(r):
  # A thread that the rank starts has no default device; the tensor's counts.
  y, out = total(full(r)), []
  thread = threading.Thread(target=lambda: out.append(y[0].item()))
  thread.start()
  thread.join()
  return out[0]

def autograd_threads(r):
  seen = []
  class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
      ctx.thread = threading.get_ident()
      return v * 2
    @staticmethod
    def backward(ctx, g):
      ordinal = xr.global_ordinal()
      ranks = gather(torch.full((1,), float(ordinal)).to(g.device)).tolist()
      seen.append((ordinal, ranks, ctx.thread != threading.get_ident()))
      return g * 2
  for _ in range(50):
    v = torch.ones(3, device=torch_xla.device(), requires_grad=True)
    Double.apply(v).sum().backward()
    assert v.grad.tolist() == [2.0] * 3
  assert all(other for _, _, other in seen) and len(seen) == 50
  return [ordinal for ordinal, ranks, _ in seen if ordinal != r or ranks != [float(i) for i in range(N)]]

for fn in (every_way_to_read, a_local_read_on_one_rank, reads_past_the_limit, cross_device_thread, autograd_threads):
  scenario(fn)
"""


@pytest.fixture(scope="module")
def lines():
  return pod_programs.scenarios(PROGRAM, order="0,1,4,5,6,7,2,3")


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("every_way_to_read", True),
    ("a_local_read_on_one_rank", 1),
    ("reads_past_the_limit", 28.0),
    ("cross_device_thread", 28.0),
    ("autograd_threads", []),
  ],
)
def test_reads(lines, name, expected):
  assert lines[name].get("results") == [expected] * 8, lines[name]
