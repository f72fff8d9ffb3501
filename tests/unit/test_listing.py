"""Files that nodes are asked for: also those whose link is down for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.output_files import WrittenFile
from skyward_core.pool.output_files import OutputFetcher, OutputRecord, list_files
from tests.support.runs import home_for_runs
from tests.support.staged_pool import Node, staged
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with home_for_runs(tmp_path_factory):
        yield


def tells(node: Node, name: str = "") -> None:
    (asked,) = node.of("written")
    written: dict[str, Any] = {
        "path": name or f"of-{node.number}",
        "size": 1,
        "at": 1.0,
        "version": name or f"v{node.number}",
    }
    node.say({"t": "known", "id": asked["id"], "files": [written], "more": 0, "folder": "/w"})


@pytest.mark.parametrize("when", ["before it is asked", "before it answers"])
async def test_a_node_whose_link_comes_up_again_is_asked_once_more(when: str) -> None:
    async with staged(2) as stage:
        first, second = stage.nodes
        if when == "before it is asked":
            second.drop()
        asking = asyncio.create_task(list_files(stage.context, [], None))
        await until(lambda: first.of("written"))
        tells(first)
        if when == "before it answers":
            second.drop()
        await until(lambda: len(second.pipes) == 2 and second.of("written"))
        tells(second)
        found = await asking
        assert (found.failures, found.folders) == ({}, {0: "/w", 1: "/w"})
        assert [file.path for file in found.files] == ["of-0", "of-1"]


async def test_a_file_of_a_disk_that_nodes_share_gives_way_to_its_next_state_whichever_names_it(
    tmp_path: Path,
) -> None:
    async with staged(2) as stage:
        asking = asyncio.create_task(list_files(stage.context, [], None))
        for node in stage.nodes:
            await until(lambda node=node: node.of("written"))  # type: ignore[misc]
            tells(node, "same")
        (file,) = (await asking).files
        assert (file.node, file.also) == (0, (1,))
        target, record = tmp_path / file.path, OutputRecord(tmp_path / "outputs.jsonl")
        target.write_text("as it was when the second node named it first")
        record.add(WrittenFile(file.path, 2, 0.0, 1, "earlier"), target)
        fetching = OutputFetcher(stage.context, record)
        assert fetching._may_replace(file, target)
        with pytest.raises(OSError, match="did not come from this file"):
            fetching._may_replace(replace(file, also=()), target)


async def test_one_that_does_not_come_back_is_named() -> None:
    async with staged(2) as stage:
        stage.links[1].mark_lost()
        asking = asyncio.create_task(list_files(stage.context, [], None))
        await until(lambda: stage.nodes[0].of("written"))
        tells(stage.nodes[0])
        found = await asking
        assert list(found.failures) == [1] and found.folders == {0: "/w"}
