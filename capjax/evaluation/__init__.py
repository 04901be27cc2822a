"""How models behave on other images than those they were trained on."""

from capjax.evaluation import attacks, diagnostics, views

__all__ = ["attacks", "diagnostics", "views"]
