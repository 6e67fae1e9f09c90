"""The tests of a cluster run in a test node; see __main__.py, which builds what they need."""

from __future__ import annotations

import os

import pytest

from tests.kubeadm.cluster import IMAGES, PROGRAMS, VERSION

if os.environ.get("TEST_NODE") != "1" or not {IMAGES, PROGRAMS, VERSION} <= os.environ.keys():
    pytest.exit("tests/kubeadm runs by: make kubeadm ENGINE=20 (or 28, 29, 29-overlay2)", returncode=2)
