"""The images that Kubernetes' own suites ask for, made of Debian packages and of Kubernetes' own programs.

They are those of test/utils/image/manifest.go in k8s.io/kubernetes. An image has the tags of all releases whose suites
are run: it is made of the programs of the one that asks. The reason stands beside the odd ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from tests.kubernetes import programs, registry
from tests.node.image_files import (
    SHELL,
    Blobs,
    Entry,
    Image,
    Layers,
    digest,
    folders,
    libraries,
    pack,
    program,
)
from tests.node.images import GROUP, NGINX_COMMAND, PASSWD, busybox, nginx
from tests.node.packages import SetupError
from tests.node.supplies import FORKY

# Of forky, whose busybox hands names such as `data-1` on to the programs that its shell runs, as the original does.
PACKAGES: Final = (
    *("bash", "bind9-dnsutils", "busybox", "curl", "iproute2", "libc-bin", "netcat-openbsd", "nginx", "openssl"),
    *("perl-base", "procps", "util-linux"),
)
TOOLS: Final = (
    *("bin/bash", "bin/ip", "bin/ss", "usr/bin/curl", "usr/bin/dig", "usr/bin/getent", "usr/bin/ipcs"),
    *("usr/bin/nslookup", "usr/bin/openssl"),
)
# What the specs of supplemental groups look up in agnhost.
AGNHOST_PASSWD: Final = f"{PASSWD}user-defined-in-image:x:1000:1000::/home:/bin/sh\n".replace(
    "default-user:x:1000:1000:default-user:/home/default-user:/bin/sh\n", ""
)
AGNHOST_GROUP: Final = f"{GROUP}group-defined-in-image:x:50000:user-defined-in-image\n"
# From here a subcommand of agnhost serves one image, and from no other layout.
FAKE_REGISTRY: Final = "var/registry/pause"
# Programs of the release, whose API is that of the images that the suites name.
SAMPLES: Final = ("sample-apiserver", "sample-device-plugin")
# In the program of busybox: the format of the shell's line numbers, and none.
LINE: Final = b"\0line %d: \0"
NO_LINE: Final = b"\0\0ine %d: \0"


def provide(release: programs.Release) -> Path:
    """The storage folder of a registry that has the images for a release's suites, made once."""
    built = {
        **{name: release.provide(name) for name in ("agnhost", "nonewprivs", *SAMPLES)},
        **{name: programs.provide(name) for name in ("nmeter", "pause")},
    }
    layers = partial(_layers, release.sources())
    return registry.provide("e2e-node", __file__, IMAGES, layers, suite=FORKY, packages=PACKAGES, built=built)


def _layers(kubernetes: Path, source: Path, built: Mapping[str, Path]) -> Layers:
    made: Layers = {
        "busybox": partial(_busybox, source),
        "nmeter": lambda: [_built(built["nmeter"], "bin/nmeter")],
        "tools": partial(_tools, source),
        "pause": lambda: [_built(built["pause"], "pause")],
        "nonewprivs": lambda: [_built(built["nonewprivs"], "usr/local/bin/nnp", 0o4755)],
        **{name: partial(_sample, name, built[name]) for name in SAMPLES},
        "nginx": partial(nginx, source),
        "perl": partial(_perl, source),
        **{name: partial(_marker, name) for name in DIFFERENT},
        **{name: partial(_picture, name) for name in PICTURES},
    }
    return {**made, "agnhost": partial(_agnhost, built["agnhost"], kubernetes, made)}


def _busybox(source: Path) -> Iterator[Entry]:
    """Debian's, but its shell names no line ("line 0: ") in an error: a spec compares the words with the original's."""
    for entry in busybox(source):
        if entry.path == "bin/busybox":
            if entry.content.count(LINE) != 1:
                raise SetupError(f"the busybox in {source} is another one: see what its shell says of a missing file")
            yield replace(entry, content=entry.content.replace(LINE, NO_LINE))
        else:
            yield entry


def _built(path: Path, at: str, mode: int = 0o755) -> Entry:
    return Entry(at, path.read_bytes(), mode)


def _sample(name: str, path: Path) -> Iterable[Entry]:
    return [_built(path, name)]


def _marker(name: str) -> Iterable[Entry]:
    return [Entry("image-name", name.encode())]


def _picture(name: str) -> Iterable[Entry]:
    """Which picture it is, by HTTP and as a file of an image volume, and the base of the original image."""
    yield from folders("etc")
    yield Entry("data.json", json.dumps({"image": f"{name}.jpg"}).encode())
    yield Entry("etc/os-release", b'NAME="Alpine Linux"\n')


def _tools(source: Path) -> Iterator[Entry]:
    yield from (program(source, path) for path in TOOLS)
    yield Entry("bin/nc", (source / "usr/bin/nc.openbsd").read_bytes(), 0o755)
    yield from libraries(source, *TOOLS, "usr/bin/nc.openbsd")
    yield from folders("usr/lib/ssl")
    yield Entry("usr/lib/ssl/openssl.cnf", (source / "etc/ssl/openssl.cnf").read_bytes())
    yield Entry("etc/nsswitch.conf", b"hosts: files dns\n")


def _perl(source: Path) -> Iterator[Entry]:
    yield program(source, "usr/bin/perl")
    yield from libraries(source, "usr/bin/perl")
    for path in sorted(source.glob("usr/lib/*/perl-base/**/*.pm")):
        yield Entry(str(path.relative_to(source)), path.read_bytes())


def _agnhost(agnhost: Path, kubernetes: Path, layers: Layers) -> Iterator[Entry]:
    yield from folders("uploads", mode=0o777)
    yield Entry("etc/passwd", AGNHOST_PASSWD.encode())
    yield Entry("etc/group", AGNHOST_GROUP.encode())
    yield _built(agnhost, "agnhost")
    # Specs of entry points run it by the other name.
    yield Entry("agnhost-2", same_as="agnhost")
    for name in ("localhost.crt", "localhost.key"):
        yield Entry(name, (kubernetes / "test/images/agnhost/porter" / name).read_bytes())
    blobs = Blobs.of(PAUSE, [pack(layers[name]()) for name in PAUSE.layers])
    yield Entry(f"{FAKE_REGISTRY}/manifests/testing", f"{digest(blobs.manifest)}\n".encode())
    for kind, blob in (("manifests", blobs.manifest), *(("blobs", blob) for blob in (blobs.config, *blobs.layers))):
        algorithm, hexadecimal = digest(blob).split(":")
        yield Entry(f"{FAKE_REGISTRY}/{kind}/{algorithm}/{hexadecimal[:2]}/{hexadecimal}/data", blob)


AGNHOST: Final = {"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}
NGINX: Final = {"Cmd": NGINX_COMMAND}
PAUSE: Final = Image(("pause:3.10.2",), ("pause",), {"Entrypoint": ["/pause"]})
# Specs replace one image by another and look which one runs: those have to differ.
DIFFERENT: Final = ("agnhost-2.55", "busybox-1.29", "busybox-1.36", "nginx-new")
PICTURES: Final = ("kitten", "nautilus")
SUITE: Final = "e2e-test-images"
IMAGES: Final = (
    PAUSE,
    Image((f"{SUITE}/agnhost:2.63.0", f"{SUITE}/agnhost:2.66.1"), ("busybox", "nmeter", "tools", "agnhost"), AGNHOST),
    Image((f"{SUITE}/agnhost:2.55",), ("busybox", "nmeter", "tools", "agnhost", "agnhost-2.55"), AGNHOST),
    Image((f"{SUITE}/busybox:1.37.0-1", f"{SUITE}/busybox:1.37.0-2"), ("busybox", "nmeter")),
    Image((f"{SUITE}/busybox:1.36.1-1",), ("busybox", "nmeter", "busybox-1.36")),
    Image((f"{SUITE}/busybox:1.29-2",), ("busybox", "nmeter", "busybox-1.29")),
    Image((f"{SUITE}/glibc-dns-testing:2.0.0", f"{SUITE}/glibc-dns-testing:2.1.1"), ("busybox", "tools")),
    Image((f"{SUITE}/nginx:1.15-4", f"{SUITE}/nginx:1.27.0-2"), ("busybox", "nginx"), NGINX),
    Image((f"{SUITE}/nginx:1.27-0", f"{SUITE}/nginx:1.28.0-2"), ("busybox", "nginx", "nginx-new"), NGINX),
    Image((f"{SUITE}/nonewprivs:1.4",), ("busybox", "nonewprivs"), {"Cmd": ["/usr/local/bin/nnp"]}),
    Image((f"{SUITE}/nonroot:1.5",), ("busybox",), SHELL | {"User": "1234"}),
    Image((f"{SUITE}/ipc-utils:1.4",), ("busybox", "tools")),
    Image((f"{SUITE}/perl:5.26",), ("busybox", "perl")),
    Image(
        (f"{SUITE}/sample-apiserver:1.29.2",), ("busybox", "sample-apiserver"), {"Entrypoint": ["/sample-apiserver"]}
    ),
    Image(
        (f"{SUITE}/sample-device-plugin:1.7", f"{SUITE}/sample-device-plugin:1.8.0"),
        ("busybox", "sample-device-plugin"),
        {"Entrypoint": ["/sample-device-plugin", "-alsologtostderr"]},
    ),
    *(Image((f"{SUITE}/{name}:1.8",), ("busybox", name), {"Cmd": ["httpd", "-f", "-h", "/"]}) for name in PICTURES),
)
