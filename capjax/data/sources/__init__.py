"""Readers of each data set's own files; a module for each format."""
