"""The command line. Flags have pflag's syntax, as in cri-dockerd: ``--flag=value``, ``--flag value``, bare switches."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from dockershim import __version__
from dockershim.common.text import escape
from dockershim.server import config, cri_dockerd, log

if TYPE_CHECKING:
    from dockershim.server.serving_process import Compose

FAILED: Final = 1
USAGE_ERROR: Final = 2
SERVE: Final = ["serve"]
CONFIG_DEFAULT: Final = ["config", "default"]
CONFIG_SHOW: Final = ["config", "show"]
INFO: Final = ["info"]
DOCTOR: Final = ["doctor"]
STATUS: Final = ["status"]
SETUP: Final = ["setup"]
MIGRATE: Final = ["migrate"]

COMMANDS: Final = (SERVE, CONFIG_DEFAULT, CONFIG_SHOW, INFO, DOCTOR, STATUS, SETUP, MIGRATE)
#: Of setup: pod networks that it can write, and features that it can turn on.
_NETWORKS: Final = ("bridge",)
_FEATURES: Final = ("early-network", "user-namespaces")

#: Variables that gRPC's C core reads when it is loaded. Below "error" it logs every connection, not through our log.
#: Its event engine, which 1.76 did not use in Python, reads connections in threads of its own: each call wakes more of
#: them, which costs a sixth of the CPU that gRPC needs for the call (`python -m bench.relist`).
_GRPC_ENVIRONMENT: Final[Mapping[str, str]] = {
    "GRPC_VERBOSITY": "ERROR",
    "GRPC_EXPERIMENTS": "-event_engine_listener",
}

DESCRIPTION: Final = """\
A CRI server that lets Kubernetes use Docker Engine as its container runtime.

commands:
  serve            serve the CRI (the default command)
  config default   print a configuration file with the default values as comments
  config show      print the effective configuration and the source of each value
  info             print the features of the kernel, engine and OCI runtimes that the running server has found
  doctor           check this node for problems and print how to fix them; the exit code is 1 if a check fails
  status           show pods, containers, their resource usage and the state of the server until Ctrl-C
  setup            print what to change on this host for a kubelet with Docker; --yes changes it, --undo takes it back
  migrate          print how this node moves from cri-dockerd while pods run; --yes moves it, --back returns it
"""


def main(argv: Sequence[str] | None = None, compose: Compose | None = None) -> int:
    """Run the command in ``argv`` (None: the process's arguments), and return the exit code.

    A process with the name ``cri-dockerd`` takes that program's arguments (``cri_dockerd.py``). ``compose`` makes the
    services (None: the real ones).
    """
    if argv is None and cri_dockerd.is_name(sys.argv[0]):
        return main_as_cri_dockerd(sys.argv[1:], compose)
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    if arguments.command == CONFIG_DEFAULT:
        sys.stdout.write(config.default_file())
        return 0
    load = partial(_load, arguments, dict(os.environ))
    try:
        if arguments.command == CONFIG_SHOW:
            sys.stdout.write(config.effective_file(*_sources(arguments, dict(os.environ))))
            return 0
        settings = load()
    except config.ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"dockershim: {escape(problem)}\n")
        return USAGE_ERROR
    if arguments.command == INFO:
        return _print_info(settings, as_json=arguments.json)
    if arguments.command == DOCTOR:
        return _doctor(settings, pod=arguments.pod, as_json=arguments.json)
    if arguments.command == STATUS:
        return _status(settings, once=arguments.once, as_json=arguments.json)
    if arguments.command == SETUP:
        return _setup(settings, arguments)
    if arguments.command == MIGRATE:
        return _migrate(settings, arguments)
    return _serve(settings, load, compose)


def main_as_cri_dockerd(argv: Sequence[str], compose: Compose | None = None) -> int:
    """What ``main`` does for cri-dockerd's arguments. As there, the exit code is 1 for all that is refused."""
    environ = dict(os.environ)
    try:
        asked = cri_dockerd.command(argv)
        if isinstance(asked, str):
            sys.stdout.write(asked)
            return 0
        load = partial(_load_as_cri_dockerd, asked, environ)
        settings = load()
    except cri_dockerd.Refused as error:
        sys.stderr.write(cri_dockerd.usage() if error.usage else "")
        problems: Sequence[str] = (str(error),)
    except config.ConfigError as error:
        problems = error.problems
    else:
        return _serve(settings, load, compose)
    for problem in problems:
        sys.stderr.write(cri_dockerd.fatal(escape(problem), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")))
    return FAILED


def _load_as_cri_dockerd(flags: Mapping[str, str], environ: Mapping[str, str]) -> config.Config:
    """Raises ConfigError."""
    return config.load(flags, environ, _config_file(None, environ), cri_dockerd.DEFAULTS)


def _print_info(settings: config.Config, *, as_json: bool) -> int:
    set_up_grpc()
    from dockershim.server import info

    try:
        facts = info.read(_callers_endpoint(settings))
        text = json.dumps(facts, indent=2) + "\n" if as_json else info.render(facts)
    except info.NoInfo as error:
        sys.stderr.write(f"dockershim: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _doctor(settings: config.Config, *, pod: bool, as_json: bool) -> int:
    set_up_grpc()
    from dockershim.doctor.checks import Question
    from dockershim.doctor.command import doctor

    question = Question(settings, _callers_endpoint(settings), dict(os.environ), _config_of)
    return doctor(question, pod=pod, as_json=as_json)


def _status(settings: config.Config, *, once: bool, as_json: bool) -> int:
    set_up_grpc()
    from dockershim.status.command import status

    return status(_callers_endpoint(settings), once=once, as_json=as_json)


def _setup(settings: config.Config, arguments: argparse.Namespace) -> int:
    set_up_grpc()
    from dockershim.doctor.checks import Question
    from dockershim.setup.command import setup
    from dockershim.setup.plan import Wishes

    question = Question(settings, _callers_endpoint(settings), dict(os.environ), _config_of)
    wishes = Wishes(network=arguments.network or "", features=frozenset(arguments.features or ()))
    folder = _settings_folder(arguments)
    return setup(question, folder, wishes=wishes, apply=arguments.yes, undo=arguments.undo)


def _migrate(settings: config.Config, arguments: argparse.Namespace) -> int:
    set_up_grpc()
    from dockershim.migrate.command import migrate

    folder = _settings_folder(arguments)
    return migrate(settings, folder, apply=arguments.yes, back=arguments.back, keep_socket=arguments.keep_socket)


def _settings_folder(arguments: argparse.Namespace) -> str:
    """Where drop-ins of the configuration file are."""
    return f"{_config_file(arguments.config, os.environ) or config.DEFAULT_FILE}.d"


def _config_of(words: Sequence[str], environ: Mapping[str, str]) -> config.Config:
    """The configuration of a server with this command line, from ``serve`` or its name on, and this environment.

    Raises ConfigError, Refused and SystemExit.
    """
    if not cri_dockerd.is_name(words[0]):
        return _load(_parse(words), environ)
    asked = cri_dockerd.command(words[1:])
    return _load_as_cri_dockerd({} if isinstance(asked, str) else asked, environ)


def _load(arguments: argparse.Namespace, environ: Mapping[str, str]) -> config.Config:
    """Raises ConfigError."""
    return config.load(*_sources(arguments, environ))


def _sources(
    arguments: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str], Path | None]:
    """The flags, the environment and the file that a configuration comes from."""
    flags = {key: value for key, value in vars(arguments).items() if key in _flag_keys() and value is not None}
    return flags, environ, _config_file(arguments.config, environ)


def _callers_endpoint(settings: config.Config) -> str:
    """Where callers find the server."""
    endpoint = settings.container_runtime_endpoint
    # The socket is systemd's, from our unit file.
    return config.Config().container_runtime_endpoint if endpoint.startswith("fd://") else endpoint


def _serve(settings: config.Config, load: Callable[[], config.Config], compose: Compose | None) -> int:
    log.configure(settings.log_level, settings.log_format)
    set_up_grpc()
    # Imported only here: printing help or refusing a flag need not load gRPC and all parts of the server.
    from dockershim.server import serving_process

    return serving_process.run(settings, load, compose or _real_parts())


def set_up_grpc() -> None:
    """Set gRPC's variables, unless the environment has them. To be called before gRPC is loaded."""
    for name, value in _GRPC_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _real_parts() -> Compose:
    from dockershim.server.wiring import compose

    return compose


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser()
    arguments = parser.parse_intermixed_args(_explicit_switches(argv))
    arguments.command = arguments.command or SERVE
    if arguments.command not in COMMANDS:
        name = " ".join(arguments.command)
        parser.error(f"unknown command: {name}{config.did_you_mean(name, map(' '.join, COMMANDS))}")
    if arguments.json and arguments.command not in (INFO, DOCTOR, STATUS):
        parser.error("--json: only valid for info, doctor and status")
    if arguments.once and arguments.command != STATUS:
        parser.error("--once: only valid for status")
    if arguments.pod and arguments.command != DOCTOR:
        parser.error("--pod: only valid for doctor")
    _check_changes(parser, arguments)
    return arguments


def _check_changes(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """The flags of the commands that change the machine."""
    of_command = {
        "--yes": (arguments.yes, (SETUP, MIGRATE)),
        "--undo": (arguments.undo, (SETUP,)),
        "--network": (arguments.network, (SETUP,)),
        "--with": (arguments.features, (SETUP,)),
        "--back": (arguments.back, (MIGRATE,)),
        "--keep-socket": (arguments.keep_socket, (MIGRATE,)),
    }
    flags = [flag for flag, (value, _) in of_command.items() if value]
    for flag in flags:
        _, commands = of_command[flag]
        if arguments.command not in commands:
            parser.error(f"{flag}: only valid for {' and '.join(name for (name,) in commands)}")
    for back in {"--undo", "--back"} & set(flags):
        if others := [flag for flag in flags if flag not in (back, "--yes")]:
            parser.error(f"{back}: cannot be combined with {others[0]}")


def _explicit_switches(argv: Sequence[str]) -> list[str]:
    """Replace a bare ``--switch`` by ``--switch=true``: in pflag it never takes the next argument as its value."""
    switches = {config.flag_name(key) for option in config.OPTIONS if option.is_switch for key in option.keys}
    return [f"{argument}=true" if argument in switches else argument for argument in argv]


class _Parser(argparse.ArgumentParser):
    """Prints errors on one line: the usage would fill more than a screen."""

    def error(self, message: str) -> NoReturn:
        _, _, unknown = message.partition("unrecognized arguments: ")
        hint = config.did_you_mean(unknown.split("=")[0].split(" ")[0], self._option_string_actions) if unknown else ""
        self.exit(USAGE_ERROR, f"dockershim: {escape(message)}{hint}; see dockershim --help\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line, made from the option table."""
    parser = _Parser(
        "dockershim",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="PATH", help=f"configuration file (default {config.DEFAULT_FILE})")
    parser.add_argument("--json", action="store_true", help="print JSON (info, doctor, status)")
    parser.add_argument("--once", action="store_true", help="print all pods once and exit (status)")
    parser.add_argument("--pod", action="store_true", help="also run a pod and remove it (doctor)")
    parser.add_argument("--yes", action="store_true", help="do what the plan says (setup, migrate)")
    parser.add_argument("--undo", action="store_true", help="undo what setup has done (setup)")
    parser.add_argument("--back", action="store_true", help="return the node to cri-dockerd (migrate)")
    parser.add_argument("--keep-socket", action="store_true", help="serve where cri-dockerd did (migrate)")
    parser.add_argument("--network", choices=_NETWORKS, help="also write a pod network for this node alone (setup)")
    parser.add_argument(
        "--with",
        dest="features",
        action="append",
        choices=_FEATURES,
        help="also turn on a feature of dockershim-runc; may be repeated (setup)",
    )
    parser.add_argument("--version", action="version", version=f"dockershim {__version__}")
    parser.add_argument("--buildinfo", action=_BuildInfo, nargs=0, help="print the versions of Python and of libraries")
    for option in config.OPTIONS:
        metavar = "BOOL" if option.is_switch else "VALUE"
        text = f"{option.help} (default {config.to_toml(option.default)})".replace("%", "%%")
        action = _Joined if option.repeats else "store"
        parser.add_argument(config.flag_name(option.key), dest=option.key, metavar=metavar, help=text, action=action)
        for key in option.also:
            parser.add_argument(
                config.flag_name(key), dest=key, metavar=metavar, help=f"same as {config.flag_name(option.key)}"
            )
    return parser


class _Joined(argparse.Action):
    """A flag that may be repeated: joins its values with commas, as they are written in an environment variable."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


class _BuildInfo(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parts = [f"dockershim {__version__}", f"python {platform.python_version()}"]
        parts += [f"{name} {metadata.version(name)}" for name in ("grpcio", "protobuf", "aiohttp", "pyroute2")]
        sys.stdout.write("\n".join(parts) + "\n")
        parser.exit()


def _flag_keys() -> frozenset[str]:
    return frozenset(key for option in config.OPTIONS for key in option.keys)


def _config_file(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    named = flag if flag is not None else environ.get(f"{config.ENVIRONMENT_PREFIX}CONFIG", "")
    return Path(named) if named else None
