r"""Times a plain, compiled CapsNet in PyTorch, for `benchmarks.capsnet`.

  .venv-torch/bin/python experiments/benchmarks/peer.py --batch=128 --steps=5

It runs in an environment of its own, without JAX (`make bench-peers` makes it),
on the CPU, or with `--device=cuda` on a GPU. It prints JSON: `step` and
`inference` in seconds; `peak_bytes`, the peak memory of the process, or of the
GPU, after the steps; and `name`, with the version.

The network, the loss, whose gradient goes through all iterations, and Adam are
those of our benchmark. Votes [B I J D] are stored, and the only loop is that of
the iterations. Convolutions use the faster layout, with channels last. A GPU
rounds no operands unless `--tf32` is given.

Axes: B batch, I parts below, J objects above, C pose of a part, D pose of an
object.
"""

import argparse
import json
import resource
import time


def make_model():
  """The network of Sabour et al. (2017) with its decoder."""
  import torch
  from torch import nn
  from torch.nn import functional

  def squash(s):
    square = torch.sum(s * s, dim=-1, keepdim=True)
    return s * (square / (1 + square) / torch.sqrt(square + 1e-8))

  class CapsNet(nn.Module):
    def __init__(self):
      super().__init__()
      self.conv = nn.Conv2d(1, 256, 9)
      self.primary = nn.Conv2d(256, 256, 9, stride=2)
      self.transforms = nn.Parameter(0.1 * torch.randn(1152, 10, 8, 16))
      self.bias = nn.Parameter(torch.zeros(10, 16))
      self.decoder = nn.Sequential(
        nn.Linear(160, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(),
        nn.Linear(1024, 784), nn.Sigmoid(),
      )  # fmt: skip

    def forward(self, images):
      # The sum over a window, but not the bias, is divided by 32, the types.
      features = functional.conv2d(
        functional.relu(self.conv(images)),
        self.primary.weight / 32,
        self.primary.bias,
        stride=2,
      )
      parts = squash(features.permute(0, 2, 3, 1).reshape(-1, 1152, 8))
      votes = torch.einsum("bic,ijcd->bijd", parts, self.transforms)
      logits = votes.new_zeros(votes.shape[:3])
      for iteration in range(3):
        shares = torch.softmax(logits, dim=2)
        poses = squash(torch.einsum("bij,bijd->bjd", shares, votes) + self.bias)
        if iteration < 2:
          logits = logits + torch.einsum("bijd,bjd->bij", votes, poses)
      return poses

    def loss(self, images, labels):
      poses = self(images)
      lengths = torch.sqrt(torch.sum(poses * poses, dim=-1) + 1e-8)
      present = functional.one_hot(labels, 10).to(lengths.dtype)
      margin = present * functional.relu(0.9 - lengths) ** 2
      margin = (
        margin + 0.5 * (1 - present) * functional.relu(lengths - 0.1) ** 2
      )
      rendered = self.decoder((poses * present[..., None]).reshape(-1, 160))
      square = torch.sum((rendered - images.reshape(-1, 784)) ** 2, dim=1)
      return torch.mean(torch.sum(margin, dim=1) + 0.0005 * square)

  return CapsNet().to(memory_format=torch.channels_last)


def measure(batch: int, steps: int, device: str, tf32: bool) -> dict:
  """Times training steps and inference, each after three calls to warm up."""
  import torch

  torch.backends.cuda.matmul.allow_tf32 = tf32
  torch.backends.cudnn.allow_tf32 = tf32
  torch.backends.cudnn.benchmark = True  # takes the fastest convolution
  torch.manual_seed(0)
  model = make_model().to(device)
  optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
  images = torch.rand(batch, 1, 28, 28, device=device)
  images = images.to(memory_format=torch.channels_last)
  labels = torch.randint(0, 10, (batch,), device=device)
  on_gpu = device != "cpu"
  loss, poses = torch.compile(model.loss), torch.compile(model)

  def step():
    optimizer.zero_grad()
    loss(images, labels).backward()
    optimizer.step()

  def infer():
    with torch.no_grad():
      poses(images).norm(dim=-1)

  def wait():
    if on_gpu:
      torch.cuda.synchronize()

  def seconds(function):
    for _ in range(3):
      function()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
      function()
    wait()
    return (time.perf_counter() - start) / steps

  taken = seconds(step)
  peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  if on_gpu:
    peak = torch.cuda.max_memory_allocated()
  return {
    "name": f"PyTorch {torch.__version__}, compiled",
    "step": taken,
    "inference": seconds(infer),
    "peak_bytes": peak,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--batch", type=int, default=128, help="Images.")
  parser.add_argument("--steps", type=int, default=5, help="Steps timed.")
  parser.add_argument("--device", default="cpu", help="cpu or cuda.")
  parser.add_argument("--tf32", action="store_true", help="Products in TF32.")
  given = parser.parse_args()
  found = measure(given.batch, given.steps, given.device, given.tf32)
  print(json.dumps(found))


if __name__ == "__main__":
  main()
