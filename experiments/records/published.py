"""Results that papers report, for the runs that are recorded here."""

import shlex

ERROR = "test_error_percent"
# Flags that a run of a preset may have and still count as one of this preset.
NOT_OF_PRESETS = ("seed", "workdir", "data_dir", "compilation_cache")
# Errors in percent (Sabour et al., 2017, tables 1 and section 6; Mazzia et al.,
# 2021): of CapsNet by number of iterations and whether it reconstructs.
_PAPER = {
  ("train_capsnet", "capsnet", 1, False): 0.34,
  ("train_capsnet", "capsnet", 1, True): 0.29,
  ("train_capsnet", "capsnet", 3, False): 0.35,
  ("train_capsnet", "capsnet", 3, True): 0.25,
  ("train_capsnet", "baseline"): 0.39,
  ("train_capsnet", "efficient"): 0.26,
  ("train_multimnist", "capsnet", 1, True): 7.5,
  ("train_multimnist", "capsnet", 3, True): 5.2,
  ("train_multimnist", "baseline"): 8.1,
}
# Numbers of parameters by which the networks in those tables are recognised;
# for CapsNet on MNIST with and without a decoder.
_PAPER_SIZES = {
  ("train_capsnet", "capsnet"): (8_215_728, 6_804_384),
  ("train_capsnet", "baseline"): (35_445_522,),
  ("train_capsnet", "efficient"): (1_573_168,),
  ("train_multimnist", "capsnet"): (11_361_968,),
  ("train_multimnist", "baseline"): (24_563_978,),
}
# Main measures of other papers, by preset, for runs without other flags.
_PAPER_PRESETS = {
  **dict.fromkeys(("boltzmann_mnist", "boltzmann_mnist_paper"), 0.07),
  **dict.fromkeys(("helmholtz_mnist", "helmholtz_mnist_slow"), 0.058),
  "helmholtz_fashion": 0.152,
  "scae_mnist_paper": 98.7,
  "scae_cifar10": 25.0,
  "scae_svhn": 55.3,
  "smallnorb_paper": 1.8,
}
# Accuracy without labels in percent (Kosiorek et al., 2019, abstract): of the
# whole model, by the paper's protocol and length.
ABLATIONS = {"full": 98.7}


def changes(command: str) -> list[str]:
  """The words of a command that change the run of its preset."""
  free = {f"--{name}" for name in (*NOT_OF_PRESETS, "flagfile")}
  words = [word for word in shlex.split(command) if word.startswith("--")]
  return [word for word in words if word.partition("=")[0] not in free]


def figure(record: dict, metric: str) -> str:
  """The value that a paper reports for the same network and data, if any."""
  if metric == ERROR and (error := _published_error(record)) is not None:
    return f"{error:g}"
  known = _PAPER_PRESETS.get(record["preset"])
  changed = changes(record["command"])
  return "-" if changed or known is None else f"{known:g}"


def _published_error(record):
  flag = record["flags"].get
  if record["dataset"] != "mnist" or flag("canvas") or flag("start_from"):
    return None
  key = record["experiment"], flag("model")
  if record["num_parameters"] not in _PAPER_SIZES.get(key, ()):
    return None
  if flag("model") == "capsnet":
    # Other routings can have the same number of parameters.
    if flag("routing", "dynamic") != "dynamic" or flag("leaky"):
      return None
    key += flag("num_iterations") or 3, flag("reconstruction") != "none"
  return _PAPER.get(key)
