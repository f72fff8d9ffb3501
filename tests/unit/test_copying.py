"""What ``skyward-tui cp`` takes, and refuses, before it asks any host."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client import node_file_copy
from skyward_tui.cli.commands.cp import _NODE_PATH, copy
from skyward_tui.cli.commands.hosts_trust_shell_forward import forward
from skyward_tui.cli.console import Console


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("pool:", ("pool", None, "")),
        ("pool:a/b:c", ("pool", None, "a/b:c")),
        ("pool:3:/x", ("pool", "3", "/x")),
        ("pool:3", ("pool", None, "3")),
        ("./a:b", None),
        ("/a:b", None),
        ("file", None),
    ],
)
def test_which_word_is_on_a_node(text: str, parts: tuple[str, str | None, str] | None) -> None:
    found = _NODE_PATH.fullmatch(text)
    assert (found and (found["pool"], found["rank"], found["path"])) == parts


@pytest.mark.parametrize("words", [("a", "b"), ("p:a", "q:b")])
def test_one_is_here_and_one_on_a_node(words: tuple[str, str]) -> None:
    with pytest.raises(sky.UsageError, match="one of the two is on a node"):
        copy.function(Console(as_json=True), *words)


def test_links_and_what_is_no_file_are_refused_before_anything_is_copied(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("12")
    assert [(each.parts, each.size) for each in node_file_copy._local_entries(tmp_path / "a")] == [
        ((), 0),
        (("file",), 2),
    ]
    (tmp_path / "a" / "link").symlink_to("file")
    for path in (tmp_path / "a", tmp_path / "a" / "link"):
        with pytest.raises(sky.UsageError, match="link is a link"):
            node_file_copy._local_entries(path)
    (tmp_path / "a" / "link").unlink()
    os.mkfifo(tmp_path / "a" / "pipe")
    with pytest.raises(sky.UsageError, match="neither a file nor a folder"):
        node_file_copy._local_entries(tmp_path / "a")
    with pytest.raises(sky.UsageError, match="No such file"):
        node_file_copy._local_entries(tmp_path / "none")


@pytest.mark.parametrize("path", ["..", "../x", "a/../b", "/a/..", "~/../x"])
def test_no_path_leads_up(path: str) -> None:
    with pytest.raises(sky.UsageError, match=r"without \.\."):
        node_file_copy._check_remote_path(path)
    assert [node_file_copy._check_remote_path(each) for each in ("~", "~/a", "/b", "a..b")] == [
        "",
        "a",
        "/b",
        "a..b",
    ]


@pytest.mark.parametrize("name", ["a/b", "/etc/passwd", ""])
async def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    class Listed:
        filename = name

    class Strange:
        async def scandir(self, path: str):
            yield Listed

    with pytest.raises(sky.PoolError, match="no name of a file"):
        [each async for each in node_file_copy._list_names(Strange(), "/data")]


def test_a_place_here_is_a_new_one_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    assert node_file_copy._local_target(tmp_path, "file", False) == tmp_path / "file"
    for path, is_folder, why in (
        (tmp_path / "link", False, "a link already"),
        (tmp_path / "file", True, "something of that name"),
        (tmp_path / "none" / "x", False, "no folder"),
    ):
        with pytest.raises(sky.UsageError, match=why):
            node_file_copy._local_target(path, "x", is_folder)


def test_a_port_of_this_machine_that_is_in_use_is_told_before_any_page_is() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(sky.UsageError, match=rf"port {port} of this machine cannot be had: .*:8123$"):
            forward.function(Console(as_json=True), "no-pool-is-asked-for", (f"{port}:8123",))
