"""What docs/security.md says of sockets and files, held to a server with a pod."""

from __future__ import annotations

import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.cri_client import CRI
from tests.engine.pods import container_config, pod, pull, sandbox_config, start
from tests.node.server import Server
from tests.waiting import until

PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()
#: The rows of the table of files: path, mode of the folder, mode of the files in it.
FOLDERS = re.findall(r"^\| `(/[^`]+)` \| (0\d{3})(?: if we make it|, files (0\d{3})) \|", PAGE, re.MULTILINE)


def mode(path: Path) -> str:
    return f"0{stat.S_IMODE(path.lstat().st_mode):03o}"


def listening(pid: int) -> list[str]:
    """The addresses at which the process and its children listen."""
    sockets = subprocess.run(["ss", "-lntuxpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ours = [line.split() for line in sockets if any(f"pid={one}," in line for one in (str(pid), *children))]
    return sorted(words[4] for words in ours)


async def test_only_what_the_page_lists_listens(start_server: Callable[..., Server]) -> None:
    server = start_server()
    metered = start_server("--metrics-bind-addr=127.0.0.1:9324")
    socket, streaming = listening(server.pid)
    # gRPC bound the private name, which was then renamed.
    assert re.fullmatch(rf"/run/\.{server.name}\.sock\.{server.pid}", socket)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", streaming)
    assert "`/run/dockershim.sock` | yes, mode 0660 |" in PAGE
    assert (mode(server.socket), server.socket.owner(), server.socket.group()) == ("0660", "root", "root")
    assert "127.0.0.1:9324" in listening(metered.pid)
    assert len(listening(metered.pid)) == 3


async def test_files_have_the_modes_of_the_page(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server()
    async with CRI(server.target) as cri:
        await pull(cri)
        config = sandbox_config(log_directory=str(tmp_path))
        async with pod(cri, config) as sandbox_id:
            await start(cri, sandbox_id, container_config("echo hello; exec sleep 100", log_path="0.log"), config)
            log = tmp_path / "0.log"
            await until(log.exists)
            assert "| the log of a container | 0640 |" in PAGE
            assert mode(log) == "0640"
            assert len(FOLDERS) == 6
            for path, folder_mode, file_mode in FOLDERS:
                folder = Path(path.replace("dockershim", server.name))
                assert (path, mode(folder)) == (path, folder_mode)
                files = [one for one in folder.iterdir() if not one.is_dir()]
                if file_mode:
                    assert {mode(one) for one in files} == {file_mode}, path
