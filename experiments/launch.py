"""The main part of every training binary: train, restore the best, evaluate."""

import jax

from capjax import data
from experiments.evaluation import suites
from experiments.figures import grids
from experiments.run import directory
from experiments.training import loop, memory, train_step
from experiments.training import task as tasks


def fit(
  task: tasks.Task,
  run: directory.Run,
  train_set: data.Dataset,
  validation: data.Dataset,
  *,
  num_steps: int,
) -> tuple[int, float]:
  """Trains for a task in a folder that was claimed, or goes on with it.

  Args:
    task: what to train.
    run: where checkpoints and metrics go; a drawing of them too.
    train_set: to draw batches from.
    validation: to choose the checkpoint by; may be empty.
    num_steps: updates.

  Returns:
    Updates done and seconds spent, in all sittings.
  """
  mesh = train_step.data_mesh(directory.BATCH_SIZE.value)
  optimizer = task.make_optimizer()
  model = tasks.make_model(task, train_set)
  earlier = task.begin(model, train_set, validation) or 0.0
  decay = directory.AVERAGE_DECAY.value
  state = train_step.init(
    model, optimizer, jax.random.key(directory.SEED.value), average=bool(decay)
  )
  saved = tasks.saved_by(run, task)
  step, seconds = loop.fit(
    run,
    saved,
    state,
    update=train_step.make_update(
      task.loss,
      optimizer,
      draw=task.draw,
      batch_size=directory.BATCH_SIZE.value,
      mesh=mesh,
      average_decay=decay,
    ),
    evaluate=tasks.make_evaluate(task.measure, task.draw_test),
    train=train_set,
    validation=validation,
    mesh=mesh,
    num_steps=num_steps,
    summarise=tasks.summarise,
    diverged=task.diverged,
    restart=task.restart,
    warn=task.warn,
  )
  lines = run.metrics()
  if lines:  # or else the file was lost, which is said when training resumes
    grids.learning_curves(
      lines, run.figure("learning_curves"), reported=saved.best_step()
    )
  return step, earlier + seconds


def train(task: tasks.Task) -> None:
  """Trains for a task, or goes on with it, and writes all that a run writes."""
  with directory.clear_errors():
    directory.configure()
    if directory.NUM_VALIDATION.value == 0:
      directory.refuse("--num_validation=0", ["stop_accuracy"])
    train_set = tasks.load_train()
    test = tasks.load_test()  # what is missing is said now, not after training
    records = {
      "data": tasks.data_record(train_set, test),
      "model": tasks.model_record(task, train_set),
    }
    if task.split:
      train_set, validation = task.split(train_set, test)
    else:
      train_set, validation = loop.split_validation(
        train_set, directory.NUM_VALIDATION.value, directory.BATCH_SIZE.value
      )
    run = directory.Run(directory.WORKDIR.value)
    memory.check(task, train_set)
    run.claim()
    for name, record in records.items():
      run.note(name, record)
    step, seconds = fit(
      task, run, train_set, validation, num_steps=directory.NUM_STEPS.value
    )
    trained = tasks.restore(run, task)
    reported = (
      "the last"
      if tasks.reports_last(task)
      else f"chosen on validation by {task.chosen_by}"
    )
    if directory.AVERAGE_DECAY.value:
      reported += ", averaged weights"
    metrics, num_images = {}, {}
    for name in task.after_training:
      if name in task.suites(trained.model):
        scores = suites.SUITES[name](run, trained, tasks.Options())
        num_images |= tasks.images_of(trained, scores)
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
      }
    )
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
