"""What the ranks of a pool wrote: asked for, fetched by hand, fetched during runs, and seen to at the pool's end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...model.errors import LedgerError, PoolError, UsageError
from ...model.sizes import size_in_words
from ...model.written_file import FetchedFile, Unfetched, WrittenFile
from ...transport.incoming_output import refuse_others
from ...views import events as ev
from ...wire.output_names import matches, pattern
from ...wire.safe_text import field as safe
from ..context import PoolContext
from ..news import News
from ..runs.book import RunBook
from .fetching import Aim, Fetching, Progress
from .listing import Listing, listing
from .record import OutputRecord

FOLDER = "outputs"  # of the client, in its working folder
SETTLED = 3.0  # seconds without a change after which nobody is likely to be writing a file
LOOK = (2.0, 15.0)  # seconds before the first and between later looks during a run
BEHIND = (
    32  # runs that wait to be looked at when they are over; of more, the pool's end sees to the older ones
)
NAMED = 5  # files that a receipt names, of each node's


class Haul(NamedTuple):
    """What came of fetching.

    Attributes:
        files: each that was meant.
        notes: what else there is to say, in words.
    """

    files: list[FetchedFile]
    notes: list[str]


class Rest(NamedTuple):
    """What is left on the nodes of a pool that ends.

    Attributes:
        notes: where it lies, in words.
        lost: what goes with its machines, in words.
        stays: nodes on which it stays, and the folder there.
    """

    notes: Sequence[str] = ()
    lost: Sequence[str] = ()
    stays: Sequence[tuple[int, str]] = ()


class Outputs:
    """One pool's, as one client has it."""

    def __init__(self, context: PoolContext, news: News, book: RunBook) -> None:
        self._context = context
        self._news = news
        self._book = book
        self._record = OutputRecord(context.archive.folder / "outputs.jsonl")
        self._base = Path.cwd() / FOLDER
        self._patterns: Sequence[str] = context.row.spec.get("image", {}).get("outputs") or ()
        self._one_at_a_time = asyncio.Lock()
        self._ended: dict[str, None] = {}  # runs to be looked at for the last time
        self._stir = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def files(
        self, patterns: Sequence[str] = (), run: str | None = None, *, whole: bool = True
    ) -> Listing:
        """What there is; nothing where ranks work in this machine's own folders.

        Args:
            patterns: as :func:`...wire.output_names.pattern` takes them; none for all files.
            run: during which they were written; None for the whole time of the pool.
            whole: whether nodes are asked again for what does not go into one answer.

        Raises:
            UsageError: a pattern leads out of the working folder.
        """
        wanted = _checked(patterns)
        if self._context.runs_here:
            return Listing([], 0, {}, {})
        return await listing(self._context, wanted, run, whole=whole)

    async def unfetched(self) -> Unfetched:
        """What a teardown would find, as things stand."""
        found = await self.files()
        parts: dict[bool, list[WrittenFile]] = {True: [], False: []}
        for file in self._unfetched(found):
            parts[bool(self._patterns) and matches(file.path, self._patterns)].append(file)
        return Unfetched(
            parts[True],
            parts[False],
            found.untold,
            self._context.ends_machines,
            int(self._context.options.keep_outputs),
            found.failures,
        )

    async def fetch(
        self,
        patterns: Sequence[str] = (),
        to: Path | None = None,
        run: str | None = None,
        progress: Progress | None = None,
    ) -> Haul:
        """Bring files here.

        Args:
            to: the folder that they come to; None for ``outputs/RUN``, or ``outputs/POOL``.

        Raises:
            UsageError: a pattern leads out of the working folder.
            PoolError: no node could be asked.
        """
        found = await self.files(patterns, run)
        notes = [f"node {node} cannot be asked for files: {why}" for node, why in found.failures.items()]
        if notes and not found.folders:
            raise PoolError(f"of pool {self._context.name}: {'; '.join(notes)}")
        if found.untold:
            notes.append(
                f"{found.untold:,} more files are there than nodes name at once: say which, by patterns"
            )
        return Haul(await self._take(found, found.files, run, to, progress), notes)

    async def _take(
        self,
        found: Listing,
        files: Sequence[WrittenFile],
        run: str | None,
        to: Path | None = None,
        progress: Progress | None = None,
        *,
        tries: int = 3,
    ) -> list[FetchedFile]:
        aim = Aim(await asyncio.to_thread(self._folder, run, to) if files else Path(), self._by_node())
        if not self._goes_on(run):
            aim = aim._replace(alone=found.alone)
        async with self._one_at_a_time:
            fetching = Fetching(self._context, self._book.direct, self._record, tries=tries)
            got = await fetching.fetch(files, aim, progress)
        for each in got:
            if each.is_new or (each.error and tries > 1):
                self._tell(run or "", each)
        return got

    def _folder(self, run: str | None, to: Path | None) -> Path:
        if to is not None:
            return to.absolute()
        folder = self._base / (run or self._context.row.key)
        folder.mkdir(parents=True, exist_ok=True)
        refuse_others(self._base)
        # What came from there is neither to be sent there again, nor to be committed.
        ignored = folder / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n", encoding="utf-8")
        return folder

    def _by_node(self) -> dict[int, str]:
        """A folder for each node: of its rank, or of the node where several ranks share its working folder."""
        if len(self._context.links) == 1:
            return {}
        letter = "r" if self._context.ranks_per_node == 1 else "n"
        return {link.node: f"{letter}{link.node}" for link in self._context.links}

    def _goes_on(self, run: str | None) -> bool:
        runs = self._context.view.runs
        meant = runs.values() if run is None else filter(None, (runs.get(run),))
        return any(each.state == "running" and each.ended < each.total for each in meant)

    def _tell(self, run: str, each: FetchedFile) -> None:
        file = each.file
        self._news.emit(
            ev.OutputFetched(
                pool=self._context.name, run=run, node=file.node, path=file.path, size=file.size,
                target=str(each.target), error=each.error,
            )
        )  # fmt: skip

    # -- during runs -------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Fetch what the image names of every run, whoever began it, from now on, while it goes on and when it is over;
        of those that nodes remember, too, as they tell of them."""
        self._news.subscribe(self._on_event, None)

    def _on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.RunOpened | ev.RunEnded) and not self._context.detached:
            if isinstance(event, ev.RunEnded):
                self._ended[event.run] = None
                if len(self._ended) > BEHIND:
                    del self._ended[next(iter(self._ended))]
            self._stir.set()
            if self._keeping is None or self._keeping.done():
                self._keeping = asyncio.get_running_loop().create_task(self._keep())

    @property
    def _under_way(self) -> list[str]:
        runs = self._context.view.runs
        return [*self._book.runs, *(run for run in runs if run not in self._book.runs and self._goes_on(run))]

    async def _keep(self) -> None:
        try:
            await self._look_on()
        except OSError as error:
            self._news.complain(f"what ranks write cannot be fetched now: {error}")

    async def _look_on(self) -> None:
        """Look at the runs that go on, ever more rarely, and at each that is over; end when none is left."""
        delay, longest = LOOK
        while (self._ended or self._under_way) and not self._context.detached:
            if not self._ended:
                self._stir.clear()
                try:
                    async with asyncio.timeout(delay):
                        await self._stir.wait()
                except TimeoutError:
                    delay = min(longest, delay * 1.5)
            while self._ended:
                run = next(iter(self._ended))
                del self._ended[run]
                found = await self.files(self._patterns, run)
                await self._take(found, found.files, run)
            for run in self._under_way:
                found = await self.files(self._patterns, run, whole=False)
                quiet = [file for file in found.files if file.age > SETTLED]
                await self._take(found, quiet, run, tries=1)

    def leave(self) -> None:
        """This client leaves the pool; what is half here is gone on with when somebody fetches it again."""
        if self._keeping is not None:
            self._keeping.cancel()

    # -- at the end --------------------------------------------------------------------------------------

    async def save(self, *, give_up: bool, most: int | None = None) -> Rest:
        """Bring home what would go with the pool's machines, as far as its options say, and name what is left.

        Args:
            give_up: bring nothing home.
            most: bytes that are brought, in place of what the options say.
        """
        context = self._context
        if self._keeping is not None:
            if give_up or self._book.runs:  # some that do not end: their nodes do not answer
                self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if not await asyncio.to_thread(self._had_runs):
            return Rest()
        trouble = ""
        if self._patterns and not give_up:
            found = await self.files(self._patterns)
            trouble = await self._bring(found, self._unfetched(found))
        found = await self.files()
        if context.ends_machines and not give_up:
            room = int(context.options.keep_outputs) if most is None else most
            trouble = await self._bring(found, within(self._unfetched(found), room)) or trouble
        left = self._unfetched(found)
        whose = {node: [file for file in left if file.node == node] for node in found.folders}
        said = [self._words(node, found.folders[node], files) for node, files in whose.items() if files]
        unasked = [
            f"node {node} could not be asked what its ranks wrote ({why})"
            for node, why in found.failures.items()
        ]
        notes = [trouble] if trouble else []
        if found.untold:
            unasked.append(f"at least {found.untold:,} more files of ranks that were not looked at")
        if context.ends_machines:
            return Rest(notes, lost=[*said, *unasked])
        stays = [(node, found.folders[node]) for node, files in whose.items() if files]
        more = unasked[-1:] if found.untold else []
        return Rest([*(f"stays there: {each}" for each in [*said, *more]), *notes], stays=stays)

    def _had_runs(self) -> bool:
        """Whether there were ranks that could write."""
        try:
            return bool(self._context.ledger.runs(self._context.token))
        except LedgerError:
            return True

    async def _bring(self, found: Listing, files: Sequence[WrittenFile]) -> str:
        """Fetch them, and have the pool say how far it is: nothing else happens meanwhile. Gives why that cannot be."""

        def say(detail: str) -> None:
            if self._context.view.state == "stopping" and self._context.view.detail != detail:
                self._news.emit(ev.PoolState(pool=self._context.name, state="stopping", detail=detail))

        def is_at(done: int, total: int) -> None:
            say(f"what its ranks wrote is brought here: {size_in_words(done)} of {size_in_words(total)}")

        if files:
            try:
                await self._take(found, files, None, progress=is_at)
            except OSError as error:
                return f"what ranks wrote could not be brought here: {error}"
            finally:
                say("")
        return ""

    def _unfetched(self, found: Listing) -> list[WrittenFile]:
        return [file for file in found.files if not self._record.of(file)]

    def _words(self, node: int, folder: str, files: Sequence[WrittenFile]) -> str:
        """What nobody has fetched of one node: how much, where, and its largest by name."""
        largest = sorted(files, key=lambda file: -file.size)[:NAMED]
        named = ", ".join(f"{safe(file.path)} ({size_in_words(file.size)})" for file in largest)
        more = f" and {len(files) - len(largest):,} more" if len(files) > len(largest) else ""
        many = f"{len(files):,} files" if len(files) > 1 else "1 file"
        where = f"node {node} ({self._context.machines[node].address}) in {folder}"
        return f"{many}, {size_in_words(sum(file.size for file in files))}, on {where}: {named}{more}"


def _checked(patterns: Sequence[str]) -> list[str]:
    try:
        return [pattern(each) for each in patterns]
    except ValueError as error:
        raise UsageError(str(error)) from error


def within(files: Sequence[WrittenFile], most: int) -> list[WrittenFile]:
    """As many of the files as there is room for, the newest first."""
    chosen = []
    for file in sorted(files, key=lambda file: -file.changed_at):
        if file.size <= most:
            chosen.append(file)
            most -= file.size
    return chosen
