"""Every kind of task with a very small model, for tests of all tasks."""

import optax

import capjax
from capjax import baselines, data
from capjax.generative import amortised
from capjax.specs import Spec
from experiments.tasks import (
  boltzmann,
  capsnet,
  constellation,
  generative,
  helmholtz,
  matrix_capsules,
  multimnist,
  scae,
  slots,
  transforming,
  vae,
)
from experiments.tasks.scenes import Scene
from experiments.training.augmentation import Placement

CAPSNET = Spec(
  capjax.CapsNet,
  dict(conv_features=4, conv_kernel=3, num_types=2, primary_kernel=3,
       decoder_features=[8]),
)  # fmt: skip
_UNDECODED = CAPSNET.with_arguments(decoder_features=[])
_BASELINE = Spec(
  baselines.CapsNetBaseline,
  dict(conv_features=[4, 4], conv_kernels=[3, 3], dense_features=[8]),
)
_EFFICIENT = Spec(
  capjax.EfficientCapsNet,
  dict(conv_features=[4, 8], conv_kernels=[3, 3], conv_strides=[1, 2],
       part_size=4, pose_size=4, decoder_features=[8]),
)  # fmt: skip
_SCAE = Spec(
  capjax.SCAE,
  dict(num_parts=3, num_objects=4, template_size=4, num_features=2,
       encoder_features=4),
)  # fmt: skip
_GENERATIVE = Spec(
  amortised.amortised_capsules,
  dict(num_capsules=[3, 2], conv_features=[4], width=4, template_size=5),
)
_MATRIX = Spec(
  capjax.MatrixCapsules,
  dict(features=3, types=(2, 2, 3), num_iterations=1, padding="SAME"),
)
_CNN = Spec(
  baselines.smallnorb_baseline, dict(features=(4, 4), dense_features=8)
)
_CONSTELLATION = Spec(
  capjax.ConstellationAutoencoder,
  dict(width=8, num_blocks=1, num_heads=2, hidden=8),
)
_SLOTS = Spec(
  capjax.SlotAutoencoder, dict(slot_size=4, features=4, num_convs=2)
)
_TRANSFORMING = Spec(capjax.TransformingAutoencoder, dict(num_capsules=3))
_RBM = Spec(
  capjax.CapsuleRBM, dict(num_capsules=4, capsule_size=3, num_chains=5)
)
_MACHINE = Spec(capjax.CapsuleHM, dict(num_capsules=[4, 3], capsule_size=3))
_VAE = Spec(baselines.ConvVAE, dict(num_latents=3))
_JITTER = transforming.Movements(max_jitter=1, max_shift=1)
# The module, the model, and options.
TASKS = {
  "capsnet": (capsnet, CAPSNET, {}),
  "capsnet_undecoded": (
    capsnet, _UNDECODED,
    {"placement": Placement(max_shift=1), "reconstruction_weight": 0.0},
  ),
  "capsnet_cropped": (
    capsnet, _UNDECODED,
    {"placement": Placement(
      max_shift=0, crop=6, flip=True, max_brightness=0.2, standardise=True
    ), "reconstruction_weight": 0.0},
  ),
  "capsnet_baseline": (
    capsnet, _BASELINE, {"placement": Placement(canvas=10, max_rotation=9.0)},
  ),
  "capsnet_deep": (
    capsnet,
    _UNDECODED.with_arguments(
      residual_features=[4], primary_kernel=1, primary_stride=1,
      conv_capsules=[2], routing="em",
    ),
    {"reconstruction_weight": 0.0},
  ),
  "efficient": (capsnet, _EFFICIENT, {}),
  "multimnist": (multimnist, CAPSNET, {"pad": 1, "max_shift": 1}),
  "multimnist_baseline": (multimnist, _BASELINE, {"pad": 1, "max_shift": 1}),
  "scae": (scae, _SCAE, {"placement": Placement(canvas=23)}),
  "scae_pairs": (
    scae, _SCAE, {"scene": Scene("multimnist", pad=8, max_shift=1)},
  ),
  "scae_moved_pairs": (
    scae, _SCAE, {"scene": Scene("affnist_like", canvas=23)},
  ),
  "generative": (generative, _GENERATIVE, {}),
  "generative_bound": (
    generative, _GENERATIVE.with_arguments(gaussian_poses=True),
    {
      "num_importance": 2,
      "temperature": optax.exponential_decay(0.5, 10, 0.5),
    },
  ),
  "matrix_capsules": (
    matrix_capsules, _MATRIX, {"dataset": "digits", "num_steps": 10},
  ),
  "matrix_capsules_placed": (
    matrix_capsules, _MATRIX,
    {
      "dataset": "digits",
      "num_steps": 10,
      "placement": Placement(canvas=14, max_rotation=9.0),
    },
  ),
  "matrix_capsules_margin": (
    matrix_capsules, _MATRIX,
    {"dataset": "digits", "num_steps": 10, "kind": "margin"},
  ),
  "matrix_capsules_baseline": (
    matrix_capsules, _CNN, {"dataset": "digits", "num_steps": 10},
  ),
  "constellation": (
    constellation, _CONSTELLATION,
    {"noise": 0.1, "sparsity_of": "soft", "activity": 3.0},
  ),
  "constellation_slots": (
    constellation, _CONSTELLATION.with_arguments(encoder="slots"), {},
  ),
  "constellation_invariant": (
    constellation, _CONSTELLATION.with_arguments(encoder="invariant_slots"), {},
  ),
  "slots": (slots, _SLOTS, {"scene": Scene(pad=1, max_shift=1)}),
  "slots_invariant": (
    slots, _SLOTS.with_arguments(invariant=True),
    {"scene": Scene("affnist_like", canvas=13)},
  ),
  "transforming": (transforming, _TRANSFORMING, {"movements": _JITTER}),
  "transforming_affine": (
    transforming, _TRANSFORMING.with_arguments(pose="affine"),
    {"movements": _JITTER, "canvas": 12},
  ),
  "boltzmann": (boltzmann, _RBM, {"num_sweeps": 2}),
  "boltzmann_exact": (
    boltzmann, _RBM,
    {"num_iterations": None, "block": True, "binary": True, "num_sweeps": 2},
  ),
  "helmholtz": (helmholtz, _MACHINE, {}),
  "vae": (vae, _VAE, {}),
}  # fmt: skip


def untrained(name: str, count: int | None = 40):
  """A task of `TASKS`, examples for it, and its model's shapes in evaluation.

  Args:
    name: of the task.
    count: the number of examples; None for all.
  """
  module, spec, options = TASKS[name]
  task = module.make_task(spec, optax.adam(1e-3), **options)
  dataset = load(name, count)
  model = task.describe(dataset.images.shape[1:], dataset.num_classes).shapes()
  model.eval()
  return task, dataset, model


def load(name: str, count: int | None = 40) -> data.Dataset:
  """The first training examples for a task of `TASKS`; None for all."""
  of_points = name.startswith("constellation")
  whole = data.load("constellations" if of_points else "digits", "train")
  return data.select(whole, slice(count))
