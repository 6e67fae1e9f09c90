"""The packages for rpm, installed by rpm into a Debian that has their Python."""
