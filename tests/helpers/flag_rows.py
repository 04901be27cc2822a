"""Command lines of the training binaries, and the tasks that they describe.

No number is a default, and none occurs twice in a line. So a test fails if two
numbers are exchanged. Each boolean differs from every other one in some line.
"""

from typing import Any, NamedTuple

from experiments.training.augmentation import Placement

# The flags that all lines have, and the rates at their first and last steps.
RATES = "--learning_rate=0.004 --decay_rate=0.5 --decay_steps=10 --num_steps=20"
_FIRST, _LAST = 0.004, 0.001
# The decay is 0.75 from step 10 on.
_SLOWER = "--slower_at=10 --slower_by=1.5"
_SLOWER_LAST = 0.0015


class Row(NamedTuple):
  """A command line, and what its flags make.

  Attributes:
    line: the flags, without `RATES`.
    maker: the class or function that makes the model.
    arguments: of the model; those that the flags change, at least.
    options: of the task; those that the flags change, at least.
    rates: of the optimiser, at the first step and after the last.
    kept_proper: units whose precisions the optimiser keeps in their range.
  """

  line: str
  maker: str
  arguments: dict[str, Any]
  options: dict[str, Any]
  rates: tuple[float, float] = (_FIRST, _LAST)
  kept_proper: tuple[str, ...] = ()


def _placed(**given):
  return Placement(**given)._asdict()


_MOVED = "--canvas=57 --max_rotation=11 --max_shear=0.12 --max_scale=1.3"
_PLACES = {
  "canvas": 57, "max_rotation": 11.0, "max_shear": 0.12, "max_scale": 1.3
}  # fmt: skip

ROWS = {
  "train_boltzmann": [
    Row(
      "--num_capsules=7 --capsule_size=5 --mean_field_iterations=3 "
      f"--num_sweeps=4 --sweep=block --num_chains=6 --binary {_SLOWER} "
      "--max_error=0.3",
      "CapsuleRBM",
      {"num_capsules": 7, "capsule_size": 5, "num_chains": 6},
      {
        "num_iterations": 3, "num_sweeps": 4, "block": True, "binary": True,
        "max_error": 0.3,
      },
      (_FIRST, _SLOWER_LAST),
    ),
    Row(
      "--noswitches --hidden=gaussian --binary",
      "CapsuleRBM",
      {
        "visible": "bernoulli", "hidden": "gaussian", "switches": False,
        "interaction": False,
      },
      {"binary": True, "block": False},
      kept_proper=("hidden",),
    ),
    Row(
      "--visible=gaussian --interaction --mean_field_iterations=0",
      "CapsuleRBM",
      {
        "visible": "gaussian", "hidden": "bernoulli", "switches": True,
        "interaction": True,
      },
      {"num_iterations": None, "binary": False, "block": False},
      kept_proper=("visible",),
    ),
  ],
  "train_helmholtz": [
    Row(
      "--num_capsules=7,9 --capsule_size=5 --visible=gaussian "
      f"--num_sweeps=4 --sweep=block --num_chains=6 {_SLOWER} "
      "--pretrain_steps=8 --pretrain_learning_rate=0.2 --seed=11",
      "CapsuleHM",
      {
        "num_capsules": [7, 9], "capsule_size": 5, "visible": "gaussian",
        "hidden": "bernoulli",
      },
      {
        "binary": False,
        "pretraining": {
          "fit": 8, "optimizer": [0.2, 0.075], "num_sweeps": 4, "block": True,
          "num_chains": 6, "seed": 11,
        },
      },
      (_FIRST, _SLOWER_LAST),
      kept_proper=("visible",),
    ),
    Row(
      "--hidden=gaussian --binary --mean_field_iterations=3 --max_error=0.3 "
      "--pretrain_steps=0",
      "CapsuleHM",
      {"visible": "bernoulli", "hidden": "gaussian"},
      {
        "num_iterations": 3, "binary": True, "max_error": 0.3,
        "pretraining": None,
      },
      kept_proper=("hidden",),
    ),
  ],
  "train_capsnet": [
    Row(
      "--reconstruction=official --num_iterations=5 --routing=em --leaky "
      "--routing_gradient=last --conv_features=24 --conv_kernel=6 "
      "--residual_features=12,13 --residual_blocks=4 --num_types=14 "
      "--part_size=10 --primary_kernel=23 --primary_stride=3 "
      "--primary_scale=0.6 --pose_size=15 --conv_capsules=17,18 "
      "--conv_capsules_kernel=7 --conv_competition=grid "
      "--hidden_capsules=19,20 --transforms_scale=0.7 "
      "--decoder_features=21,22 --decoder_init=official --bfloat16 "
      f"{_MOVED} --downsample=28 --flip --max_brightness=0.25 "
      "--max_contrast=0.35",
      "CapsNet",
      {
        "num_iterations": 5, "routing": "em", "leaky": True,
        "routing_gradient": "last", "conv_features": 24, "conv_kernel": 6,
        "residual_features": [12, 13], "residual_blocks": 4, "num_types": 14,
        "part_size": 10, "primary_kernel": 23, "primary_stride": 3,
        "primary_scale": 0.6, "pose_size": 15, "conv_capsules": [17, 18],
        "conv_capsules_kernel": 7, "conv_competition": "grid",
        "hidden_capsules": [19, 20], "transforms_scale": 0.7,
        "decoder_features": [21, 22], "decoder_init": "official",
        "dtype": "bfloat16",
      },
      {
        "placement": _placed(
          **_PLACES, downsample=28, flip=True, max_brightness=0.25,
          max_contrast=0.35,
        ),
        "reconstruction_weight": 0.01,
      },
    ),
    Row(
      "--model=baseline --cnn_features=12,13 --cnn_kernels=6,7 --cnn_pool=2 "
      "--cnn_average --cnn_dropout=0.1 --cnn_dense=14,15 --crop=24 "
      "--standardise --viewpoints=azimuth",
      "CapsNetBaseline",
      {
        "conv_features": [12, 13], "conv_kernels": [6, 7], "pool": 2,
        "average": True, "dropout": 0.1, "dense_features": [14, 15],
        "dtype": "float32",
      },
      {
        "placement": _placed(max_shift=0, crop=24, standardise=True),
        "viewpoints": "azimuth",
      },
    ),
    Row(
      "--model=efficient --reconstruction=none --part_size=10 --pose_size=15 "
      "--max_shift=3",
      "EfficientCapsNet",
      {"part_size": 10, "pose_size": 15, "decoder_features": []},
      {"placement": _placed(max_shift=3), "reconstruction_weight": 0.0},
    ),
  ],
  "train_multimnist": [
    Row(
      "--model=efficient --reconstruction=official --part_size=10 "
      "--pose_size=15 --decoder_features=21,22 --pad=6 --max_shift=3 "
      "--bfloat16",
      "EfficientCapsNet",
      {
        "part_size": 10, "pose_size": 15, "decoder_features": [21, 22],
        "dtype": "bfloat16",
      },
      {"pad": 6, "max_shift": 3, "reconstruction_weight": 0.01},
    )
  ],
  "train_matrix_capsules": [
    Row(
      "--dataset=smallnorb --features=12 --types=13,14,15 --num_iterations=2 "
      "--routing_gradient=last --form=official --start=official "
      "--final_inverse_temperature=0.03 --data_amount=9 --coordinates=pixels "
      "--pose=vector --padding=SAME --margin_steps=70 --weight_decay=0.001 "
      "--augmentation=ibm --viewpoints=elevation --bfloat16",
      "MatrixCapsules",
      {
        "features": 12, "types": [13, 14, 15], "num_iterations": 2,
        "routing_gradient": "last", "form": "official", "start": "official",
        "final_inverse_temperature": 0.03, "data_amount": 9.0,
        "coordinates": "pixels", "pose": "vector", "padding": "SAME",
        "dtype": "bfloat16",
      },
      {
        "num_steps": 20, "dataset": "smallnorb", "kind": "spread",
        "margin_steps": 70.0, "weight_decay": 0.001, "pipeline": "ibm",
        "viewpoints": "elevation",
      },
    ),
    Row(
      "--loss=margin --data_amount=0 --max_shift=3",
      "MatrixCapsules",
      {"data_amount": None, "form": "paper", "start": "identity"},
      {
        "dataset": "digits", "kind": "margin", "margin_steps": None,
        "placement": _placed(max_shift=3),
      },
    ),
    Row(
      f"--model=baseline --cnn_features=12,13 --cnn_dense=14 {_MOVED}",
      "smallnorb_baseline",
      {"features": [12, 13], "dense_features": 14, "dtype": "float32"},
      {"placement": _placed(**_PLACES)},
    ),
  ],
  "train_scae": [
    Row(
      "--num_parts=12 --num_objects=13 --num_classes=14 --template_size=15 "
      "--num_features=17 --encoder_features=18 --nonlinearity=relu1 "
      "--mixing=coupled --kind=similarity --normalise=votes "
      "--masking=near_hard --part_encoder=conv --nodeformations --nonoise "
      "--edges --bfloat16 --parts_weight=0.21 --dynamics_weight=0.22 "
      "--prior_within_weight=0.23 --prior_between_weight=0.24 "
      "--posterior_within_weight=0.25 --posterior_between_weight=0.26 "
      f"{_MOVED}",
      "SCAE",
      {
        "num_parts": 12, "num_objects": 13, "num_classes": 14,
        "template_size": 15, "num_features": 17, "encoder_features": 18,
        "nonlinearity": "relu1", "mixing": "coupled", "kind": "similarity",
        "normalise": "votes", "masking": "near_hard", "part_encoder": "conv",
        "object_encoder": "set_transformer", "deformations": False,
        "edges": True, "dtype": "bfloat16",
      },
      {
        "placement": _placed(max_shift=0, **_PLACES),
        "scene": None,
        "weights": {
          "parts": 0.21, "dynamics": 0.22, "prior_within": 0.23,
          "prior_between": 0.24, "posterior_within": 0.25,
          "posterior_between": 0.26,
        },
        "noise": False,
      },
    ),
    Row(
      "--object_encoder=mlp --nodeformations --edges --scene=multimnist "
      "--pad=6 --max_shift=3",
      "SCAE",
      {"object_encoder": "mlp", "deformations": False, "edges": True},
      {
        "scene": {
          "kind": "multimnist", "pad": 6, "max_shift": 3, "canvas": 0
        },
        "noise": True,
      },
    ),
    Row(
      "--scene=affnist_like --canvas=57",
      "SCAE",
      {"deformations": True, "edges": False},
      {
        "scene": {
          "kind": "affnist_like", "pad": 4, "max_shift": 0, "canvas": 57
        },
      },
    ),
    Row("--max_shift=3", "SCAE", {}, {"placement": _placed(max_shift=3)}),
  ],
  "train_slots": [
    Row(
      "--num_slots=5 --slot_size=12 --num_iterations=2 --features=13 "
      "--num_convs=4 --num_doublings=1 --start=learned --invariant --bfloat16 "
      "--pad=6 --max_shift=7",
      "SlotAutoencoder",
      {
        "num_slots": 5, "slot_size": 12, "num_iterations": 2, "features": 13,
        "num_convs": 4, "num_doublings": 1, "start": "learned",
        "invariant": True, "dtype": "bfloat16",
      },
      {
        "scene": {
          "kind": "multimnist", "pad": 6, "max_shift": 7, "canvas": 40
        },
      },
    ),
    Row(
      "--scene=affnist_like --canvas=57",
      "SlotAutoencoder",
      {"invariant": False},
      {
        "scene": {
          "kind": "affnist_like", "pad": 4, "max_shift": 4, "canvas": 57
        },
      },
    ),
  ],
  "train_constellation": [
    Row(
      "--encoder=slots --width=24 --blocks=3 --heads=2 --hidden=25 "
      "--noise=0.21 --sparsity=soft --prior_within=0.22 --prior_between=0.23 "
      "--activity=0.24 --deformation=0.25 --bfloat16",
      "ConstellationAutoencoder",
      {
        "num_objects": 3, "width": 24, "num_blocks": 3, "num_heads": 2,
        "hidden": 25, "encoder": "slots", "dtype": "bfloat16",
      },
      {
        "noise": 0.21, "sparsity_of": "soft", "within": 0.22, "between": 0.23,
        "activity": 0.24, "deformation": 0.25,
      },
    )
  ],
  "train_generative": [
    Row(
      "--num_capsules=7,9,5 --template_size=13 --conv_features=14,15 "
      "--width=18 --temperature=0.8 --final_temperature=0.2 "
      "--pixel_scale=0.31 --scale_floor=0.32 --off_scale=0.33 "
      "--scale_prior=0.34 --gaussian_poses --num_importance=4 --bfloat16 "
      f"{_MOVED}",
      "amortised_capsules",
      {
        "num_capsules": [7, 9, 5], "template_size": 13,
        "conv_features": [14, 15], "width": 18, "temperature": 0.2,
        "pixel_scale": 0.31, "scale_floor": 0.32, "off_scale": 0.33,
        "scale_prior": 0.34, "gaussian_poses": True, "dtype": "bfloat16",
      },
      {
        "temperature": [0.8, 0.2], "num_importance": 4,
        "placement": _placed(max_shift=0, **_PLACES),
      },
    ),
    Row(
      "--temperature=0.8 --max_shift=3",
      "amortised_capsules",
      {"temperature": 0.8, "scale_prior": None},
      {"temperature": None, "placement": _placed(max_shift=3)},
    ),
  ],
  "train_transforming": [
    Row(
      "--pose=affine --output=linear --num_capsules=7 --recognition_units=12 "
      "--generation_units=13 --max_jitter=3 --max_shift=4 --max_rotation=31 "
      "--max_scaling=0.3 --max_shear=0.4 --canvas=57 --bfloat16",
      "TransformingAutoencoder",
      {
        "pose": "affine", "output": "linear", "num_capsules": 7,
        "recognition_units": 12, "generation_units": 13, "dtype": "bfloat16",
      },
      {
        "movements": {
          "max_jitter": 3, "max_shift": 4, "max_rotation": 31.0,
          "max_scaling": 0.3, "max_shear": 0.4,
        },
        "canvas": 57,
      },
    )
  ],
  "train_vae": [
    Row(
      "--num_latents=7 --pixel_scale=0.3 --bfloat16",
      "ConvVAE",
      {"num_latents": 7, "pixel_scale": 0.3, "dtype": "bfloat16"},
      {},
    )
  ],
}  # fmt: skip
