"""Configuration that nodes and ranks are set up with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import NotPicklableError, UsageError
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.model.specs import Image
from skyward_core.plugins.plugin import has_app
from skyward_core.pool.agent_link import Link
from skyward_core.pool.event_log import News
from skyward_core.pool.gang_setup import GangKeeper, Keeper, Standalone
from skyward_core.pool.node_roster import Roster
from skyward_core.pool.pool_context import PoolContext
from skyward_core.protocol.frame_codec import PLUGINS
from skyward_core.util.redaction import secret_values, url_secrets

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import OfLock, Place, SetupAnswer
    from skyward_core.tasks.packages.package_specs import Packages


class SetupKnowledge:
    """One pool's.

    Attributes:
        env: the environment's variables, as far as they are known here.
        known: whether they are.
        secrets: what agents blank.
        credentials: those in URLs of the image; written nowhere.
        image: the image, as JSON; the ledger's one lacks variables' values, and credentials in URLs.
        interpreter: the one that the pool's scripts have, as JSON; None where it is of an older release.
        cwd: the client's working folder that goes to the nodes.
        keeper: of the ranks' plugins, once there is one.
    """

    def __init__(self, context: PoolContext, news: News) -> None:
        self._context = context
        self._news = news
        self._complained = False
        self.env: dict[str, str] = {}
        self.known = False
        self.secrets: list[str] = []
        self.credentials: list[str] = []
        self.image: dict[str, Any] = context.row.spec.get("image", {})
        self.interpreter: dict[str, Any] | None = context.row.spec.get("interpreter")
        self.cwd: str = context.row.spec.get("cwd", "")
        self.keeper: Keeper | None = None

    def know(self, image: Image, interpreter: Interpreter | None = None, packages: Packages | None = None) -> None:
        """The image as it was asked for, the interpreter, and what the project says of its packages."""
        self._know_env(image.env)
        self.image = image.describe() if packages is None else packages.added_to(image.describe())
        if interpreter is not None:
            self.interpreter = interpreter.describe()
        self.credentials = url_secrets([self.image, self.interpreter])
        self.know_secrets(self.credentials)

    def know_secrets(self, values: Sequence[str]) -> None:
        """More to blank."""
        self.secrets += [value for value in values if value not in self.secrets]
        self._news.blank(list(values))

    def _know_env(self, env: dict[str, str]) -> None:
        self.env, self.known = env, True
        self._news.blank(secret_values(env))

    async def has_plugins(self) -> bool:
        """Whether plugins enter contexts in the pool's ranks.

        Raises:
            ConnectionError: only another node can tell, and none is there.
        """
        await self.learn()
        return self.keeper is not None and bool(self.keeper.plugins)

    async def learn(self) -> None:
        """Have nodes tell what only the client knows that made the pool.

        Raises:
            ConnectionError: none is there.
        """
        links = [link for link in self._context.links if link.up]
        if not links and not self._knows_all:
            raise ConnectionError("no node is there to tell the pool's environment and plugins")
        answer: SetupAnswer
        for link in links:
            if self._knows_all:
                return
            answer, plugins = await link.ask({"t": "setup"})
            if answer["env"] is not None:
                self._know_env(answer["env"])
            self.know_secrets(answer["secrets"])
            if self.keeper is not None and not self.keeper.knows_plugins and answer["known"]:
                told = {"apps": answer["apps"], "joins": answer.get("joins", False)}
                self.keeper.learn(plugins, answer["secrets"], **told)
        spec = self._context.row.spec
        if self.keeper is not None and not self.keeper.knows_plugins and not spec["plugins"]:
            self.keeper.learn(b"", self.secrets, apps=False, joins=False)
        names = spec.get("variables", [])
        if not self.known and names and not self._complained:
            self._complained = True
            self._news.complain(
                f"nobody knows its variables any more ({', '.join(names)}): the client that made it and its agents "
                "are gone; new ranks run without them. Make the pool anew where they matter"
            )

    @property
    def _knows_all(self) -> bool:
        return self.known and (self.keeper is None or self.keeper.knows_plugins)


class Upkeep:
    """Of one pool's ranks.

    Attributes:
        keeper: None until the pool is up.
    """

    def __init__(self, context: PoolContext, news: News, knowledge: SetupKnowledge, roster: Roster) -> None:
        self._context = context
        self._news = news
        self._knowledge = knowledge
        self._roster = roster
        self.keeper: Keeper | None = None

    def make(self, plugins: Sequence[Any] | None) -> None:
        """Make the keeper.

        Args:
            plugins: the pool's; None for a client that did not make it.

        Raises:
            UsageError: they are too large to travel.
        """
        blob = None if plugins is None else _pickled(plugins) if plugins else b""
        if blob and len(blob) > PLUGINS:
            said = f"the pool's plugins take {len(blob):,} bytes when they are pickled, and {PLUGINS:,} can travel: "
            raise UsageError(f"{said}have them load on the nodes, in around_process, what is large")
        known = self._knowledge
        values = known.credentials + [value for plugin in plugins or () for value in plugin.secrets()]
        kind = Standalone if self._context.alone else GangKeeper
        self.keeper = known.keeper = kind(
            self._context.links, self._facts(), blob, values, apps=has_app(plugins or ()),
            joins=any(plugin.joins for plugin in plugins or ()),
            fail_fast=self._context.options.fail_fast,
            tell=lambda words: self._news.complain(words) if words else self._roster.tell(), ask=known.learn,
        )  # fmt: skip

    def _facts(self) -> Place:
        context = self._context
        world = len(context.machines) * context.ranks_per_node
        facts: Place = {"total_nodes": len(context.machines), "world_size": world}
        if context.alone:
            return facts | {"head_addr": "", "head_port": 0, "peers": []}
        # A host may be known by a name of the client's alone; its agent knows where peers reach it.
        peers = [
            {"node": m.node, "address": m.private_address or link.welcome.get("address", "")}
            for m, link in zip(context.machines, context.links, strict=True)
        ]
        return facts | {"peers": peers}

    def on_frame(self, link: Link, header: OfLock) -> None:
        """What an agent tells of the gang's lock."""
        if self.keeper is not None:
            self.keeper.on_frame(link, header)

    def on_down(self, link: Link) -> None:
        if self.keeper is not None:
            self.keeper.on_down(link)

    async def renewed(self, form: bool) -> None:
        """A node lives on another machine now. ``form``: have a gang with it, if no other node is gone."""
        if self.keeper is not None:
            self.keeper.renew(self._facts())
            if form and (self._context.alone or not any(link.gone for link in self._context.links)):
                await self.set_up()
        self._roster.note()

    async def renew_processes(self) -> None:
        """Have fresh processes take the ranks' places.

        Raises:
            ConnectionError: a node cannot be reached now.
        """
        if self.keeper is not None:
            await self.keeper.renew_processes()

    async def set_up(self) -> None:
        """Have the ranks set up before they are needed."""
        try:
            if self.keeper is not None:
                await self.keeper.ensure()
        except OSError as error:
            self._news.mention(self._context.links[0], f"{error}; the next run sets the ranks up")


def _pickled(plugins: Sequence[Any]) -> bytes:
    from skyward_core.tasks.function_pickling import (
        dumps,  # a pool starts sooner without, and most have no plugins
    )
    from skyward_core.tasks.guarded_user_code import tried, words_of

    data, error = tried(lambda: dumps(tuple(plugins)))
    if error is not None:
        raise NotPicklableError(f"the plugins cannot travel to the nodes: {': '.join(words_of(error))}") from error
    return data or b""
