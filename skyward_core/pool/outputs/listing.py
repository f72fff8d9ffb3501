"""Which files the ranks of a pool wrote, as its nodes tell."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...model.written_file import WrittenFile
from ...wire.frames import WireError
from ...wire.output_names import matches
from ..context import PoolContext
from ..links.link import Link

if TYPE_CHECKING:
    from ...wire.agent_frame_types import WrittenAnswer, WrittenKeys

SLACK = 2.0  # seconds between two clocks that count as showing the same time
PATIENCE = 60.0  # seconds that a node may take to look through its disk
MOST = 200_000  # files of one node that are asked for, answer by answer
FROZEN = (
    6.0  # seconds without a word, though it was asked for one every 2 s, after which it is not waited for
)


class Listing(NamedTuple):
    """What nodes have told.

    Attributes:
        files: by node and path. Where nodes share a disk, a file of it is the first one's.
        untold: how many more there are.
        folders: node -> the ranks' working folder there.
        failures: node -> why it did not tell.
    """

    files: list[WrittenFile]
    untold: int
    folders: dict[int, str]
    failures: dict[int, str]

    @property
    def alone(self) -> frozenset[str]:
        """Paths that only one node has; none while one may have more."""
        if self.failures or self.untold:
            return frozenset()
        return frozenset(path for path, n in Counter(file.path for file in self.files).items() if n == 1)


async def listing(
    context: PoolContext,
    patterns: Sequence[str],
    run: str | None,
    nodes: Sequence[int] | None = None,
    *,
    whole: bool = True,
) -> Listing:
    """Ask the nodes.

    Args:
        patterns: as :func:`...wire.output_names.pattern` gives them; none for all files.
        run: during which they were written; None for the whole time of the pool.
        nodes: whom to ask; None for all.
        whole: whether nodes are asked again for what does not go into one answer.
    """
    links = [link for link in context.links if nodes is None or link.node in nodes]
    told = await asyncio.gather(*(_ask_all(link, context, patterns, run, whole=whole) for link in links))
    view = context.view.runs.get(run or "")
    if (
        view is not None
        and (view.kind != "broadcast" or view.nodes)
        and not all(each.forgotten for each in told)
    ):
        # Its calls went to some nodes only.
        told = [each._replace(why="") if each.forgotten else each for each in told]
    found = Listing([], sum(each.more for each in told), {}, {})
    seen: dict[tuple[str, str], WrittenFile] = {}
    for link, each in zip(links, told, strict=True):
        if each.why:
            found.failures[link.node] = each.why
        elif each.folder:
            found.folders[link.node] = each.folder
        for file in each.files:
            key = file.path, file.version
            if key in seen:
                seen[key] = replace(seen[key], also=(*seen[key].also, file.node))
            elif matches(file.path, patterns):
                seen[key] = file
    found.files.extend(seen.values())
    found.files.sort(key=lambda file: (file.node, file.path))
    return found


class _NodesFiles(NamedTuple):
    """By one node."""

    files: list[WrittenFile]
    more: int = 0
    folder: str = ""
    why: str = ""  # it did not
    forgotten: bool = False  # as it knows nothing of the run


async def _ask_all(
    link: Link, context: PoolContext, patterns: Sequence[str], run: str | None, *, whole: bool
) -> _NodesFiles:
    told = await _ask(link, context, patterns, run, "")
    while whole and told.more and told.files and len(told.files) < MOST:
        last = told.files[-1].path
        next_ones = await _ask(link, context, patterns, run, last)
        files = [each for each in next_ones.files if each.path > last]
        if not files:  # it says no more, for whatever reason
            break
        told = next_ones._replace(files=told.files + files)
    return told


async def _ask(
    link: Link, context: PoolContext, patterns: Sequence[str], run: str | None, after: str
) -> _NodesFiles:
    # A machine of the pool's own has nobody else's, whatever the clock said when the pool was made.
    since = 0.0 if context.ends_machines else link.by_its_clock(context.row.created_at) - SLACK
    when: dict[str, object] = {"run": run} if run else {"since": since}
    if after:
        when["after"] = after
    request = {"t": "written", "patterns": list(patterns)} | when
    asking = asyncio.ensure_future(_answer(link, request))
    deadline = time.monotonic() + PATIENCE
    while not asking.done() and link.quiet < FROZEN and time.monotonic() < deadline:
        await asyncio.wait([asking], timeout=1.0)
    if not asking.done():
        asking.cancel()
        return _NodesFiles([], why=f"it {link.silence}")
    try:
        answer = asking.result()
    except (ConnectionError, WireError) as error:
        return _NodesFiles([], why=str(error))
    if why := answer.get("error"):
        return _NodesFiles([], why=why, forgotten=bool(answer.get("forgotten")))
    return _NodesFiles([_file(each, link) for each in answer["files"]], answer["more"], answer["folder"])


async def _answer(link: Link, request: dict[str, object]) -> WrittenAnswer:
    """What a node says; it is asked once more after each time that its link was down and has come up again."""
    while True:
        had = link.welcome
        try:
            answer: WrittenAnswer
            answer, _ = await link.ask(request)
            return answer
        except ConnectionError:
            if not link.returning and link.welcome is had:
                raise
        while link.returning:
            await asyncio.sleep(0.02)


def _file(told: WrittenKeys, link: Link) -> WrittenFile:
    return WrittenFile(told["path"], told["size"], link.by_our_clock(told["at"]), link.node, told["version"])
