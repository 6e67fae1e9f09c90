"""What the package has of the option table: the configuration file, lists for the manual pages, shell completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import shtab

from dockershim import __version__
from dockershim.server import cli, config, cri_dockerd

#: Where each shell looks for the completions of a command that is installed.
COMPLETIONS = {
    "bash": Path("usr/share/bash-completion/completions/dockershim"),
    "zsh": Path("usr/share/zsh/vendor-completions/_dockershim"),
    "fish": Path("usr/share/fish/vendor_completions.d/dockershim.fish"),
}
CONFIG_HEAD = """\
# Configuration of dockershim, see dockershim-config(5). Every line is a comment that shows the default: take away the
# "# " before a key and change its value. Then: systemctl restart dockershim

"""


def config_file() -> str:
    """The defaults as comments: a file that nobody edited leaves each default to the installed version."""
    return CONFIG_HEAD + config.default_file()


def manual_page(template: str) -> str:
    """A page for scdoc: ``template`` with the version, the flags and the keys of the configuration filled in."""
    parts = {
        "@VERSION@": __version__,
        "@FLAGS@": _flags(),
        "@KEYS@": _keys(),
        "@CRI_DOCKERD@": cri_dockerd.VERSION,
        "@CRI_DOCKERD_FLAGS@": _flags_of_cri_dockerd(),
    }
    for name, text in parts.items():
        template = template.replace(name, text)
    return template


def _flags() -> str:
    return "\n".join(
        f"{', '.join(_bold(f'{config.flag_name(key)}={_value(option)}') for key in option.keys)}\n\t{_help(option)}\n"
        for option in config.OPTIONS
    )


def _keys() -> str:
    return "\n".join(
        f"{_bold(option.key)} = {_escaped(config.to_toml(option.default))}\n\t{_help(option)}\n"
        for option in config.OPTIONS
    )


def _flags_of_cri_dockerd() -> str:
    return "\n".join(
        f"{_bold(config.flag_name(flag.name) + ('' if flag.kind.switch else '=' + flag.kind.name.upper()))}\n"
        f"\t{_escaped(f'{flag.help}.' + (f' Default: {flag.default}.' if flag.default else ''))}\n"
        for flag in cri_dockerd.FLAGS
    )


def _value(option: config.Option) -> str:
    return "BOOL" if option.is_switch else "VALUE"


def _help(option: config.Option) -> str:
    text = f"{option.help} Default: {config.to_toml(option.default)}."
    return _escaped(text + (" Reloaded on SIGHUP." if option.reloads else ""))


def _bold(text: str) -> str:
    return f"*{_escaped(text)}*"


def _escaped(text: str) -> str:
    """``text`` without a meaning for scdoc, whose special characters a backslash takes away."""
    return re.sub(r"([\\*_#`|<>~.\[\]+-])", r"\\\1", text)


def completion(shell: str) -> str:
    """The completion of the command for a shell of ``COMPLETIONS``."""
    parser = cli.make_parser()
    kinds = {config.flag_name(key): _completes(option) for option in config.OPTIONS for key in option.keys}
    for action in parser._actions:
        if action.dest == "command":
            action.choices = list(dict.fromkeys(word for command in cli.COMMANDS for word in command))
            action.help = "command"
        elif kind := next((kinds[name] for name in action.option_strings if name in kinds), None):
            action.complete = kind  # type: ignore[attr-defined]
        elif action.dest == "config":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _completes(option: config.Option) -> Mapping[str, object] | None:
    """What shtab is told of the values: they are files or folders, or nothing is known of them."""
    if option.key.endswith(("_directory", "_dir")) or option.key == "adopt_from":
        return shtab.DIRECTORY
    return shtab.FILE if option.default is None else None
