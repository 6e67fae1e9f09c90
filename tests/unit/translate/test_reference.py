from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockershim.errors import InvalidArgument
from dockershim.translate.reference import Reference, lookup_name, may_be_id, parse_reference, quoted

SHA = "sha256:" + "0123456789abcdef" * 4
SHA512 = "sha512:" + "0123456789abcdef" * 8


@pytest.mark.parametrize(
    ("text", "expected", "familiar", "lookup"),
    [
        pytest.param(
            "nginx",
            Reference("docker.io", "library/nginx"),
            "nginx:latest",
            "docker.io/library/nginx:latest",
            id="official-image",
        ),
        pytest.param(
            "nginx:1.27",
            Reference("docker.io", "library/nginx", "1.27"),
            "nginx:1.27",
            "docker.io/library/nginx:1.27",
            id="official-image-with-tag",
        ),
        pytest.param(
            "docker.io/nginx",
            Reference("docker.io", "library/nginx"),
            "nginx:latest",
            "docker.io/library/nginx:latest",
            id="domain-without-library",
        ),
        pytest.param(
            "index.docker.io/library/nginx",
            Reference("docker.io", "library/nginx"),
            "nginx:latest",
            "docker.io/library/nginx:latest",
            id="legacy-domain",
        ),
        pytest.param(
            "user/app:v1",
            Reference("docker.io", "user/app", "v1"),
            "user/app:v1",
            "docker.io/user/app:v1",
            id="image-of-a-hub-user",
        ),
        pytest.param(
            "library/a/b",
            Reference("docker.io", "library/a/b"),
            "library/a/b:latest",
            "docker.io/library/a/b:latest",
            id="library-is-left-out-for-one-part-only",
        ),
        pytest.param(
            "registry.k8s.io/pause:3.9",
            Reference("registry.k8s.io", "pause", "3.9"),
            "registry.k8s.io/pause:3.9",
            "registry.k8s.io/pause:3.9",
            id="other-registry",
        ),
        pytest.param(
            "localhost/app",
            Reference("localhost", "app"),
            "localhost/app:latest",
            "localhost/app:latest",
            id="localhost-is-a-registry",
        ),
        pytest.param(
            "host:5000/app",
            Reference("host:5000", "app"),
            "host:5000/app:latest",
            "host:5000/app:latest",
            id="port-is-not-a-tag",
        ),
        pytest.param(
            "host:5000",
            Reference("docker.io", "library/host", "5000"),
            "host:5000",
            "docker.io/library/host:5000",
            id="without-a-slash-it-is-a-tag",
        ),
        pytest.param(
            "HOST/app",
            Reference("HOST", "app"),
            "HOST/app:latest",
            "HOST/app:latest",
            id="upper-case-first-part-is-a-registry",
        ),
        pytest.param(
            "[fd00::1]:5000/team/app:v1",
            Reference("[fd00::1]:5000", "team/app", "v1"),
            "[fd00::1]:5000/team/app:v1",
            "[fd00::1]:5000/team/app:v1",
            id="ipv6-with-port",
        ),
        pytest.param(
            "[::1]/app",
            Reference("[::1]", "app"),
            "[::1]/app:latest",
            "[::1]/app:latest",
            id="ipv6-without-port",
        ),
        pytest.param(
            f"nginx@{SHA}",
            Reference("docker.io", "library/nginx", "", SHA),
            f"nginx@{SHA}",
            f"docker.io/library/nginx@{SHA}",
            id="digest",
        ),
        pytest.param(
            f"gcr.io/a/b:v1@{SHA}",
            Reference("gcr.io", "a/b", "v1", SHA),
            f"gcr.io/a/b:v1@{SHA}",
            f"gcr.io/a/b@{SHA}",
            id="digest-decides-over-tag",
        ),
        pytest.param(
            f"gcr.io/a/b@{SHA512}",
            Reference("gcr.io", "a/b", "", SHA512),
            f"gcr.io/a/b@{SHA512}",
            f"gcr.io/a/b@{SHA512}",
            id="sha512",
        ),
        pytest.param(
            "user/a.b_c__d---e",
            Reference("docker.io", "user/a.b_c__d---e"),
            "user/a.b_c__d---e:latest",
            "docker.io/user/a.b_c__d---e:latest",
            id="every-separator",
        ),
    ],
)
def test_references_are_taken_apart(text: str, expected: Reference, familiar: str, lookup: str) -> None:
    reference = parse_reference(text)
    assert reference == expected
    assert reference.familiar == familiar
    assert reference.lookup == lookup


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(" nginx", id="white-space"),
        pytest.param("nginx\n", id="line-end"),
        pytest.param("Nginx", id="upper-case"),
        pytest.param("gcr.io/Team/app", id="upper-case-in-a-repository"),
        pytest.param("nginx:", id="empty-tag"),
        pytest.param("nginx:-a", id="tag-begins-with-a-dash"),
        pytest.param("nginx:" + "a" * 129, id="tag-too-long"),
        pytest.param("nginx@", id="empty-digest"),
        pytest.param("nginx@sha256:abc", id="short-digest"),
        pytest.param("nginx@" + SHA.upper(), id="upper-case-digest"),
        pytest.param("nginx@md5:" + "0" * 32, id="unknown-algorithm"),
        pytest.param(f"nginx@{SHA}:v1", id="tag-after-digest"),
        pytest.param("a//b", id="empty-part"),
        pytest.param("/nginx", id="empty-first-part"),
        pytest.param("nginx/", id="empty-last-part"),
        pytest.param("gcr.io/", id="registry-alone"),
        pytest.param("../nginx", id="folder-above"),
        pytest.param("gcr.io/../nginx", id="folder-above-within"),
        pytest.param("user/a___b", id="three-underscores"),
        pytest.param("https://gcr.io/nginx", id="a-url"),
        pytest.param("-gcr.io/nginx", id="registry-begins-with-a-dash"),
        pytest.param("host:port/app", id="port-not-a-number"),
        pytest.param("[::1/app", id="bracket-not-closed"),
        pytest.param("ä/app", id="not-ascii"),
        pytest.param("0" * 64, id="an-image-id"),
        pytest.param("a" * 256, id="too-long"),
        pytest.param("app?x=1", id="a-query"),
        pytest.param("app%2f", id="an-escape"),
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="image reference"):
        parse_reference(text)


def test_the_longest_name_is_accepted() -> None:
    name = "gcr.io/" + "a" * (255 - len("gcr.io/"))
    assert parse_reference(name).name == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(SHA, SHA, id="id"),
        pytest.param("0" * 64, "0" * 64, id="bare-id"),
        pytest.param("sha256:0123", "sha256:0123", id="short-id-with-algorithm"),
        pytest.param("cafe", "cafe", id="short-id-or-name-is-left-to-the-engine"),
        pytest.param("nginx", "docker.io/library/nginx:latest", id="name"),
        pytest.param(f"nginx:1@{SHA}", f"docker.io/library/nginx@{SHA}", id="digest"),
    ],
)
def test_an_engine_is_asked_by_id_or_whole_name(text: str, expected: str) -> None:
    assert lookup_name(text) == expected


# No dots: the familiar form of docker.io/a.b/c reads as an image of the registry a.b, in every engine.
labels = st.from_regex(r"[a-z0-9]+(?:[_-][a-z0-9]+)?", fullmatch=True)
references = st.builds(
    Reference,
    domain=st.sampled_from(["docker.io", "gcr.io", "localhost", "localhost:5000", "[::1]:443", "a-b.example"]),
    path=st.lists(labels, min_size=2, max_size=4).map("/".join).filter(lambda path: len(path) < 200),
    tag=st.just("") | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,40}", fullmatch=True),
    digest=st.sampled_from(["", SHA, SHA512]),
)


@given(references)
def test_both_spellings_are_read_back_as_the_same_image(reference: Reference) -> None:
    whole = parse_reference(reference.normalized)
    assert (whole.name, whole.digest, whole.version) == (reference.name, reference.digest, reference.version)
    assert parse_reference(reference.familiar) == whole
    assert parse_reference(reference.lookup).lookup == reference.lookup


@given(st.text() | st.text("abcXYZ019:/@.-_[]%", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidArgument:
        return
    assert parse_reference(reference.normalized).lookup == reference.lookup
    assert not set(reference.lookup) & set(" ?#%\\\n")
    assert ".." not in reference.lookup.split("/")


@given(st.text("abcdef0123456789", min_size=1, max_size=64))
def test_every_start_of_an_id_may_be_one(text: str) -> None:
    assert may_be_id(text)
    assert may_be_id(f"sha256:{text}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("gcr.io/Team/app", "gcr.io/Team/app", id="no password"),
        pytest.param("", "", id="nothing"),
        pytest.param("nginx@sha256:abc", "nginx@sha256:abc", id="a wrong digest"),
        pytest.param(f"Nginx:1@{SHA}", f"Nginx:1@{SHA}", id="a digest"),
        pytest.param("https://user:PASS@gcr.io/nginx", "…@gcr.io/nginx", id="a url"),
        pytest.param("user:PASS@gcr.io/nginx", "…@gcr.io/nginx", id="without a scheme"),
        pytest.param("user:PASS@gcr.io:5000", "…@gcr.io:5000", id="a port"),
        pytest.param("https://user:PA@SS@gcr.io", "…@gcr.io", id="an at sign in the password"),
        pytest.param("https://user:PA/SS@gcr.io", "…@gcr.io", id="a slash in the password"),
        pytest.param("https://user:PA\nSS@gcr.io", "…@gcr.io", id="a line end in the password"),
        pytest.param(f"https://user:PASS@gcr.io/nginx@{SHA}", f"…@{SHA}", id="a password and a digest"),
        pytest.param(f"user:PASS@gcr.io/nginx@{SHA}", f"…@{SHA}", id="a password and a digest without a scheme"),
        pytest.param("https://user:PASS@sha256:1", "…@sha256:1", id="a host like a digest"),
        pytest.param("//user:PASS@sha256:1", "…@sha256:1", id="a host like a digest without a scheme"),
        pytest.param("user:PASS@sha256:1/nginx", "…@sha256:1/nginx", id="a host like a digest, and a repository"),
        pytest.param("user:PASS@sha256:@x", "…@x", id="a digest in the password"),
        pytest.param("user:PASS@", "…@", id="nothing behind it"),
        pytest.param("@", "…@", id="an at sign alone"),
        pytest.param("u:" + "PASS" * 1000 + "@gcr.io", "…@gcr.io", id="a long password"),
        pytest.param("a" * 1000, "a" * 300, id="a long name"),
    ],
)
def test_what_is_quoted_has_no_password(text: str, shown: str) -> None:
    assert quoted(text) == repr(shown)
    with pytest.raises(InvalidArgument, match="image reference") as caught:
        parse_reference(f"{text} ")
    assert "PA" not in str(caught.value)
