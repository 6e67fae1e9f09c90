"""docs/first-pod.md: each command is run, and each file is one that its reader takes.

`make first-pod` runs the page.
"""

from __future__ import annotations

import re

import pytest
import yaml

from dockershim.server import config
from tests.first_pod import clean, page

FILES = page.files()


def test_each_block_of_the_page_is_run_or_says_why_not() -> None:
    text = page.PAGE.read_text()
    blocks = re.findall(r"^```\w*\n.*?^```$", text, re.MULTILINE | re.DOTALL)
    not_run = [block for block in blocks if f"-->\n\n{block}" in text]
    assert len(not_run) == text.count("<!-- not run: ") == 1
    run = "\n".join(command.text for command in page.commands())
    assert run == "\n".join(
        block.removeprefix("```sh\n").removesuffix("\n```") for block in blocks if block not in not_run
    )


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        pytest.param("a\nb c\n", ["a", "b c"], id="a command in each line"),
        pytest.param("a \\\n  b\nc\n", ["a \\\n  b", "c"], id="a command in two lines"),
        pytest.param("cat > f <<'END'\nx\n\nEND\nc\n", ["cat > f <<'END'\nx\n\nEND", "c"], id="a file"),
    ],
)
def test_a_script_is_split_into_what_one_copies(script: str, commands: list[str]) -> None:
    assert list(page.split(script)) == commands


def test_the_kubelet_is_of_the_release_that_the_page_is_run_with() -> None:
    assert set(re.findall(r"/core:/stable:/v([\d.]+)/deb/", page.PAGE.read_text())) == {clean.KUBERNETES.minor}


def test_the_kubelet_is_pointed_at_our_socket_and_at_the_folder_of_the_pod() -> None:
    kubelet = yaml.safe_load(FILES["/var/lib/kubelet/config.yaml"])
    assert kubelet["containerRuntimeEndpoint"] == config.Config().container_runtime_endpoint
    assert f"{kubelet['staticPodPath']}/web.yaml" in FILES
