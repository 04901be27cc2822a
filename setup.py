"""Puts the folders beside `capjax` into the wheel, as its subpackages.

All other settings are in setup.cfg.
"""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

_BESIDE = ("kernels", "experiments")
# Modules that stand for these packages in a checkout.
_LEFT_OUT = {*_BESIDE, "_checkout"}


class _Build(build_py):
  def find_package_modules(self, package, package_dir):
    modules = super().find_package_modules(package, package_dir)
    if package != "capjax":
      return modules
    return [module for module in modules if module[1] not in _LEFT_OUT]


setup(
  packages=[
    *find_packages(include=["capjax", "capjax.*"]),
    *(
      f"capjax.{name}"
      for folder in _BESIDE
      for name in find_packages(include=[folder, f"{folder}.*"])
    ),
  ],
  package_dir={f"capjax.{folder}": folder for folder in _BESIDE},
  cmdclass={"build_py": _Build},
)
