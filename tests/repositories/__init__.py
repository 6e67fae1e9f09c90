"""A release as `make release` makes it, with a key of the test's own: its repositories are used, and attacked."""
