"""Fuzz targets, each with the corpus that it starts from; the unit tests run every file of it too."""
