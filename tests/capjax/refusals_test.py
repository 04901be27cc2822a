"""Arguments of models, layers and losses that would be misread silently."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from capjax.kernels.matching import selection
from flax import nnx

import capjax
from capjax import baselines, layers, losses, slot_autoencoder
from capjax.energy import units, wake_sleep
from capjax.generative import amortised, numpyro_programs
from capjax.layers import matrix, slots
from capjax.scae import autoencoder, parts, templates

pytestmark = pytest.mark.usefixtures("as_a_user")


_BASELINE = baselines.CapsNetBaseline
_POINTS = capjax.ConstellationAutoencoder
_RBM = functools.partial(capjax.CapsuleRBM, num_capsules=2, capsule_size=3)
_TEMPLATES = functools.partial(templates.Templates, (9, 8, 1), 2)
_SET = functools.partial(
  capjax.SetTransformer, 3, width=4, num_blocks=1, num_heads=1, num_outputs=2
)


@pytest.mark.parametrize(
  ("make", "options", "kind", "words"),
  [
    (capjax.CapsNet, {"conv_capsules": 8}, TypeError, "sequence"),
    (capjax.CapsNet, {"hidden_capsules": 8}, TypeError, "sequence"),
    (capjax.CapsNet, {"residual_features": 8}, TypeError, "sequence"),
    (capjax.CapsNet, {"decoder_features": "512"}, TypeError, "is '512'"),
    (capjax.CapsNet, {"decoder_features": (-5,)}, ValueError, "is -5"),
    (capjax.CapsNet, {"conv_kernel": "9"}, TypeError, "is '9'"),
    (capjax.CapsNet, {"transforms_scale": "0.1"}, TypeError, "a number"),
    (capjax.CapsNet, {"primary_scale": "x"}, TypeError, "a number"),
    (capjax.CapsNet, {"dtype": "bloat16"}, ValueError, "is bloat16"),
    (capjax.EfficientCapsNet, {"dtype": jnp.int32}, ValueError, "'float32' or"),
    (capjax.EfficientCapsNet, {"conv_features": 32}, TypeError, "sequence"),
    (capjax.MatrixCapsules, {"types": 8}, TypeError, "sequence"),
    (
      capjax.MatrixCapsules,
      {"final_inverse_temperature": "0.1"},
      TypeError,
      "a number",
    ),
    (capjax.MatrixCapsules, {"data_amount": 0.0}, ValueError, "above 0"),
    (_BASELINE, {"conv_features": 4}, TypeError, "sequence"),
    (_BASELINE, {"dense_features": (-4,)}, ValueError, "is -4"),
    (_BASELINE, {"dropout": 2.0}, ValueError, "a probability below 1"),
    (_BASELINE, {"dropout": 1.0}, ValueError, "a probability below 1"),
    (_BASELINE, {"dropout": -0.1}, ValueError, "a probability below 1"),
    (_BASELINE, {"dropout": float("nan")}, ValueError, "a probability"),
    (baselines.ConvVAE, {"features": 4}, TypeError, "sequence"),
    (baselines.ConvVAE, {"features": (4,)}, ValueError, "two numbers"),
    (baselines.ConvVAE, {"pixel_scale": "x"}, TypeError, "a number"),
    (
      amortised.amortised_capsules,
      {"conv_features": 8},
      TypeError,
      "sequence",
    ),
    (amortised.amortised_capsules, {"width": 0}, ValueError, "at least 1"),
    (capjax.GenerativeCapsules, {"temperature": "a"}, TypeError, "a number"),
    (capjax.GenerativeCapsules, {"num_capsules": 3}, TypeError, "sequence"),
    (capjax.CapsuleHM, {"num_capsules": 3}, TypeError, "sequence"),
    (capjax.CapsuleHM, {"num_capsules": ()}, ValueError, "is empty"),
    (capjax.CapsuleHM, {"image_shape": (0, 4)}, ValueError, "at least 1"),
    (_RBM, {"image_shape": (-3, -3)}, ValueError, "is -3; give at least 1"),
    (_RBM, {"image_shape": (28.0, 28)}, TypeError, "is 28.0"),
    (_RBM, {"image_shape": 16}, TypeError, "sequence"),
    (_POINTS, {"num_votes": 0}, ValueError, "at least 1"),
    (_POINTS, {"width": 0}, ValueError, "at least 1"),
    (_POINTS, {"num_blocks": -3}, ValueError, "at least 0"),
    (_POINTS, {"code": "32"}, TypeError, "is '32'"),
    (_SET, {"out_features": 0}, ValueError, "at least 1"),
    (_SET, {"out_features": 3, "hidden": 0}, ValueError, "at least 1"),
    (_SET, {"out_features": 3, "num_blocks": -1}, ValueError, "at least 0"),
    (_TEMPLATES, {"mixing": "x"}, ValueError, "alpha or coupled"),
    (_TEMPLATES, {"nonlinearity": "x"}, ValueError, "sigmoid or relu1"),
    (capjax.SCAE, {"kind": "x"}, ValueError, "affine or similarity"),
    (capjax.SCAE, {"normalise": "x"}, ValueError, "none or votes or all"),
  ],
)
def test_options_are_checked_when_a_model_is_made(make, options, kind, words):
  name = list(options)[-1]
  with pytest.raises(kind, match=f"{name} is .*{words}|{name} {words}"):
    jax.eval_shape(lambda: make(**options, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize(
  "make",
  [
    capjax.GenerativeCapsules,
    functools.partial(_SET, out_features=3),
    functools.partial(layers.Conv, 1, 2, 3),
    functools.partial(layers.GridCaps, 2, 4, 3, 4, 3),
    functools.partial(layers.Linear, 2, 3),
    functools.partial(slots.SlotAttention, 3, num_slots=2, size=4),
    functools.partial(matrix.PrimaryMatrixCaps, 2, 3),
    functools.partial(matrix.ConvMatrixCaps, 2, 3, 3),
    functools.partial(matrix.ClassMatrixCaps, 2, 3, jnp.zeros((1, 1, 16))),
  ],
)
def test_random_streams_are_no_seeds(make):
  with pytest.raises(TypeError, match=r"rngs is of type int; give flax.nnx"):
    make(rngs=0)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.bool_])
def test_convolutions_refuse_whole_numbers(dtype):
  images = jnp.ones((1, 3, 3, 1), dtype)
  for layer in (
    layers.Conv(1, 2, 3, rngs=nnx.Rngs(0)),
    layers.PrimaryCaps(1, 2, 2, 3, rngs=nnx.Rngs(0)),
  ):
    with pytest.raises(TypeError, match="images holds"):
      layer(images)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, jnp.uint8, jnp.int8])
@pytest.mark.parametrize("num_classes", [200, 256, 300])
def test_labels_of_8_bits_mark_one_class_of_many(dtype, num_classes):
  module = np if dtype in (np.uint8, np.int8) else jnp
  labels = module.asarray([3, 0], dtype)
  for given in (labels, [3, 0]):
    marks = np.asarray(losses.one_hot(given, num_classes))
    np.testing.assert_array_equal(marks, np.eye(num_classes)[[3, 0]])
    loss = losses.cross_entropy(jnp.asarray(5 * marks), given)
    want = np.log(np.exp(5) + num_classes - 1) - 5
    np.testing.assert_allclose(loss, np.full(2, want), rtol=1e-5)


def test_lists_of_classes_are_decoded():
  model = capjax.CapsNet(
    (9, 9, 1), 3, conv_features=2, conv_kernel=3, primary_kernel=3, num_types=1,
    part_size=2, pose_size=2, decoder_features=(3,), rngs=nnx.Rngs(0),
  )  # fmt: skip
  poses = jnp.ones((2, 3, 2))
  want = model.decode(poses, jnp.array([1, 2]))
  np.testing.assert_array_equal(model.decode(poses, [1, 2]), want)


@pytest.mark.parametrize("shape", [(2, 1, 1, 1), (2, 6, 6), (0, 6, 6, 1)])
def test_the_program_refuses_images_that_would_be_broadcast(shape):
  capsules = capjax.GenerativeCapsules(
    (6, 6, 1), num_capsules=(2, 2), template_size=3, rngs=nnx.Rngs(0)
  )
  with pytest.raises(ValueError, match="images are"):
    numpyro_programs.model(capsules, jnp.zeros(shape))
  with pytest.raises(TypeError, match="images hold uint8"):
    numpyro_programs.model(capsules, jnp.zeros((2, 6, 6, 1), jnp.uint8))


def _slots(invariant):
  return slot_autoencoder.SlotAutoencoder(
    (8, 8, 1), num_slots=2, slot_size=4, features=4, num_convs=2,
    num_doublings=1, invariant=invariant, rngs=nnx.Rngs(0),
  )  # fmt: skip


def test_slots_are_decoded_with_the_frames_that_they_have():
  images = jnp.full((1, 8, 8, 1), 0.5)
  plain, invariant = map(_slots, (False, True))
  found = invariant(images).slots
  with pytest.raises(ValueError, match="frames are None; give"):
    invariant.decode(found.contents)
  with pytest.raises(ValueError, match="leave out frames"):
    plain.decode(found.contents, found.frames)


@pytest.mark.parametrize(
  "images",
  [
    np.full((1, 8, 8, 1), 200, np.uint8),
    np.full((1, 8, 8, 1), 2.0, np.float32),
    np.zeros((1, 16, 16, 1), np.float32),
  ],
)
def test_slots_are_bound_to_the_images_of_the_call(images):
  with pytest.raises((TypeError, ValueError), match="images"):
    _slots(False).encode(jnp.asarray(images))


@pytest.mark.parametrize(
  ("images", "words"),
  [
    (np.full((2, 4), 255, np.uint8), "images hold uint8"),
    (np.full((2, 4), 255, np.float32), "give intensities"),
    (np.zeros((0, 4), np.float32), "an empty batch"),
  ],
)
def test_units_of_no_intensities_are_refused(images, words):
  with pytest.raises((TypeError, ValueError), match=words):
    units.independent_units("bernoulli", jnp.asarray(images))


def test_families_are_known():
  for call in (
    lambda: units.standard("gausian", (3,)),
    lambda: units.independent_units("gausian", jnp.ones((2, 3))),
  ):
    with pytest.raises(ValueError, match="unknown family 'gausian'"):
      call()


def test_a_list_is_no_name_of_an_option():
  def capsnet(**options):
    return capjax.CapsNet((28, 28, 1), 10, rngs=nnx.Rngs(0), **options)

  for call, words in (
    (lambda: units.standard(["binary"], (3,)), "unknown family"),
    (lambda: capsnet(routing=["dynamic"]), "routing .* is unknown"),
    (lambda: capsnet(conv_competition=["none"]), "conv_competition"),
  ):
    with pytest.raises(ValueError, match=words):
      call()


def _machine(num_capsules=(3, 2)):
  return capjax.CapsuleHM(
    (4, 3), num_capsules=num_capsules, capsule_size=2, rngs=nnx.Rngs(0)
  )


@pytest.mark.parametrize("value", [255.0, -1.0])
def test_a_machine_samples_upwards_from_intensities(value):
  images = jnp.full((2, 4, 3), value)
  for call in (
    lambda: _machine().infer(images),
    lambda: _machine().sample_upwards(jax.random.key(0), images),
  ):
    with pytest.raises(ValueError, match="give intensities"):
      call()


@pytest.mark.parametrize(
  "sizes", [((4, 3), 4, 2), ((4, 4), 3, 2), ((4, 3), 2, 3)]
)
def test_machines_of_other_sizes_change_nothing(sizes):
  *first, capsule_size = sizes
  model = _machine()
  before = jax.tree.map(jnp.copy, nnx.state(model))
  machines = [
    capjax.CapsuleRBM(
      shape, num_capsules=count, capsule_size=capsule_size, rngs=nnx.Rngs(1)
    )
    for shape, count in (first, ((3, 2), 2))
  ]
  with pytest.raises(ValueError, match="machine 0"):
    wake_sleep.start_from(model, machines)
  for old, new in zip(
    jax.tree.leaves(before), jax.tree.leaves(nnx.state(model)), strict=True
  ):
    np.testing.assert_array_equal(old, new)


def test_capsules_between_bfloat16_convolutions_are_in_float32():
  model = capjax.MatrixCapsules(
    (14, 14, 1), 2, features=2, types=(2, 2, 2), num_iterations=1,
    padding="SAME", coordinates="none", dtype=jnp.bfloat16, rngs=nnx.Rngs(0),
  )  # fmt: skip
  found = model.capsules(jnp.zeros((1, 14, 14, 1)))
  kinds = {x.dtype for layer in found for x in layer if x is not None}
  assert kinds == {jnp.dtype("float32")}


@pytest.mark.parametrize(
  ("tokens", "presence"),
  [((2, 5, 4), (2, 5)), ((2, 5, 3), (2, 1)), ((5, 3), (5,))],
)
def test_members_of_sets_are_not_broadcast(tokens, presence):
  model = _SET(out_features=3, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match="tokens|presence"):
    model(jnp.ones(tokens), jnp.ones(presence))


def test_sets_hold_no_more_labels_than_classes():
  with pytest.raises(ValueError, match=r"labels are \[2, 3\], of 2 classes"):
    losses.exact_set(jnp.ones((2, 2)), jnp.zeros((2, 3), jnp.int32))


def test_chains_are_those_of_the_model():
  one, other = (
    _RBM(image_shape=(4, 3), num_chains=count, rngs=nnx.Rngs(0))
    for count in (4, 5)
  )
  one.set_chains(one.fantasy.get_value())
  with pytest.raises(ValueError, match="give those of a loss of this model"):
    one.set_chains(other.fantasy.get_value())


def test_images_are_as_many_as_examples_of_layers():
  capsules = capjax.GenerativeCapsules(
    (6, 6, 1), num_capsules=(2, 2), template_size=3, rngs=nnx.Rngs(0)
  )
  layers_ = [
    selection.Capsules(jnp.zeros((4, 2)), jnp.zeros((4, 2, 6)))
    for _ in range(2)
  ]
  assert capsules.log_joint(layers_, jnp.zeros((4, 6, 6, 1))).shape == (4,)
  with pytest.raises(ValueError, match=r"images is \[1 6 6 1\]; give \[4 6"):
    capsules.log_joint(layers_, jnp.zeros((1, 6, 6, 1)))


@pytest.mark.parametrize(
  ("members", "presence"),
  [((2, 5, 3), (2, 5)), ((5, 4), (5,)), ((2, 5, 4), (2, 1))],
)
def test_members_of_slots_are_not_broadcast(members, presence):
  layer = slots.SlotAttention(4, num_slots=2, size=4, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match="(members|presence) is .*; give .B I"):
    layer(jnp.ones(members), jnp.ones(presence))


@pytest.mark.parametrize(
  ("options", "kind", "words"),
  [
    ({"padding": "same"}, ValueError, "padding is 'same'; give 'VALID' or"),
    ({"routing_gradient": "al"}, ValueError, "gradient.*al"),
    ({"stride": 0}, ValueError, "stride is 0; give at least 1"),
    ({"form": "paper"}, TypeError, "form is 'paper'; give None or a form"),
    ({"start": "identity"}, TypeError, "start is 'identity'; give one of"),
    ({"inverse_temperatures": ()}, ValueError, "inverse_temperatures is empty"),
    (
      {"inverse_temperatures": (0.1, 0.0)},
      ValueError,
      "last_inverse_t.*0.0",
    ),
    ({"pose_shape": 4}, TypeError, "pose_shape is 4; give a sequence"),
    ({"pose_shape": (4, 4, 1)}, ValueError, "pose_shape is .*; give rows and"),
  ],
)
def test_options_of_layers_of_matrix_capsules(options, kind, words):
  with pytest.raises(kind, match=words):
    matrix.ConvMatrixCaps(2, 3, 3, **options, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
  ("poses", "activations"),
  [
    ((2, 3, 4, 3, 4, 4), (2, 3, 4, 3)),
    ((2, 3, 4, 2, 4, 3), (2, 3, 4, 2)),
    ((2, 3, 4, 2, 4, 4), (2, 3, 1, 2)),
  ],
)
def test_other_poses_are_told_from_the_transforms(poses, activations):
  layer = matrix.ConvMatrixCaps(2, 3, 2, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match="(poses|activations) is .*; give .B H"):
    layer(jnp.ones(poses), jnp.ones(activations))


def test_a_batch_of_symbolic_size_is_told_how_to_be_exported():
  model = capjax.MatrixCapsules(
    (15, 15, 1), 2, features=2, types=(1, 1, 1), padding="SAME",
    rngs=nnx.Rngs(0),
  )  # fmt: skip
  (batch,) = jax.export.symbolic_shape("B")
  images = jax.ShapeDtypeStruct((batch, 15, 15, 1), jnp.float32)
  with pytest.raises(ValueError, match="symbolic size; export jax.vmap"):
    jax.eval_shape(model, images)


def test_classes_of_an_image_differ():
  for labels in ([[0, 1], [1, 1]], [[0, 1, 0], [1, 0, 0]]):
    with pytest.raises(ValueError, match="labels of image .*; give different"):
      autoencoder.loss(None, None, labels, None)


_OUTSIDE = {
  "matrix capsules": lambda x: matrix.ConvMatrixCaps(2, 3, 2, rngs=nnx.Rngs(0))(
    jnp.ones((1, 2, 2, 2, 4, 4)), jnp.full((1, 2, 2, 2), x)
  ),
  "classes": lambda x: matrix.ClassMatrixCaps(
    2, 3, np.zeros((1, 1, 16), np.float32), rngs=nnx.Rngs(0)
  )(jnp.ones((1, 1, 1, 2, 4, 4)), jnp.full((1, 1, 1, 2), x)),
  "slots": lambda x: slots.SlotAttention(
    4, num_slots=2, size=4, rngs=nnx.Rngs(0)
  )(jnp.ones((1, 3, 4)), jnp.full((1, 3), x)),
  "sets": lambda x: _SET(out_features=3, rngs=nnx.Rngs(0))(
    jnp.ones((1, 2, 3)), jnp.full((1, 2), x)
  ),
  "constellations": lambda x: _POINTS(num_objects=2, rngs=nnx.Rngs(0))(
    jnp.zeros((1, 3, 2)), jnp.full((1, 3), x)
  ),
}


@pytest.mark.parametrize("name", _OUTSIDE)
def test_layers_refuse_probabilities_out_of_range(name):
  _OUTSIDE[name](1.0)
  with pytest.raises(ValueError, match="has values from 2 to 2; give numbers"):
    _OUTSIDE[name](2.0)


def test_lists_are_read_or_refused_in_a_sentence():
  model = capjax.CapsNet(
    (8, 8, 1), 3, conv_features=2, conv_kernel=3, num_types=1, primary_kernel=3,
    rngs=nnx.Rngs(0),
  )  # fmt: skip
  images = jnp.full((2, 8, 8, 1), 0.5)
  loss = functools.partial(losses.capsnet_loss, reconstruction_weight=0.1)
  of_list, _ = loss(model, images, [1, 2])
  np.testing.assert_array_equal(
    of_list, loss(model, images, jnp.int32([1, 2]))[0]
  )
  with pytest.raises(TypeError, match="images is a list; give an array"):
    loss(model, images.tolist(), [1, 2])
  with pytest.raises(TypeError, match="capjax.data.as_intensities.images"):
    loss(model, images.astype(jnp.uint8), [1, 2])
  with pytest.raises(TypeError, match="images is a list; give an array"):
    capjax.data.as_intensities([[1]])


@pytest.mark.parametrize("margin", [-0.1, 1.5, float("nan")])
def test_margins_are_in_the_range_of_activations(margin):
  with pytest.raises(ValueError, match="margin is .*; give a number from 0 to"):
    losses.spread_loss(jnp.full((2, 3), 0.5), jnp.zeros(2, int), margin=margin)


@pytest.mark.parametrize(
  ("changed", "words"),
  [
    ({"poses": (2, 3, 3, 3)}, "parts.poses is .2 3 3 3.; give .B M 3 3. = .2 "),
    ({"presence": (2,)}, "parts.presence is .2.; give .B M."),
    ({"features": (2, 2, 4)}, "parts.features is .2 2 4.; give .B M F. = .2 2"),
  ],
)
@pytest.mark.parametrize("name", ["render", "explain", "log_prob"])
def test_parts_fit_their_templates(name, changed, words):
  decoder = _TEMPLATES(size=4, num_features=3, rngs=nnx.Rngs(0))
  shapes = {"poses": (2, 2, 3, 3), "presence": (2, 2), "features": (2, 2, 3)}
  made = parts.Parts(**{n: jnp.ones(x) for n, x in (shapes | changed).items()})
  images = () if name == "render" else (jnp.ones((2, 9, 8, 1)),)
  with pytest.raises(ValueError, match=words):
    getattr(decoder, name)(*images, made)


def test_activations_are_of_the_same_examples_as_poses():
  layer = layers.DenseCaps(6, 3, 2, 4, routing="em", rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match="activations is .3 6.; give .2 6."):
    layer(jnp.ones((2, 6, 3)), jnp.ones((3, 6)))


@pytest.mark.parametrize("routing", ["inverted_attention", "heinsen_vectors"])
def test_poses_of_one_number_have_no_layer_norm(routing):
  with pytest.raises(ValueError, match="poses of 1 number, and the layer norm"):
    layers.DenseCaps(6, 3, 2, 1, routing=routing, rngs=nnx.Rngs(0))


def test_capsules_to_draw_fit_their_model():
  model = capjax.TransformingAutoencoder(
    (4, 4, 1), num_capsules=2, rngs=nnx.Rngs(0)
  )
  poses, presences = jnp.ones((3, 2, 2)), jnp.ones((3, 2))
  with pytest.raises(
    ValueError, match=r"poses are \[3, 1, 2\]; give .B, .pose"
  ):
    model.generate(poses[:, :1], presences)
  with pytest.raises(ValueError, match="presences is .3 1.; give .3 2."):
    model.generate(poses, presences[:, :1])
  with pytest.raises(ValueError, match=r"with \[2, 2\] after the batch"):
    model.move(jnp.ones((3, 2, 3, 3)), jnp.ones((3, 2)))


def test_images_to_predict_are_an_array():
  trained = capjax.pretrained.load("digits")
  with pytest.raises(ValueError, match="images is a Dataset; give its images"):
    trained.predict(capjax.data.load("digits", "test"))
  unequal = [np.zeros((8, 8), np.uint8), np.zeros((9, 8), np.uint8)]
  with pytest.raises(ValueError, match="images differ in shape; give"):
    trained.predict(unequal)
