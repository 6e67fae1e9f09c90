"""The images that tests and critest ask for, made on the spot from Debian packages.

What each image must hold is what the specs of cri-tools 1.36 use of it; the reason stands beside the odd ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.node import image_files
from tests.node.cache import appearing, entry, used
from tests.node.image_files import ARCHITECTURE, SHELL, Entry, Image, folders, libraries, loaded, program

PACKAGES = ("bash", "busybox", "nginx", "procps", "tini", "util-linux")


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


def build(source: Path) -> Path:
    """Make all images from the unpacked packages in `source`; give the registry's storage folder, made once."""
    content = Path(__file__).read_bytes() + Path(image_files.__file__).read_bytes()
    target = entry("registry", content + source.name.encode())
    if not used(target):
        with appearing(target) as storage:
            image_files.write(storage, IMAGES, {name: partial(entries, source) for name, entries in LAYERS.items()})
    return target


# Layers


def busybox(source: Path) -> Iterator[Entry]:
    # Debian's dynamic build runs /bin/ls for `ls`, where a static one answers from inside the shell. Hard links let
    # a spec mask /bin/ls without masking the shell.
    yield from folders("bin", "dev", "etc", "home", "mnt", "proc", "root", "sys", "usr", "usr/bin", "var", "var/run")
    yield from folders("home/default-user", "var/www")
    yield from folders("tmp", mode=0o1777)
    yield Entry("etc/passwd", PASSWD.encode())
    yield Entry("etc/group", GROUP.encode())
    yield program(source, "bin/busybox")
    yield from libraries(source, "bin/busybox")
    listed = loaded(source, "bin/busybox", "--list").split()
    yield from (Entry(f"bin/{name}", same_as="bin/busybox") for name in listed if name != "busybox")


def _tools(source: Path) -> Iterator[Entry]:
    yield from (program(source, path) for path in ("usr/bin/pgrep", "usr/bin/ipcs"))
    yield from libraries(source, "usr/bin/pgrep", "usr/bin/ipcs")


def nginx(source: Path) -> Iterator[Entry]:
    yield from folders("etc/nginx", "usr/sbin", "var/log", "var/log/nginx")
    yield program(source, "usr/sbin/nginx")
    yield from libraries(source, "usr/sbin/nginx")
    yield Entry("etc/nginx/nginx.conf", (NGINX_CONF % 80).encode())


def _nginx_hostnet(_: Path) -> Iterator[Entry]:
    yield Entry("etc/nginx/nginx.conf", (NGINX_CONF % 12003).encode())


def _httpd(_: Path) -> Iterator[Entry]:
    yield from folders("srv")
    yield Entry("srv/index.html", b"<html><body><h1>It works!</h1></body></html>\n")


def _tini(source: Path) -> Iterator[Entry]:
    yield replace(program(source, "usr/bin/tini-static"), path="pause")


def _setuid_shell(source: Path) -> Iterator[Entry]:
    yield replace(program(source, "bin/bash", 0o4755), path="nnp")
    yield from libraries(source, "bin/bash")


def _predefined_group(_: Path) -> Iterator[Entry]:
    yield Entry("etc/group", f"{GROUP}group-defined-in-image:x:50000:default-user\n".encode())


def _marker(text: str) -> Callable[[Path], Iterable[Entry]]:
    return lambda _: [Entry("test-image", text.encode())]


DIFFERENT = ("test-image-1", "test-image-2", "test-image-3", "test-image-tags", "test-image-latest", "test", "all")
LAYERS: Mapping[str, Callable[[Path], Iterable[Entry]]] = {
    "busybox": busybox,
    "tools": _tools,
    "nginx": nginx,
    "nginx-hostnet": _nginx_hostnet,
    "httpd": _httpd,
    "tini": _tini,
    "setuid-shell": _setuid_shell,
    "predefined-group": _predefined_group,
    **{name: _marker(name) for name in DIFFERENT},
}


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
