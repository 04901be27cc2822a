"""The main part of every training binary: train, restore the best, evaluate.

Flags are turned into arguments by the binaries and here; `training`, `tasks`,
`evaluation` and `figures` do not read flags.
"""

import pathlib
from collections.abc import Callable

import jax

from capjax import data, pretrained
from capjax import saved as saved_models
from capjax.saved import TrainedModel

from .evaluation import models, suites
from .figures import grids
from .flags import lengths, limits, runs
from .run import directory, provenance
from .training import banner, cards, loop, memory, train_step
from .training import task as tasks
from .training.loop import LoopConfig


def fit(
  task: tasks.Task,
  run: directory.Run,
  train_set: data.Dataset,
  validation: data.Dataset,
  config: LoopConfig,
  *,
  source: TrainedModel | None = None,
) -> tuple[int, float]:
  """Trains for a task in a folder that is locked, or resumes there.

  Args:
    task: the task to train for.
    run: the run that gets checkpoints, metrics and their plot.
    train_set: the training examples.
    validation: the examples by which the checkpoint is chosen; may be empty.
    config: the configuration of training.
    source: a model whose weights a new run starts from, where they fit.

  Returns:
    The number of updates and the seconds spent, summed over resumed processes.
  """
  mesh = train_step.data_mesh(config.batch_size)
  model = tasks.make_model(task, train_set, config.seed)
  earlier = task.begin(model, train_set, validation) or 0.0
  if source is not None:
    copied, new = saved_models.start_from(model, source)
    print(
      f"{len(copied)} weights start from {runs.START_FROM.value}; new: "
      f"{', '.join(new) or 'none'}",
      flush=True,
    )
  decay = config.average_decay
  state = train_step.init(
    model, task.optimizer, jax.random.key(config.seed), average=bool(decay)
  )
  saved = tasks.saved_by(run, task, config)
  step, seconds = loop.fit(
    run,
    saved,
    state,
    update=train_step.make_update(
      task.loss,
      task.optimizer,
      sample=task.sample,
      batch_size=config.batch_size,
      mesh=mesh,
      average_decay=decay,
    ),
    evaluate=tasks.make_evaluate(
      task.measure, task.sample_test, config.batch_size
    ),
    train=train_set,
    validation=validation,
    mesh=mesh,
    config=config,
    summarise=tasks.summarise,
    diverged=task.diverged,
    restart=task.restart,
    warn=task.warn,
  )
  lines = run.metrics()
  if lines:  # without lines the file was lost, which resuming warns about
    grids.learning_curves(
      lines,
      run.figure("learning_curves"),
      reported=saved.best_step(),
      chosen_by=None if tasks.reports_last(task, config) else task.chosen_by,
    )
  return step, earlier + seconds


def restore(
  run: directory.Run, task: tasks.Task, test: data.Dataset
) -> models.Trained:
  """The trained model of a run, with the data that the flags name."""
  return models.restore(
    run,
    task,
    runs.loop_config(),
    test,
    load_train=lambda: runs.load("train"),
    data_dir=runs.DATA_DIR.value,
  )


def _source(
  run: directory.Run, task: tasks.Task, dataset: data.Dataset
) -> TrainedModel | None:
  """The model of --start_from; None without it, or where the run resumes.

  Raises:
    FileNotFoundError: if there is no such model.
    ValueError: if it cannot be read, or none of its weights fit.
  """
  if not runs.START_FROM.value:
    return None
  if (run.workdir / "checkpoints").exists():
    if tasks.saved_by(run, task, runs.loop_config()).has_state():
      return None
  trained = pretrained.load_any(runs.START_FROM.value)
  spec = task.describe(dataset.images.shape[1:], dataset.num_classes)
  saved_models.fitting(spec.shapes(), trained)  # fails now if nothing fits
  return trained


def train(make_task: Callable[[], tasks.Task]) -> None:
  """Trains for a task, or resumes, as the flags say; writes the run's files.

  Args:
    make_task: `() -> task` of the flags. A ValueError that it raises ends the
      program with its message.
  """
  with runs.clear_errors(), runs.naming_the_default():
    runs.configure()
    task = make_task()
    config = runs.loop_config()
    if config.num_validation == 0:
      runs.refuse("--num_validation=0", ["stop_accuracy"])
    train_set = runs.load("train")
    test = runs.load("test")  # fails now if it is missing, not after training
    if train_set.is_multi_hot and not task.multi_hot:
      raise ValueError(
        f"{runs.DATASET.value}: images belong to several classes at once, "
        "which only train_capsnet takes, without --routing=self; give one "
        "label for each image"
      )
    records = {
      "data": tasks.data_record(train_set, test),
      "model": tasks.model_record(task, train_set),
    }
    if task.split:
      train_set, validation = task.split(train_set, test)
      loop.require_a_batch(len(train_set.images), config.batch_size)
    else:
      train_set, validation = loop.split_validation(
        train_set, config.num_validation, config.batch_size
      )
    run = runs.open_run(runs.WORKDIR.value)
    source = _source(run, task, train_set)
    memory.check(task, train_set, config, remedy=limits.flags_of_size)
    run.lock(runs.invocation())
    if run.lengthened_from:
      print(
        f"lengthened from {run.lengthened_from[-1]:,} to {config.num_steps:,} "
        f"steps{lengths.remark()}",
        flush=True,
      )
    for name, record in records.items():
      run.note(name, record)
    spec = task.describe(train_set.images.shape[1:], train_set.num_classes)
    told = banner.lines(
      device=provenance.device(),
      model=spec.shapes(),
      name=spec.maker.__name__,
      dataset=runs.DATASET.value,
      train=train_set,
      validation=validation,
      test=test,
      config=config,
    )
    told += [f"data: {note}" for note in train_set.notes]
    print("\n".join(told), flush=True)
    if source is not None:
      run.note(
        "start_from",
        {
          "name": pathlib.Path(runs.START_FROM.value).name,
          "sha256": source.card["sha256"],
        },
      )
    step, seconds = fit(task, run, train_set, validation, config, source=source)
    trained = restore(run, task, test)
    reported = (
      "the last"
      if tasks.reports_last(task, config)
      else f"chosen on validation by {task.chosen_by}"
    )
    if config.average_decay:
      reported += ", averaged weights"
    metrics, num_images = {}, {}
    for name in task.after_training:
      if name in suites.fitting(trained):
        scores = suites.SUITES[name](run, trained, models.Options())
        num_images |= models.images_of(trained, scores)
        metrics |= {x: y for x, y in scores.items() if x != "num_images"}
    run.write_summary(
      {
        "num_parameters": train_step.num_parameters(trained.model),
        "num_steps": step,
        "restarts": sum(x["split"] == "restart" for x in run.metrics()),
        "reported": reported,
        **records,
        "metrics": metrics,
        "num_images": num_images,
        "seconds": seconds,
        "images_per_second": run.images_per_second(),
        **run.noted("start_from"),
      }
    )
    cards.write(run, task, trained.model, test)
  if "test_accuracy" in metrics:
    print(
      f"test accuracy {metrics['test_accuracy']:.2%} on "
      f"{len(trained.test.labels)} images (checkpoint of step {trained.step}, "
      f"{reported})"
    )
  else:
    for name in filter(lambda name: name.startswith("test_"), metrics):
      print(f"{name.replace('_', ' ')} {metrics[name]:.4g}")
  print(f"figures are in {run.workdir / 'figures'}")
