"""A call's kind has no name in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.engine.kinds import OTHER, kind_of_call


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        pytest.param("GET", "/info", "GET /info", id="about the engine"),
        pytest.param("GET", "/system/df", "GET /system/df", id="two words"),
        pytest.param("GET", "/containers/json", "GET /containers/json", id="the list of containers"),
        pytest.param("POST", "/containers/create", "POST /containers/create", id="a new container"),
        pytest.param("GET", f"/containers/{'a' * 64}/json", "GET /containers/{id}/json", id="one container"),
        pytest.param("GET", "/containers/k8s_POD_a_b_c_0/json", "GET /containers/{id}/json", id="one by its name"),
        pytest.param("DELETE", "/containers/abc", "DELETE /containers/{id}", id="a container that goes"),
        pytest.param("POST", "/containers/abc/exec", "POST /containers/{id}/exec", id="a command in it"),
        pytest.param("POST", "/exec/abc/start", "POST /exec/{id}/start", id="its start"),
        pytest.param("GET", "/images/json", "GET /images/json", id="the list of images"),
        pytest.param("GET", "/images/a.b/c/d:1/json", "GET /images/{name}/json", id="an image with slashes"),
        pytest.param("GET", "/images/json/json", "GET /images/{name}/json", id="an image that is called json"),
        pytest.param("DELETE", "/images/a.b/json", "DELETE /images/{name}", id="an image that goes"),
        pytest.param("GET", "/new/thing", OTHER, id="not known here"),
        pytest.param("GET", "", OTHER, id="nothing"),
    ],
)
def test_kind(method: str, path: str, kind: str) -> None:
    assert kind_of_call(method, path) == kind


@given(st.lists(st.sampled_from(["containers", "images", "exec", "json", "abc", "start", "x" * 64, ""]), max_size=6))
def test_no_path_brings_its_names_along(parts: list[str]) -> None:
    kind = kind_of_call("GET", "/" + "/".join(parts))
    assert "abc" not in kind
    assert "xx" not in kind
