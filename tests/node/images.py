"""The images that tests and critest ask for, made on the spot from Debian packages.

Nothing is pulled from outside: `build` writes them into a folder in the layout in which a registry stores them
(docs: distribution, "storage driver" paths), and a registry on the node's loopback serves that folder. The name of
the registry is not part of the layout, so one folder answers for all hosts that images are asked from.

What each image must hold is what the specs of cri-tools 1.36 use of it; the reason stands beside the odd ones.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.node.cache import CACHE, appearing

PACKAGES = ("bash", "busybox", "nginx", "procps", "tini", "util-linux")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"
SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PASSWD = """\
root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/sh
default-user:x:1000:1000:default-user:/home/default-user:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/false
"""
GROUP = """\
root:x:0:
www-data:x:33:
users:x:100:
default-user:x:1000:
nogroup:x:65534:
"""
NGINX_CONF = """\
pid /var/run/nginx.pid;
error_log /dev/stderr;
events {}
http {
    access_log /dev/stdout;
    client_body_temp_path /tmp/body;
    proxy_temp_path /tmp/proxy;
    fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi;
    scgi_temp_path /tmp/scgi;
    server { listen %d; location / { return 200 "welcome to nginx\\n"; } }
}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a layer, owned by root: a folder, a file with `content`, or a hard link to `same_as`."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    same_as: str | None = None
    is_folder: bool = False


SHELL = {"Cmd": ["sh"]}


@dataclass(frozen=True, slots=True)
class Image:
    """An image: `names` are repository:tag without a host, `layers` are keys of LAYERS, lowest first."""

    names: tuple[str, ...]
    layers: tuple[str, ...]
    config: Mapping[str, object] = field(default_factory=lambda: SHELL)


def build(source: Path) -> Path:
    """Make all images from the unpacked packages in `source`; give the registry's storage folder, made once."""
    key = hashlib.sha256(Path(__file__).read_bytes() + source.name.encode()).hexdigest()[:8]
    target = CACHE / f"registry-{key}"
    if not target.is_dir():
        with appearing(target) as storage:
            layers = {name: _packed(entries(source)) for name, entries in LAYERS.items()}
            for image in IMAGES:
                _store(storage, image, [layers[name] for name in image.layers])
    return target


# Layers


def _folders(*paths: str, mode: int = 0o755) -> Iterator[Entry]:
    return (Entry(path, mode=mode, is_folder=True) for path in paths)


def _program(source: Path, path: str, mode: int = 0o755) -> Entry:
    return Entry(path, (source / path).read_bytes(), mode)


def _libraries(source: Path, *programs: str) -> Iterator[Entry]:
    """The shared libraries of `programs` and their loader, at the paths where the programs look for them."""
    loader = next(source.glob("lib/*/ld-linux-*.so.*"))
    folders = ":".join(str(folder) for folder in (*source.glob("lib/*-linux-gnu"), *source.glob("usr/lib/*-linux-gnu")))
    for program in programs:
        command = [str(loader), "--library-path", folders, "--list", str(source / program)]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            name, _, found = line.strip().rpartition(" (")[0].partition(" => ")
            if name.startswith("/"):
                yield Entry(name.removeprefix("/"), loader.read_bytes(), 0o755)
            elif found:
                yield Entry(str(Path(found).relative_to(source)), Path(found).read_bytes(), 0o755)


def _busybox(source: Path) -> Iterator[Entry]:
    # Debian's dynamic build runs /bin/ls for `ls`, where a static one answers from inside the shell. Hard links let
    # a spec mask /bin/ls without masking the shell.
    yield from _folders("bin", "dev", "etc", "home", "mnt", "proc", "root", "sys", "usr", "usr/bin", "var", "var/run")
    yield from _folders("home/default-user", "var/www")
    yield from _folders("tmp", mode=0o1777)
    yield Entry("etc/passwd", PASSWD.encode())
    yield Entry("etc/group", GROUP.encode())
    yield _program(source, "bin/busybox")
    yield from _libraries(source, "bin/busybox")
    listed = subprocess.run([source / "bin/busybox", "--list"], capture_output=True, text=True, check=True)
    yield from (Entry(f"bin/{name}", same_as="bin/busybox") for name in listed.stdout.split() if name != "busybox")


def _tools(source: Path) -> Iterator[Entry]:
    yield from (_program(source, program) for program in ("usr/bin/pgrep", "usr/bin/ipcs"))
    yield from _libraries(source, "usr/bin/pgrep", "usr/bin/ipcs")


def _nginx(source: Path) -> Iterator[Entry]:
    yield from _folders("etc/nginx", "usr/sbin", "var/log", "var/log/nginx")
    yield _program(source, "usr/sbin/nginx")
    yield from _libraries(source, "usr/sbin/nginx")
    yield Entry("etc/nginx/nginx.conf", (NGINX_CONF % 80).encode())


def _nginx_hostnet(_: Path) -> Iterator[Entry]:
    yield Entry("etc/nginx/nginx.conf", (NGINX_CONF % 12003).encode())


def _httpd(_: Path) -> Iterator[Entry]:
    yield from _folders("srv")
    yield Entry("srv/index.html", b"<html><body><h1>It works!</h1></body></html>\n")


def _tini(source: Path) -> Iterator[Entry]:
    yield replace(_program(source, "usr/bin/tini-static"), path="pause")


def _setuid_shell(source: Path) -> Iterator[Entry]:
    yield replace(_program(source, "bin/bash", 0o4755), path="nnp")
    yield from _libraries(source, "bin/bash")


def _predefined_group(_: Path) -> Iterator[Entry]:
    yield Entry("etc/group", f"{GROUP}group-defined-in-image:x:50000:default-user\n".encode())


def _marker(text: str) -> Callable[[Path], Iterable[Entry]]:
    return lambda _: [Entry("test-image", text.encode())]


DIFFERENT = ("test-image-1", "test-image-2", "test-image-3", "test-image-tags", "test-image-latest", "test", "all")
LAYERS: Mapping[str, Callable[[Path], Iterable[Entry]]] = {
    "busybox": _busybox,
    "tools": _tools,
    "nginx": _nginx,
    "nginx-hostnet": _nginx_hostnet,
    "httpd": _httpd,
    "tini": _tini,
    "setuid-shell": _setuid_shell,
    "predefined-group": _predefined_group,
    **{name: _marker(name) for name in DIFFERENT},
}


def _packed(entries: Iterable[Entry]) -> bytes:
    """A layer: the tar archive of `entries`, the same bytes on every run (no time, no owner but root)."""
    packed = io.BytesIO()
    seen: set[str] = set()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            if entry.path not in seen:
                archive.addfile(_member(entry), io.BytesIO(entry.content))
            seen.add(entry.path)
    return packed.getvalue()


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.path)
    member.mode = entry.mode
    member.size = len(entry.content)
    if entry.is_folder:
        member.type = tarfile.DIRTYPE
    if entry.same_as is not None:
        member.type, member.linkname, member.mode = tarfile.LNKTYPE, entry.same_as, 0o755
    return member


# Images

NGINX_COMMAND = ["nginx", "-e", "/dev/stderr", "-g", "daemon off;"]
PAUSE = {"Entrypoint": ["/pause", "--", "/bin/sleep", "infinity"]}
STAGING = "k8s-staging-cri-tools"


def _with_user(name: str, user: str, *extra: str) -> Image:
    return Image((f"{STAGING}/test-image-{name}:latest",), ("busybox", *extra), SHELL | {"User": user})


IMAGES = (
    Image(("e2e-test-images/busybox:1.29-2",), ("busybox", "tools")),
    Image(("e2e-test-images/nginx:1.14-2",), ("busybox", "nginx"), {"Cmd": NGINX_COMMAND}),
    Image(
        ("e2e-test-images/httpd:2.4.39-4",),
        ("busybox", "tini", "httpd"),
        # tini, because a web server that is PID 1 and has no handler for SIGTERM would never stop in time.
        {"Cmd": ["/pause", "--", "sh", "-c", "echo httpd serves /srv; exec httpd -f -vv -p 80 -h /srv"]},
    ),
    Image(
        ("e2e-test-images/nonewprivs:1.3",),
        ("busybox", "setuid-shell"),
        {"Entrypoint": ["/nnp", "-p", "-c", 'echo "Effective uid: $EUID"']},
    ),
    # A spec counts the tags of pause 3.9: it stands alone, and the later ones are another image.
    Image(("pause:3.9",), ("busybox", "tini"), PAUSE),
    Image(("pause:3.10", "pause:3.10.1"), ("busybox", "tini"), PAUSE | {"Labels": {"version": "3.10"}}),
    Image(
        (f"{STAGING}/hostnet-nginx-{ARCHITECTURE}:latest",),
        ("busybox", "nginx", "nginx-hostnet"),
        {"Cmd": NGINX_COMMAND},
    ),
    *(Image((f"{STAGING}/test-image-{n}:latest",), ("busybox", f"test-image-{n}")) for n in "123"),
    Image(tuple(f"{STAGING}/test-image-tags:{tag}" for tag in "123"), ("busybox", "test-image-tags")),
    Image((f"{STAGING}/test-image-latest:latest",), ("busybox", "test-image-latest")),
    Image((f"{STAGING}/test-image-tag:test",), ("busybox", "test")),
    Image((f"{STAGING}/test-image-tag:all",), ("busybox", "all")),
    _with_user("user-uid", "1002"),
    _with_user("user-username", "www-data"),
    _with_user("user-uid-group", "1003:users"),
    _with_user("user-username-group", "www-data:www-data"),
    _with_user("predefined-group", "1000", "predefined-group"),
)


# Storage


def _store(storage: Path, image: Image, layers: list[bytes]) -> None:
    """Write one image where a registry with the storage folder `storage` finds it."""
    packed = [gzip.compress(layer, mtime=0) for layer in layers]
    config = json.dumps(
        {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "created": "2024-01-01T00:00:00Z",
            "config": {"Env": [SEARCH_PATH]} | dict(image.config),
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
            "history": [{"created": "2024-01-01T00:00:00Z", "created_by": name} for name in image.layers],
        },
        sort_keys=True,
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(CONFIG_TYPE, config),
            "layers": [_descriptor(LAYER_TYPE, layer) for layer in packed],
        }
    ).encode()
    for blob in (config, manifest, *packed):
        hexadecimal = _digest(blob).removeprefix("sha256:")
        _write(storage / "docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data", blob)
    for name in image.names:
        _link(storage, name, _digest(manifest), [_digest(blob) for blob in (config, *packed)])


def _link(storage: Path, name: str, manifest: str, blobs: Iterable[str]) -> None:
    repository, tag = name.split(":")
    folder = storage / "docker/registry/v2/repositories" / repository
    at = manifest.replace(":", "/")
    for blob in blobs:
        _write(folder / "_layers" / blob.replace(":", "/") / "link", blob.encode())
    for link in (f"revisions/{at}", f"tags/{tag}/current", f"tags/{tag}/index/{at}"):
        _write(folder / "_manifests" / link / "link", manifest.encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "size": len(blob), "digest": _digest(blob)}
